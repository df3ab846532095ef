"""Measurements as tables, pages and plots: numbers in, text and figures out."""
