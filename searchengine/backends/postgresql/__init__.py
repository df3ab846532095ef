"""Collections in PostgreSQL with the extension pgvector: one schema for each collection."""
