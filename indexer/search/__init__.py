"""Segments searched: the cascade, scores at full width, postings."""
