"""The search modes, and the weight of vectors in hybrid. Without numpy, for quick help texts."""

from enum import StrEnum

WEIGHT = 0.6
"""Weight of the cosine in the mode hybrid; BM25 has the rest. Chosen in docs/results.md."""
CHOSEN = "mode_chosen"
"""A setting: a user chose mode or weight for a collection, so languages do not change them."""


class Mode(StrEnum):
    """How documents are ranked: by vectors, by words, or by both.

    `auto` is the mode that the collection stores. ingest chooses one for a collection: vectors and
    words, unless it has no words or an encoder that does not read its texts. Without a stored mode:
    by vectors, and so are vectors in place of a question, exact search and `similar`.
    """

    AUTO = "auto"
    VECTOR = "vector"
    TEXT = "text"
    HYBRID = "hybrid"
