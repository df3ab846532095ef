"""Documents with scores: Scored, and WordScores by the words of a question."""

from collections.abc import Iterable

Scored = list[tuple[int, float]]
"""(document id, score), by (−score, id)."""
EXPECTED = 4
"""Words of a question, those that tell most, that the best document can be expected to have."""


class WordScores(list[tuple[int, float]]):
    """The documents that have words of a question, with their BM25: a Scored.

    Attributes:
        most: what the EXPECTED most telling words of the question give a document at most, on the
            same scale; 0: unknown.
    """

    __slots__ = ("most",)

    def __init__(self, scored: Iterable[tuple[int, float]] = (), most: float = 0.0) -> None:
        super().__init__(scored)
        self.most = most
