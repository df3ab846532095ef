"""The files of a segment: manifest, vectors, words; checksums and syncs."""
