"""Readers of formats, one a file; reading_process.py runs them in a process of their own."""
