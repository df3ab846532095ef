"""Moved to searchengine.report.plots; this name works for one more release."""
