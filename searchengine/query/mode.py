"""Search modes, apart from requests so that help texts need no numpy."""

from enum import StrEnum


class Mode(StrEnum):
    """How documents are ranked: by vectors, by words, or by both."""

    VECTOR = "vector"
    TEXT = "text"
    HYBRID = "hybrid"
