"""Segments searched: the cascade, rows scored by faiss or numpy, near duplicates, postings."""
