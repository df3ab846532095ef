"""Formats that a parser reads: each has a reader here, run in a process of its own (parser.py)."""
