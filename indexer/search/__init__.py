"""Segments searched: the shortlist, its rerank at full width, exact search."""
