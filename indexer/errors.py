"""What can go wrong, by name.

IndexerError(ValueError)
├── VectorError          the vectors, queries or row numbers handed in
├── SegmentConfigError   the settings of a segment
├── TuneError            a recall target that cannot be shown to hold
└── SegmentError         the files of a segment: damaged, altered, truncated, of an unknown format
"""

import reprlib

_REPR = reprlib.Repr()
_REPR.maxlevel, _REPR.maxstring, _REPR.maxother = 2, 60, 60
_LONGEST = 300


def shown(value: object) -> str:
    """A value as a message quotes it: printable, shortened where it is long or deep."""
    return shortened(_REPR.repr(value))


def shortened(text: str) -> str:
    """A text of others within a message: on one line, printable, its middle left out if long."""
    if len(text) > _LONGEST:
        text = f"{text[: _LONGEST // 2]} … {text[-_LONGEST // 2 :]}"
    return "".join(c if c.isprintable() else " " if c.isspace() else ascii(c)[1:-1] for c in text)


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
