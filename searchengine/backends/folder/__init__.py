"""The folder of a collection: segments and documents.db; one writer, any number of readers.

documents/    documents.db
filters/      filters compiled to SQL
lexical       documents ranked by words
snapshot      the state of one commit, to read from
view          the snapshot that an open collection shows
writer        one commit: a transaction on tables and segments
pending       work that outlives a commit
merging       which segments to merge, and how
folders       segments and new folders on the disk
collection    the backend: create, delete, update, merge
"""
