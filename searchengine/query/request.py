"""What is asked of a collection, checked."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Self, TypedDict

from searchengine.errors import QueryError
from searchengine.storage.filters.language import parse


class Mode(StrEnum):
    """What documents are ranked by."""

    VECTOR = "vector"
    TEXT = "text"
    HYBRID = "hybrid"


class Options(TypedDict, total=False):
    """The keywords of SearchEngine.search; Query says what they mean."""

    shortlist: int | None
    where: str | None
    exact: bool
    mode: Mode | str
    diversity: float
    group_by: str | None
    layers: int | None


@dataclass(frozen=True, slots=True)
class Query:
    """How to search.

    Attributes:
        k: how many documents, at least 1; fewer come only if fewer match.
        shortlist: candidates of each segment scored at full width; None: the segment's own number.
        where: a filter on metadata, see searchengine.storage.filters.language.
        exact: prove that there is nothing nearer. Takes no shortlist, and vectors alone.
        mode: "vector": by meaning; "text": by words (BM25); "hybrid": by both, see
            searchengine.storage.documents.lexical.
        diversity: 0 ranks by the score alone, 1 by how little a hit resembles those before it
            (maximal marginal relevance).
        group_by: a metadata field, of each value of which only the best document is shown; those
            without it stand for themselves.
        layers: how many layers of the encoder's network questions pass, for encoders trained so
            (2-D Matryoshka); None: all. Documents stay as they were encoded.

    Raises QueryError.
    """

    k: int = 10
    shortlist: int | None = None
    where: str | None = None
    exact: bool = False
    mode: Mode | str = Mode.VECTOR
    diversity: float = 0.0
    group_by: str | None = None
    layers: int | None = None

    @classmethod
    def of(cls, k: int, options: Options) -> Self:
        """The query for the keywords of a search. Raises QueryError on one that does not exist."""
        valid = Options.__annotations__
        for name in options:
            if name not in valid:
                raise QueryError(
                    f"a search has no option {name!r}; its options are k, {', '.join(valid)}"
                )
        return cls(k, **options)

    def __post_init__(self) -> None:
        self._check_counts()
        for name, text in (("where", self.where), ("group_by", self.group_by)):
            if text is not None and not isinstance(text, str):
                raise QueryError(f"{name} must be a text or None, got {text!r}")
        if self.mode not in list(Mode):
            raise QueryError(f"mode must be one of {', '.join(Mode)}, got {self.mode!r}")
        if type(self.diversity) not in (int, float) or not 0 <= self.diversity <= 1:
            raise QueryError(f"diversity must be a number from 0 to 1, got {self.diversity!r}")
        if self.exact:
            self._check_exact()
        if self.where is not None:
            parse(self.where)  # a mistake is told even where there is nothing to search

    def _check_counts(self) -> None:
        optional = {"shortlist": self.shortlist, "layers": self.layers}
        given = {name: value for name, value in optional.items() if value is not None}
        for name, value in {"k": self.k, **given}.items():
            if type(value) is not int or value < 1:
                raise QueryError(f"{name} must be a whole number of at least 1, got {value!r}")
        if self.layers is not None and self.mode == Mode.TEXT:
            raise QueryError("the mode text encodes no question; leave layers out")

    def _check_exact(self) -> None:
        if self.shortlist is not None:
            raise QueryError(
                f"exact search takes no shortlist, got {self.shortlist}; leave one of the two out"
            )
        if self.mode != Mode.VECTOR:
            raise QueryError(f"exact search ranks by vectors alone, got the mode {self.mode}")
