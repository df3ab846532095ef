"""Search modes, apart from requests so that help texts need no numpy."""

from enum import StrEnum


class Mode(StrEnum):
    """What documents are ranked by."""

    VECTOR = "vector"
    TEXT = "text"
    HYBRID = "hybrid"
