"""documents.db, from the file up.

connections   SQLite connections that threads share, and their turns to write
forks         what a forked child does with them
database      the open file: locks, transactions, errors
schema        the tables, and the next id of each
store         reads the tables
changes       writes the tables
text_index    the index of words
lexical       documents ranked by it
"""
