"""documents.db, from the file up.

connections   SQLite connections that threads share, and what a forked child does with them
database      the open file: locks, transactions, errors
schema        the tables, and the next id of each
store         reads the tables
changes       writes the tables
"""
