"""Collections in Qdrant: one Qdrant collection for each, and one point for each document."""
