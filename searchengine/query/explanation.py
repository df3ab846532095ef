"""Why a search finds a document or not: its ranks, and the verdict of the filter."""

from dataclasses import asdict, dataclass, replace
from typing import Any

from searchengine.backends.contract import Snapshot
from searchengine.backends.entries import ids_of
from searchengine.backends.mode import Mode
from searchengine.errors import QueryError
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
        matches: whether the filter holds for it; None: there is no filter.
        vector: its rank by the full-width cosine of its best passage, among all that match.
        words: its rank by BM25, among all that match.
        shortlist: the best rank of its passages by the prefix, in their segments; None too where
            all passages are compared at full width.
        fused: its rank in the mode of the search, before group_by, min_score and rerank.
    """

    key: str
    rank: int | None = None
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
        if self.matches is False:
            return "Not found: the filter does not hold for it."
        names = {"fused": "search", "vector": "vectors", "words": "words", "shortlist": "prefix"}
        ranks = [(getattr(self, field), name) for field, name in names.items()]
        listed = [f"{rank:,} by {name}" for rank, name in ranks if rank]
        verdict = f"Found at rank {self.rank:,}" if self.rank else "Not found"
        return f"{verdict}: rank {', '.join(listed)}." if listed else f"{verdict}: it has no rank."


def explain(snapshot: Snapshot, query: Query, key: str, question: Question) -> Explanation:
    """Where a document ranks in a search. `query`: with the mode to use. Raises QueryError."""
    where = query.where
    if (document := ids_of(snapshot, [key]).get(key)) is None:
        raise QueryError(f"no document has the key {key!r:.80}; refresh shows what was added since")
    if where is not None and document not in snapshot.ids_after(document - 1, where, 1):
        return Explanation(key, matches=False)

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
    return Explanation(key, at and at + query.offset, matches, **ranks)
