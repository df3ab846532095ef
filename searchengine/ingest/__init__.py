"""Documents to passages to vectors to commits.

ingestion     the whole way, in order
passages      documents cut into passages, and these encoded
blocks        documents read together, batches encoded together
encoding/     a corpus encoded apart, on one or many machines
supplied      documents that come with their vectors
spool         what waits for a commit, in temporary files
settings      collection settings, options and summary of `add`
"""
