"""The folder of a collection: segments and documents.db; one writer, any number of readers.

database      documents.db as a file, and the lock of the one writer
schema        its tables
store         reads and writes the tables
words         the words files of a snapshot, and a speller
snapshot      one commit to read from, and the View that shows one
writer        one commit: a transaction on tables and segments; which ones to merge
folders       segments and new folders on the disk
collection    the backend: create, delete, update, merge
"""
