"""Vectors to row numbers: coarse-to-fine search over a short prefix, scored at full width."""
