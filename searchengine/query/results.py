"""What the engine answers with."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from searchengine.query.snippets import snippet


@dataclass(frozen=True, slots=True)
class Hit:
    """A document found.

    Attributes:
        score: what hits are sorted by. By vectors the full-width cosine of the best passage,
            between −1 and 1; by words BM25; by both, the fused score.
        key, title, text, metadata: the document.
        start, end: its best passage, as character offsets into the text.
        question: what was asked; empty for a vector.
    """

    score: float
    key: str
    title: str
    text: str
    metadata: Mapping[str, Any]
    start: int
    end: int
    question: str = field(default="", repr=False)

    @property
    def passage(self) -> str:
        """The text of the best passage."""
        return self.text[self.start : self.end]

    @property
    def snippet(self) -> str:
        """The part of the passage that has most words of the question, to show."""
        return snippet(self.text, self.question, self.start, self.end)

    def as_dict(self) -> dict[str, Any]:
        """All there is to show, for JSON."""
        names = ("score", "key", "title", "text", "metadata", "start", "end", "snippet")
        return {name: getattr(self, name) for name in names}

    def __str__(self) -> str:
        return f"{self.score:.3f}  {self.key}  {self.title}\n       {self.snippet}"


class Hits(list[Hit]):
    """The hits of one question, best first.

    Attributes:
        proven: whether these are the true nearest, beyond doubt.
        read: the share of all rows that were read at full width; None where that was not counted.
    """

    __slots__ = ("proven", "read")

    def __init__(
        self, hits: Iterable[Hit] = (), *, proven: bool = False, read: float | None = None
    ) -> None:
        super().__init__(hits)
        self.proven = proven
        self.read = read
