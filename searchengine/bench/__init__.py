"""Operating points measured on one's own vectors, and a report of what they cost and find."""

from pathlib import Path

# Module names of the last release, until the next one.
__path__.append(str(Path(__file__).parents[1] / "former" / "bench"))
