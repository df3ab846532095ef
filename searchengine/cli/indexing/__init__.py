"""Commands that fill a collection: index and encode."""
