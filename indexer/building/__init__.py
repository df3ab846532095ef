"""Segments written: built from vectors, merged from segments."""
