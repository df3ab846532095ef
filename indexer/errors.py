"""What can go wrong, by name.

IndexerError(ValueError)
├── VectorError          the vectors, queries or row numbers handed in
├── SegmentConfigError   the settings of a segment
├── TuneError            a recall target that cannot be shown to hold
└── SegmentError         the files of a segment: damaged, altered, truncated, of an unknown format
"""


class IndexerError(ValueError):
    """Base of every error this package raises on purpose."""


class VectorError(IndexerError):
    """Vectors, queries or row numbers that cannot be indexed or searched."""


class SegmentConfigError(IndexerError):
    """A segment setting outside its range, or one that does not fit the vectors."""


class TuneError(IndexerError):
    """A goal outside its range, too few queries, or a target that no recipe was shown to hold."""


class SegmentError(IndexerError):
    """A segment folder that is missing, damaged, altered, closed or of an unknown format."""
