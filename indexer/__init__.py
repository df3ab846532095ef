"""Vectors to row numbers: coarse-to-fine search over a short prefix, scored at full width."""

from pathlib import Path

# Module names of the last release, until the next one.
__path__.append(str(Path(__file__).with_name("deprecated")))
