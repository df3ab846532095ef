"""A collection in other programs: LangChain, LlamaIndex, Haystack."""
