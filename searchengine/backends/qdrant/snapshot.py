"""A collection in Qdrant as one query reads it, searched coarse to fine in one request.

    prefetch    the points that match by the cosine of the prefix, up to the shortlist of a shard
    query       those by the full-width cosine

Qdrant rounds a question to float16 and scores a document by its best passage. So a few more
documents than asked for are fetched with their vectors, and the cosines are computed here.
"""

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from searchengine.backends.folder.documents.scored import WordScores
from searchengine.backends.folder.documents.tables import Ids
from searchengine.backends.qdrant.connections import Server
from searchengine.backends.qdrant.filters import condition
from searchengine.backends.qdrant.points import COARSE, FULL, PASSAGE_BITS, Stored
from searchengine.backends.qdrant.tables import QdrantTables
from searchengine.backends.stored import shortlist as shortlist_of
from searchengine.errors import BackendUnavailable, QueryError
from searchengine.indexer.arrays import Floats, prefix, unit_rows
from searchengine.indexer.search.cascade import SearchResult
from searchengine.indexer.search.rotating import Rotation

if TYPE_CHECKING:
    from qdrant_client import models

_SPREAD = 3.5
"""Standard deviations by which a shard's part of the shortlist may exceed the average."""
_ROUNDING = 1e-3  # between a cosine and what the server computes from a question in float16
_TIES = 1000  # documents of nearly equal score that are fetched beyond k
_MANY = 1 << 40  # at least the number of passages, which is not counted


class QdrantSnapshot:
    """A collection as one query reads it. Attributes: those of backends.contract.Snapshot."""

    def __init__(
        self,
        server: Server,
        settings: Mapping[str, Any],
        commit: str,
        rotation: Rotation | None,
    ) -> None:
        self.path = server.name
        self.settings = settings
        self.commit_id = commit
        self._server = server
        self._rotation = rotation
        self._dim = int(settings["encoder"]["dim"])
        self._prefix = int(settings["index"]["prefix"])
        self.tables = QdrantTables(server, self._dim)

    @property
    def store(self) -> QdrantTables:
        """The tables."""
        return self.tables

    @property
    def rows(self) -> int:
        """More than the number of passages, and 0 if there are none; counting takes long."""
        points, _ = self._server.call(
            "scroll", scroll_filter=_searchable(None), limit=1, with_payload=False
        )
        return _MANY if points else 0

    @property
    def cuts(self) -> bool:
        """Whether a document may have several passages."""
        return self.settings.get("passages") is not None

    @property
    def unrelated(self) -> float:
        """0: without words, nothing is fused."""
        return 0.0

    @property
    def shortlist(self) -> int:
        """The configured shortlist, or the one that the copied collection measured."""
        return shortlist_of(self.settings)

    def search(
        self,
        queries: Floats,
        k: int,
        *,
        shortlist: int | None = None,
        where: str | None = None,
        phrases: tuple[str, ...] = (),
        exact: bool = False,
    ) -> SearchResult:
        """Passage ids (as `rows`) and full-width cosines, both (q, k), by (−score, id)."""
        if phrases:
            raise self._no_words()
        size = max(k, shortlist or self.shortlist)
        searching = _Searching(self._server, _searchable(where), self._prefix, size)
        unit = unit_rows(queries, dim=self._dim)
        unit = unit if self._rotation is None else self._rotation.apply(unit)
        everything = exact or searching.is_short()
        rows = np.full((len(queries), k), -1, np.int64)
        scores = np.full((len(queries), k), -np.inf, np.float32)
        for i, points in enumerate(searching.best(unit, k, everything)):
            found = self._scored(unit[i], self.tables.remember(points))[:k]
            rows[i, : len(found)] = [row for _, row in found]
            scores[i, : len(found)] = [-score for score, _ in found]
        return SearchResult(rows, scores, exact)

    def cosines(self, query: Floats, passages: Ids) -> SearchResult:
        """All these passages (n,) by full-width cosine to a query (D,), as `search`: (1, n)."""
        unit = unit_rows(query[None], dim=self._dim)
        unit = unit if self._rotation is None else self._rotation.apply(unit)
        numbers = {int(i) >> PASSAGE_BITS for i in passages}
        stored = self.tables.numbered(numbers, vectors=True)
        wanted = set(passages.tolist())
        found = [each for each in self._scored(unit[0], stored.values()) if each[1] in wanted]
        rows = np.array([[row for _, row in found]], np.int64)
        return SearchResult(rows, np.array([[-score for score, _ in found]], np.float32))

    def vectors(self, passages: Ids) -> Floats:
        """The vectors of passages in the encoder's basis: ids (n,) to (n, D) float32."""
        stored = self.tables.numbered((int(i) >> PASSAGE_BITS for i in passages), vectors=True)
        mask, rows = (1 << PASSAGE_BITS) - 1, np.empty((len(passages), self._dim), np.float32)
        for row, i in zip(rows, passages.tolist(), strict=True):
            document = stored.get(i >> PASSAGE_BITS)
            if document is None or document.vectors is None:
                raise BackendUnavailable(
                    f"{self.path}: a document was deleted while it was read; try again"
                )
            row[:] = document.vectors[i & mask]
        return rows if self._rotation is None else self._rotation.undo(rows)

    def by_words(
        self,
        question: str,
        k: int,
        where: str | None = None,
        *,
        required: tuple[str, ...] = (),
        as_you_type: bool = False,
    ) -> WordScores:
        """Raise QueryError: Qdrant does not rank by words here."""
        raise self._no_words()

    def _no_words(self) -> QueryError:
        return QueryError(
            f"{self.path} has no index of words, because it is in Qdrant; search by vectors: "
            "mode='vector'"
        )

    def _scored(self, query: Floats, stored: Iterable[Stored]) -> list[tuple[float, int]]:
        """(−cosine, id) of all passages of documents, sorted."""
        documents = [each for each in stored if each.vectors is not None and len(each.vectors)]
        if not documents:
            return []
        rows = np.concatenate([np.asarray(each.vectors) for each in documents]).astype(np.float64)
        # In float64, so that equal rows have equal scores wherever they stand.
        scores = (rows @ query.astype(np.float64)).astype(np.float32).tolist()
        ids = [passage.id for each in documents for passage in each.passages]
        return sorted((-score, i) for score, i in zip(scores, ids, strict=True))


class _Searching:
    """Searches of one kind: the same filter and shortlist."""

    def __init__(self, server: Server, holds: "models.Filter", width: int, size: int) -> None:
        self._server = server
        self._holds = holds
        self._width = width
        self._size = size
        info = server.call("get_collection")
        self._shards = int(info.config.params.shard_number or 1)
        self._points = int(info.points_count or 0)
        self._matching: int | None = None

    @property
    def matching(self) -> int:
        """The number of documents that match."""
        if self._matching is None:
            found = self._server.call("count", count_filter=self._holds, exact=True)
            self._matching = int(found.count)
        return self._matching

    def is_short(self) -> bool:
        """Whether no more documents match than the shortlist holds."""
        filtered = len(self._holds.must or []) > 1  # type: ignore[arg-type]
        # The number of points is an estimate, which exact counting makes sure of where it matters.
        if not filtered and self._points > 4 * self._size + 1000:
            return False
        return self.matching <= self._size

    def best(self, queries: Floats, k: int, everything: bool) -> list[list[Any]]:
        """For each query (D,) the points that can hold its k best passages, with their vectors."""
        results: list[list[Any]] = [[] for _ in queries]
        pending, limit = list(range(len(queries))), k + 1
        while pending:
            found = self._query(queries[pending], limit, everything)
            if not everything:
                # A graph may end too soon behind a filter: then compare all that match.
                short = [i for i, points in enumerate(found) if len(points) < limit]
                if short and any(len(found[i]) < min(limit, self.matching) for i in short):
                    again = self._query(queries[[pending[i] for i in short]], limit, True)
                    for i, points in zip(short, again, strict=True):
                        found[i] = points
            for i, points in zip(pending, found, strict=True):
                results[i] = points
            pending = [i for i in pending if _undecided(results[i], k, limit)]
            limit = 2 * limit
            if limit > k + 1 + _TIES:
                break
        return results

    def _query(self, queries: Floats, limit: int, everything: bool) -> list[list[Any]]:
        from qdrant_client import models

        heads = prefix(queries, self._width)
        exact = models.SearchParams(exact=True)
        size = max(limit, shard_shortlist(max(limit, self._size), self._shards))
        near = models.SearchParams(hnsw_ef=size)
        requests = [
            models.QueryRequest(
                query=[query],
                using=FULL,
                # Exact: else a server with many shards asks each of them for less than `limit`.
                params=exact,
                limit=limit,
                with_payload=True,
                with_vector=[FULL],
                **(
                    {"filter": self._holds}
                    if everything
                    else {
                        "prefetch": models.Prefetch(
                            query=[head], using=COARSE, filter=self._holds, limit=size, params=near
                        )
                    }
                ),
            )
            for query, head in zip(queries.tolist(), heads.tolist(), strict=True)
        ]
        answers = self._server.call("query_batch_points", requests=requests)
        return [list(answer.points) for answer in answers]


def shard_shortlist(size: int, shards: int) -> int:
    """The part of a shortlist that each shard ranks, so that the best `size` are among them.

    The best rows fall on shards at random, so their number on one is binomial; the part is its
    mean and some standard deviations. All shards together rank at least `size`.
    """
    share = size / shards
    return min(size, math.ceil(share + _SPREAD * math.sqrt(share * (1 - 1 / shards))))


def _undecided(points: list[Any], k: int, limit: int) -> bool:
    """Whether a document that was not returned can be as good as the k-th."""
    return len(points) == limit and points[-1].score > points[k - 1].score - 2 * _ROUNDING


def _searchable(where: str | None) -> "models.Filter":
    """The documents with passages that match a filter."""
    from qdrant_client import models

    passages = models.FieldCondition(key="size", range=models.Range(gte=1))
    holds = condition(where)
    return models.Filter(must=[passages] if holds is None else [passages, holds])
