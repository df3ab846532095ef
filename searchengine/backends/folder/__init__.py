"""The folder of a collection: segments and documents.db; one writer, any number of readers.

database      documents.db as a file
schema        its tables
lock          admits one writer
store         reads and writes the tables
words         the words files of a snapshot
spelling      words that no document has
snapshot      the state of one commit, to read from
writer        one commit: a transaction on tables and segments
merging       which segments to merge, and when
folders       segments and new folders on the disk
collection    the backend: create, delete, update, merge
"""
