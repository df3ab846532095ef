"""Documents to passages to vectors to commits.

ingestion        `add`, from the documents to the commits, on every backend
pipeline         what encodes, for `add` and for all others
passages         a document cut into passages, and these encoded
supplied         documents that come with their vectors
settings         collection settings, options and summary of `add`
languages        the tokenizer that suits the first documents
mirror           a collection kept equal to a folder; watching: which files have changed
"""
