"""A collection in other programs: assistants (MCP), LangChain, LlamaIndex, Haystack."""
