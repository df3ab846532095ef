"""documents.db: connections, tables, migrations, the index of words."""
