"""Documents to passages to vectors to commits.

ingestion     the whole way, in order
passages      documents cut into passages, and these encoded
spool         what waits for a commit, in temporary files
encoding      what is required of an encoder
settings      collection settings, options and summary of `add`
"""
