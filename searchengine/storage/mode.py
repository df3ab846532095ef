"""Search modes, apart from requests so that help texts need no numpy."""

from enum import StrEnum


class Mode(StrEnum):
    """How documents are ranked: by vectors, by words, or by both.

    `auto` is the mode that the collection stores: vectors and words, unless it has no words or an
    encoder that does not read its texts. Vectors in place of a question, exact search and `similar`
    are by vectors. A collection of an older version stores none: by vectors.
    """

    AUTO = "auto"
    VECTOR = "vector"
    TEXT = "text"
    HYBRID = "hybrid"
