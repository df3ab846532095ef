"""The errors of this package.

IndexerError(SearchEngineError)
├── VectorError          invalid vectors, queries or row numbers
├── SegmentConfigError   invalid settings of a segment
├── TuneError            a recall target that could not be confirmed
└── SegmentError         damaged, altered or missing files of a segment
    └── SegmentFormatError  intact, of another format
"""

import reprlib

from searchengine.errors import SearchEngineError

_REPR = reprlib.Repr()
_REPR.maxlevel, _REPR.maxstring, _REPR.maxother = 2, 60, 60
_MAX_LENGTH = 300


def shown(value: object) -> str:
    """A value for a message: printable, shortened where it is long or deep."""
    return shortened(_REPR.repr(value))


def shortened(text: str) -> str:
    """A foreign text for a message: one line, printable, the middle left out if it is long."""
    if len(text) > _MAX_LENGTH:
        text = f"{text[: _MAX_LENGTH // 2]} … {text[-_MAX_LENGTH // 2 :]}"
    return "".join(c if c.isprintable() else " " if c.isspace() else ascii(c)[1:-1] for c in text)


class IndexerError(SearchEngineError):
    """Base of every error this package raises on purpose."""


class VectorError(IndexerError):
    """Vectors, queries or row numbers that cannot be indexed or searched."""


class SegmentConfigError(IndexerError):
    """A segment setting outside its range, or one that does not fit the vectors."""


class TuneError(IndexerError):
    """A goal outside its range, too few queries, or a target that no config was shown to meet."""


class SegmentError(IndexerError):
    """A segment folder that is missing, damaged, altered or closed."""


class SegmentFormatError(SegmentError):
    """A segment that another version wrote: nothing is damaged."""
