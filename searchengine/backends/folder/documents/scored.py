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
        scale: the BM25 that counts as 1 beside a cosine: the best, or `most` if that is more. So
            the best document has the full share if it has all of these words, and less if it has
            few of them. What phrases add exceeds it.
    """

    __slots__ = ("most", "scale")

    def __init__(
        self,
        scored: Iterable[tuple[int, float]] = (),
        most: float = 0.0,
        scale: float | None = None,
    ) -> None:
        super().__init__(scored)
        self.most = most
        best = self[0][1] if self else 0.0
        self.scale = (max(best, most) or 1.0) if scale is None else scale
