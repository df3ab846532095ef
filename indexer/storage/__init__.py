"""The files of a segment: vectors, rotation, manifest; checksums and syncs."""
