"""Where a collection is kept, by one contract: a folder or PostgreSQL."""
