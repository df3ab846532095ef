"""The folder of a collection: segments and documents.db; one writer, any number of readers.

documents/    documents.db
filters/      filters compiled to SQL
snapshot      the state of one commit, to read from
view          the snapshot that an open collection shows
writer        one commit: a transaction on tables and segments
mode          how documents are ranked
tiers         which segments to merge
folders       the folders of segments
scratch       new folders, whole or not at all
filesystem    network file systems are refused
collection    create, delete, update, merge
"""
