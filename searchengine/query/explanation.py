"""Why a search finds a document or not: its ranks, the verdict of the filter, and one sentence."""

from dataclasses import asdict, dataclass, replace
from typing import Any

from searchengine.backends.contract import Snapshot
from searchengine.backends.entries import ids_of
from searchengine.backends.filters.parser import field_name, parse
from searchengine.backends.filters.tree import fields_of
from searchengine.backends.mode import Mode
from searchengine.query.page import hits, reranked
from searchengine.query.ranking import MAX_DEPTH, rank
from searchengine.query.request import Query, Question


@dataclass(frozen=True, slots=True)
class Explanation:
    """Where a document ranks for a question, and whether a search finds it; a sentence as text.

    Ranks begin with 1; None: the mode has no such rank, or the document has none.

    Attributes:
        key: of the document.
        rank: its rank in the search; None: the search does not find it.
        reason: why it does not find it, else empty.
        matches: whether the filter holds for it; None: there is no filter.
        vector: its rank by the full-width cosine of its best passage, among all that match.
        words: its rank by BM25, among all that match.
        shortlist: the best rank of its passages by the prefix, in their segments; None too where
            all passages are compared at full width.
        fused: its rank in the mode of the search, before group_by, min_score and rerank.
    """

    key: str
    rank: int | None = None
    reason: str = ""
    matches: bool | None = None
    vector: int | None = None
    words: int | None = None
    shortlist: int | None = None
    fused: int | None = None

    @property
    def found(self) -> bool:
        """Whether the search finds it."""
        return self.rank is not None

    def as_dict(self) -> dict[str, Any]:
        """The fields, and the sentence as `text`, for JSON."""
        return {**asdict(self), "text": str(self)}

    def __str__(self) -> str:
        verdict = f"Not found: {self.reason}" if self.reason else f"Found at rank {self.rank:,}"
        ranks = ((self.vector, "vectors"), (self.words, "words"), (self.shortlist, "prefix"))
        listed = ", ".join(f"{rank:,} by {name}" for rank, name in ranks if rank)
        return f"{verdict}{f' (rank {listed})' if listed else ''}."


def explain(snapshot: Snapshot, query: Query, key: str, question: Question) -> Explanation:
    """Why a search finds a document or not. `query`: with the mode to use."""
    where = query.where
    if (document := ids_of(snapshot, [key]).get(key)) is None:
        return Explanation(key, reason="no document has this key")
    if where is not None and document not in snapshot.ids_after(document - 1, where, 1):
        reason = f"the filter {where} does not hold, the document has "
        reason += _values(snapshot, document, where)
        return Explanation(key, reason=reason, matches=False)

    def place(query: Query) -> int | None:
        (ranking,) = rank(snapshot, query.before_rerank, [question])
        found = (ranking.part.documents == document).tolist()
        if query.rerank is not None:
            (page,) = hits(snapshot, query, [question], [ranking])
            found = [hit.key == key for hit in reranked(page, question.text, query)]
        return found.index(True) + 1 if True in found else None

    whole = replace(query, k=MAX_DEPTH, offset=0, group_by=None, min_score=None, rerank=None)
    ranks = {"fused": place(whole)}
    if question.vector is not None:
        nearest = replace(whole, mode=Mode.VECTOR, exact=True, shortlist=None)
        passages = snapshot.passages(of=[document]).ids
        places = snapshot.prefix_ranks(question.vector, passages, where, query.shortlist)
        ranks |= {"vector": place(nearest), "shortlist": min(places, default=None)}
    if query.mode != Mode.VECTOR:
        ranks["words"] = place(replace(whole, mode=Mode.TEXT))
    at, matches = place(query), None if where is None else True
    reason = "" if at else _reason(query, question.text, ranks)
    return Explanation(key, at and at + query.offset, reason, matches, **ranks)


def _reason(query: Query, question: str, ranks: dict[str, int | None]) -> str:
    """Why a stored document that matches the filter is not on the page."""
    place, vector, words = (ranks.get(name) for name in ("fused", "vector", "words"))
    if query.required(question) and words is None:
        return "it lacks a required phrase"
    if place is None:
        return "it has no vector" if query.mode == Mode.VECTOR else "it has no word of the question"
    if not query.offset < place <= query.depth:
        if query.mode == Mode.VECTOR and vector is not None and vector <= query.depth < place:
            return "the shortlist misses it"
        return f"it has rank {place:,}, and {query.offset + 1:,} to {query.depth:,} are shown"
    options = [
        name for name in ("group_by", "min_score", "rerank") if getattr(query, name) is not None
    ]
    return f"{' or '.join(options)} leaves it out"


def _values(snapshot: Snapshot, document: int, where: str) -> str:
    """The values that a document has of the fields of a filter."""
    (stored,) = snapshot.documents([document])
    fields, shown = {**stored.metadata, "_id": stored.key, "title": stored.title}, []
    for path in dict.fromkeys(fields_of(parse(where))):
        value: Any = fields
        for name in path:
            value = value.get(name) if isinstance(value, dict) else None
        named = field_name(path)
        shown.append(f"no {named}" if value is None else f"{named} = {value!r:.60}")
    return ", ".join(shown)
