"""The result of a search: Hit, Hits of one question, HitsBatch of many."""

import json
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from importlib import import_module
from itertools import islice, pairwise
from typing import TYPE_CHECKING, Any, NoReturn, Self, SupportsIndex, overload

from searchengine.backends.listing import Counts
from searchengine.corpus.formats.kinds import heading_at, headings_of
from searchengine.corpus.notebook import paragraph, table
from searchengine.query.snippets import best_section, matched_words, snippet

if TYPE_CHECKING:
    import pandas
    import pyarrow


@dataclass(frozen=True, slots=True)
class Hit:
    """A document found.

    Attributes:
        score: hits are sorted by it, in parts (searchengine.query.ranking). By vectors, the
            full-width cosine of the best passage, between −1 and 1; by words, BM25; by both, a
            weighted sum of the cosine, counted from that of unrelated passages, and of BM25 as a
            share of what the question could give: at most 1 (searchengine.query.fusion). Of the
            candidates of `rerank`, its number.
        key, title, text, metadata: the document.
        start, end: its best passage, as character offsets into the text.
        question: the text of the question, with the words of its synonyms; empty for a vector.
        scores: what `score` is made of: the cosine as "vector", BM25 as "text". After `rerank`
            its number as "rerank" too, and the score before under its mode.
    """

    score: float
    key: str
    title: str
    text: str
    metadata: Mapping[str, Any]
    start: int
    end: int
    question: str = field(default="", repr=False)
    scores: Mapping[str, float] = field(default_factory=dict)

    def __getitem__(self, name: object) -> NoReturn:
        raise TypeError("a Hit has attributes: hit.key, hit.text; hit.as_dict() is a dict of them")

    @property
    def passage(self) -> str:
        """The text of the best passage."""
        return self.text[self.start : self.end]

    @property
    def snippet(self) -> str:
        """The part of the passage with most words of the question; code keeps its lines."""
        return snippet(self.text, self.question, self.start, self.end)

    @property
    def heading(self) -> str:
        """The headings that the snippet is under, the highest first: "Whales > Sleep"; or "".

        They come from the metadata field `headings`, which documents of files have.
        """
        headings = headings_of(self.metadata)
        if not headings:
            return ""
        bounds = [heading.start for heading in headings]
        place = best_section(self.text, self.question, self.start, self.end, bounds)
        return heading_at(headings, place)

    @property
    def highlights(self) -> list[str]:
        """The words of title and snippet that the question asks for, to mark them; lower case.

        Of Korean, and of scripts without spaces, parts of words: two letters or three.
        """
        return matched_words(self.title, self.snippet, self.question)

    def as_dict(self) -> dict[str, Any]:
        """The fields to show, for JSON."""
        snippet = self.snippet  # which the highlights are of
        computed = {
            "snippet": snippet,
            "highlights": matched_words(self.title, snippet, self.question),
        }
        return {
            name: computed[name] if name in computed else getattr(self, name) for name in _COLUMNS
        }

    def _repr_html_(self) -> str:
        """Shown by notebooks."""
        return Hits([self])._repr_html_()

    def __str__(self) -> str:
        below = self.heading
        if below and self.title:  # the first heading often is the title
            below = f" > {below}".removeprefix(f" > {self.title}")
        title = f"  {self.title}{below}" if self.title or below else ""
        return f"{_shown(self.score)}  {self.key}{title}\n       {self.snippet}"


@dataclass(frozen=True, slots=True)
class Timing:
    """Wall seconds of the call that answered a question, by stage.

    Attributes:
        encode: from questions to vectors, and the nearest words for those that no document has.
        search: ranking, by vectors and words.
        fetch: reading the documents of the hits, and their order by `rerank`.
        questions: how many questions the call answered together; they share its time.
    """

    encode: float
    search: float
    fetch: float
    questions: int


STAGES = ("encode", "search", "fetch")
"""The fields of Timing that are seconds, in order of time."""


class Hits(list[Hit]):
    """The hits of one question, best first.

    Attributes:
        exact: whether these are certainly the true nearest documents.
        facets: field → value → number of documents that match the filter, most frequent first,
            for the fields in the option `facets`. Of a list each element counts.
        timing: how long the search took; None for results of other calls than a search, such as
            `similar`.
        notes: sentences on why there are no hits: fields of the filter that no document has.
        replaced: unknown words of the question → the words searched for instead.
    """

    __slots__ = ("exact", "facets", "notes", "replaced", "timing")

    def __init__(
        self,
        hits: Iterable[Hit] = (),
        *,
        exact: bool = False,
        facets: Mapping[str, Counts] | None = None,
    ) -> None:
        super().__init__(hits)
        self.exact = exact
        self.facets = {} if facets is None else facets
        self.timing: Timing | None = None
        self.notes: tuple[str, ...] = ()
        self.replaced: Mapping[str, str] = {}

    @overload
    def __getitem__(self, place: SupportsIndex) -> Hit: ...
    @overload
    def __getitem__(self, place: slice) -> Self: ...
    def __getitem__(self, place: SupportsIndex | slice) -> Hit | Self:
        """A hit, or some of the hits as Hits with the same attributes."""
        if not isinstance(place, slice):
            return super().__getitem__(place)
        part = copy(self)
        part[:] = super().__getitem__(place)
        return part

    def to_dicts(self) -> list[dict[str, Any]]:
        """One dict for each hit, as `Hit.as_dict`."""
        return [hit.as_dict() for hit in self]

    def to_pandas(self) -> "pandas.DataFrame":
        """A DataFrame with a row for each hit and a column for each field of `Hit.as_dict`.

        Metadata is one column of dicts, and so are scores; highlights are lists. Raises ImportError
        without pandas.
        """
        return _to_pandas(self.to_dicts(), _COLUMNS)

    def to_arrow(self) -> "pyarrow.Table":
        """A table with a row for each hit and the columns of `to_pandas`; dicts are JSON text.

        Raises ImportError without pyarrow.
        """
        return _to_arrow(self.to_dicts(), _COLUMNS)

    def _repr_html_(self) -> str:
        """Shown by notebooks: a row for each hit, then the most frequent values of each facet."""
        rows = [
            (_shown(hit.score), hit.key, " > ".join(filter(None, (hit.title, hit.heading))),
             hit.snippet, _listed(hit.metadata.items()))
            for hit in self
        ]  # fmt: skip
        shown = table(("score", "key", "title", "snippet", "metadata"), rows, self._caption())
        counted = [(name, _listed(counts.items())) for name, counts in self.facets.items()]
        return shown + (table((), counted, "Documents by value") if counted else "")

    def _caption(self) -> str:
        parts = ["1 hit" if len(self) == 1 else f"{len(self)} hits"]
        if self.exact:
            parts.append("exact")
        if self.timing is not None:
            seconds = sum(getattr(self.timing, name) for name in STAGES)
            parts.append(f"{1e3 * seconds:.1f} ms")
        return ", ".join(parts)


class HitsBatch(list[Hits]):
    """The hits of many questions, in the order of the questions."""

    __slots__ = ()

    def to_dicts(self) -> list[dict[str, Any]]:
        """One dict for each hit of each question; `query` is the number of its question, from 0."""
        return [{"query": i} | hit.as_dict() for i, hits in enumerate(self) for hit in hits]

    def to_pandas(self) -> "pandas.DataFrame":
        """A DataFrame like the one of Hits, with the column `query` in front."""
        return _to_pandas(self.to_dicts(), _BATCH_COLUMNS)

    def to_arrow(self) -> "pyarrow.Table":
        """A table like the one of Hits, with the column `query` in front."""
        return _to_arrow(self.to_dicts(), _BATCH_COLUMNS)

    def _repr_html_(self) -> str:
        """Shown by notebooks: the tables of the first ten questions."""
        shown = [
            paragraph(hits[0].question if hits and hits[0].question else f"query {i}")
            + hits._repr_html_()
            for i, hits in enumerate(self[:_SHOWN])
        ]
        if len(self) > _SHOWN:
            shown.append(paragraph(f"… and {len(self) - _SHOWN} more questions"))
        return "".join(shown)


def timed(batch: Sequence[Hits], times: Sequence[float]) -> HitsBatch:
    """The hits of one call. `times`: its start, and the end of each stage."""
    encode, search, fetch = (end - start for start, end in pairwise(times))
    timing = Timing(encode, search, fetch, len(batch))
    for hits in batch:
        hits.timing = timing
    return HitsBatch(batch)


_COLUMNS = {
    "score": "float64",
    "key": "string",
    "title": "string",
    "text": "string",
    "metadata": "string",
    "start": "int64",
    "end": "int64",
    "snippet": "string",
    "heading": "string",
    "highlights": "string",
    "scores": "string",
}
"""Column → its type in Arrow."""
_SHOWN = 10  # questions of a batch, and fields or values of a cell, that a notebook shows
_BATCH_COLUMNS = {"query": "int64", **_COLUMNS}


def _shown(score: float) -> str:
    """Three decimals; three significant digits of a score below, which would be shown as 0.000."""
    return f"{score:.2e}" if 0 < abs(score) < 1e-3 else f"{score:.3f}"


def _listed(pairs: Iterable[tuple[Any, Any]]) -> str:
    """The first ten names with their values, on one line."""
    named = list(islice(pairs, _SHOWN + 1))
    more = ", …" if len(named) > _SHOWN else ""
    return ", ".join(f"{name}: {value}" for name, value in named[:_SHOWN]) + more


def _to_pandas(rows: list[dict[str, Any]], columns: Mapping[str, str]) -> "pandas.DataFrame":
    pandas = _imported("pandas", "to_pandas")
    return pandas.DataFrame(rows, columns=list(columns))


def _to_arrow(rows: list[dict[str, Any]], columns: Mapping[str, str]) -> "pyarrow.Table":
    pyarrow = _imported("pyarrow", "to_arrow")
    for row in rows:
        for name in ("metadata", "highlights", "scores"):
            row[name] = json.dumps(row[name], ensure_ascii=False)
    schema = pyarrow.schema([(name, getattr(pyarrow, kind)()) for name, kind in columns.items()])
    return pyarrow.Table.from_pylist(rows, schema=schema)


def _imported(name: str, method: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        raise ImportError(f"{method} needs {name}; install it: pip install {name}") from error
