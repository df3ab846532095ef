"""The files of a segment: manifest and vectors; checksums and syncs."""
