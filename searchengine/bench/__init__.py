"""Measurement of operating points on a user's vectors: recall, latency and cost."""

from pathlib import Path

# Module names of the last release, until the next one.
__path__.append(str(Path(__file__).parents[1] / "deprecated" / "bench"))
