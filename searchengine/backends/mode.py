"""Search modes and defaults, apart from requests so that help texts need no numpy."""

from enum import StrEnum

WEIGHT = 0.6
"""Weight of the cosine in the mode hybrid; BM25 has the rest. Chosen in docs/results.md."""
CHOSEN = "mode_chosen"
"""The setting that a user has chosen mode or weight: languages do not change them any more."""


class Mode(StrEnum):
    """How documents are ranked: by vectors, by words, or by both.

    `auto` is the mode that the collection stores: vectors and words, unless it has no words or an
    encoder that does not read its texts. Vectors in place of a question, exact search and `similar`
    are by vectors. Without a stored mode: by vectors.
    """

    AUTO = "auto"
    VECTOR = "vector"
    TEXT = "text"
    HYBRID = "hybrid"
