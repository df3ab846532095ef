"""Files to a stream of documents; one reader a format."""
