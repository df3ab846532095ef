"""The folder of a collection: segments and documents.db; one writer, any number of readers."""
