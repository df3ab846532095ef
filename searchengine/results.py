"""What the engine answers with."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

_SHOWN = 160  # characters of a text in a printed hit


@dataclass(frozen=True, slots=True)
class Hit:
    """A document found; `score` is the full-width cosine, between −1 and 1."""

    score: float
    key: str
    title: str
    text: str
    metadata: Mapping[str, Any]

    def __str__(self) -> str:
        text = " ".join(self.text.split())
        shown = text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"
        return f"{self.score:.3f}  {self.key}  {self.title}\n       {shown}"


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


@dataclass(frozen=True, slots=True)
class Stats:
    """What a collection holds and how it is searched.

    Attributes:
        path, documents, segments: where it is, and how much there is.
        dim: numbers of a vector.
        recipe: how segments are built and searched, see indexer.config.SegmentConfig.
        scanned: segments too small for the recipe's structure, which are flat.
        hot_row: bytes a row that should stay in memory: codes, links and ids of the coarse stage.
        cold_row: bytes a row that may stay on the disk; of both None while there are no rows.
        tuning: what the recipe is founded on, see indexer.tune.Tuning; None if it was not tuned.
        encoder, fingerprint: what made the vectors.
        bytes: of all files below the folder; one that has two names counts once.
    """

    path: str
    documents: int
    segments: int
    dim: int
    recipe: Mapping[str, Any]
    scanned: int
    hot_row: float | None
    cold_row: float | None
    tuning: Mapping[str, Any] | None
    encoder: str | None
    fingerprint: str
    bytes: int
