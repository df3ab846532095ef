"""documents.db, from the file up.

connections   SQLite connections that threads share, and their turns to write
forks         what a forked child does with them
database      the open file: locks, transactions, errors
migrations    the tables, and the upgrades of older ones
store         reads the tables
changes       writes the tables
text_index    the index of words
lexical       documents ranked by it
"""
