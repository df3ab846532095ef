"""The documents and passages of a collection in Qdrant: backends.folder.documents.tables.

Qdrant has no snapshots. What was read of a document is remembered, so that a query shows each
document as it was at one moment, whatever becomes of it meanwhile.
"""

import re
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from searchengine.backends.folder.documents.changes import Known, as_json
from searchengine.backends.folder.documents.tables import Ids, Passage
from searchengine.backends.folder.filters.parser import field_named
from searchengine.backends.qdrant.connections import Server
from searchengine.backends.qdrant.filters import condition
from searchengine.backends.qdrant.points import FULL, PASSAGE_BITS, Stored, id_of
from searchengine.corpus.documents import Document
from searchengine.errors import BackendUnavailable

if TYPE_CHECKING:
    from qdrant_client import models

_PAGE, _PAGE_OF_VECTORS = 1000, 100  # points in a request
_SIZES = 1 << PASSAGE_BITS  # different numbers of passages


class QdrantTables:
    """The tables, as one snapshot reads them."""

    def __init__(self, server: Server, dim: int) -> None:
        self._server = server
        self._dim = dim
        self._read: dict[int, Stored] = {}

    def remember(self, points: Iterable[Any]) -> list[Stored]:
        """Points as documents; of one that was read before, what was read then."""
        stored = [Stored.of(point, self._dim) for point in points]
        for each in stored:
            before = self._read.setdefault(each.number, each)
            if before.vectors is None and each.vectors is not None:
                if before.payload != each.payload:
                    raise BackendUnavailable(
                        f"{self._server.name}: the document {each.payload['key']!r:.80} was "
                        "changed while it was read; try again"
                    )
                self._read[each.number] = each
        return [self._read[each.number] for each in stored]

    def numbered(self, numbers: Iterable[int], *, vectors: bool = False) -> dict[int, Stored]:
        """The documents with these numbers, those that exist."""
        wanted = list(dict.fromkeys(int(number) for number in numbers))
        missing = [
            number
            for number in wanted
            if (stored := self._read.get(number)) is None or (vectors and stored.vectors is None)
        ]
        from qdrant_client import models

        page = _PAGE_OF_VECTORS if vectors else _PAGE
        for start in range(0, len(missing), page):
            some = models.MatchAny(any=missing[start : start + page])
            holds = models.Filter(must=[models.FieldCondition(key="number", match=some)])
            points, _ = self._server.call(
                "scroll",
                scroll_filter=holds,
                limit=page,
                with_payload=True,
                with_vectors=[FULL] if vectors else False,
            )
            self.remember(points)
        return {number: self._read[number] for number in wanted if number in self._read}

    def keyed(self, keys: Iterable[str], *, vectors: bool = False) -> dict[str, Stored]:
        """Key → document, in the order of the keys, of those that exist."""
        wanted = list(dict.fromkeys(keys))
        found: dict[str, Stored] = {}
        page = _PAGE_OF_VECTORS if vectors else _PAGE
        for start in range(0, len(wanted), page):
            points = self._server.call(
                "retrieve",
                ids=[id_of(key) for key in wanted[start : start + page]],
                with_payload=True,
                with_vectors=[FULL] if vectors else False,
            )
            found |= {stored.payload["key"]: stored for stored in self.remember(points)}
        return {key: found[key] for key in wanted if key in found}

    def passages(self, ids: Iterable[int]) -> list[Passage]:
        """The passages with these ids, in this order."""
        order = [int(i) for i in ids]
        stored = self._all(i >> PASSAGE_BITS for i in order)
        passages = {p.id: p for each in stored.values() for p in each.passages}
        return [passages[i] for i in order]

    def passages_of(self, documents: Iterable[int]) -> list[Passage]:
        """All passages of these documents, by id."""
        stored = self.numbered(documents)
        return [p for number in sorted(stored) for p in stored[number].passages]

    def documents(self, ids: Iterable[int]) -> list[Document]:
        """The documents with these ids, in this order."""
        order = [int(i) for i in ids]
        stored = self._all(order)
        return [stored[i].document for i in order]

    def keys_of(self, ids: Iterable[int]) -> list[str]:
        """The keys of the documents of these ids, in their order."""
        order = [int(i) for i in ids]
        stored = self._all(order)
        return [str(stored[i].payload["key"]) for i in order]

    def ids_of(self, keys: Iterable[str]) -> dict[str, int]:
        """Key → id, for the keys that are stored."""
        return {key: stored.number for key, stored in self.keyed(keys).items()}

    def highest_number(self) -> int:
        """The highest key that is a number of at most 18 digits, −1 if there is none; reads all."""
        highest = after = -1
        while points := self._page(after, None, _PAGE, ["number", "key"]):
            keys = (str(point.payload["key"]) for point in points)
            numbers = (int(key) for key in keys if re.fullmatch("[0-9]{1,18}", key))
            highest = max(highest, *numbers)
            after = points[-1].payload["number"]
        return highest

    def known(self, keys: Iterable[str]) -> dict[str, Known]:
        """Key → stored state, for the keys that are stored."""
        return {key: stored.known for key, stored in self.keyed(keys).items()}

    def ids_after(self, after: int, where: str | None, limit: int) -> Ids:
        """The first ids above `after` of documents that match a filter, ascending, (n,) int64."""
        ids: list[int] = []
        while len(ids) < limit:
            page = min(_PAGE, limit - len(ids))
            points = self._page(after, condition(where), page, ["number"])
            ids += [point.payload["number"] for point in points]
            if len(points) < page:
                break
            after = ids[-1]
        return np.array(ids, np.int64)

    def count(self, where: str | None = None) -> int:
        """The number of documents that match a filter; None: of all."""
        return self.count_matching(documents_only(condition(where)))

    def count_matching(self, holds: "models.Filter") -> int:
        """The number of points that match."""
        return int(self._server.call("count", count_filter=holds, exact=True).count)

    def counts(self) -> tuple[int, int]:
        """The numbers of documents and passages."""
        hits = self._server.call(
            "facet", key="size", facet_filter=documents_only(None), limit=_SIZES, exact=True
        ).hits
        return sum(hit.count for hit in hits), sum(int(hit.value) * hit.count for hit in hits)

    def values(self, documents: Iterable[int], name: str) -> dict[int, Hashable]:
        """Document id → its value of a metadata field, to group by; missing values differ."""
        field = field_named(name)
        return {
            number: _grouped(_lookup(stored.metadata, field), number)
            for number, stored in self.numbered(documents).items()
        }

    def value_counts(self, name: str, where: str | None) -> Sequence[tuple[str, Any, int]]:
        """Kind, value and number of documents, for each value of a field; see Tables."""
        field, counts = field_named(name), Counter[tuple[str, Any]]()
        for metadata in self._metadata(condition(where)):
            value = _lookup(metadata, field)
            items = value if isinstance(value, list) else [] if value is _MISSING else [value]
            counts.update({(_kind(v), v) for v in items if not isinstance(v, list | dict)})
        return [(kind, value, number) for (kind, value), number in counts.items()]

    def _metadata(self, holds: "models.Filter | None") -> Iterator[Any]:
        """The metadata of all documents that match."""
        after = -1
        while points := self._page(after, holds, _PAGE, ["number", "metadata"]):
            yield from (Stored(point.payload).metadata for point in points)
            after = points[-1].payload["number"]

    def _page(
        self, after: int, holds: "models.Filter | None", limit: int, payload: list[str]
    ) -> list[Any]:
        """The first points that match beyond a number, in the order of numbers."""
        from qdrant_client import models

        points, _ = self._server.call(
            "scroll",
            scroll_filter=documents_only(holds, after),
            limit=limit,
            order_by=models.OrderBy(key="number", direction=models.Direction.ASC),
            with_payload=payload,
            with_vectors=False,
        )
        return list(points)

    def _all(self, numbers: Iterable[int]) -> dict[int, Stored]:
        """The documents with these numbers. Raises BackendUnavailable if one is gone."""
        wanted = list(dict.fromkeys(numbers))
        stored = self.numbered(wanted)
        if len(stored) < len(wanted):
            raise BackendUnavailable(
                f"{self._server.name}: a document was deleted while it was read; try again"
            )
        return stored


def documents_only(holds: "models.Filter | None", after: int = -1) -> "models.Filter":
    """A filter that no point meets but documents, with numbers above `after`."""
    from qdrant_client import models

    number = models.FieldCondition(key="number", range=models.Range(gt=after))
    return models.Filter(must=[number] if holds is None else [number, holds])


_MISSING = object()


def _lookup(value: Any, field: Sequence[str]) -> Any:
    for name in field:
        if not isinstance(value, dict) or name not in value:
            return _MISSING
        value = value[name]
    return value


def _grouped(value: Any, number: int) -> Hashable:
    """A value to group by: 1 and 1.0 are one group, 1 and true are two."""
    if value is _MISSING:
        return ("missing", number)
    if isinstance(value, list | dict):
        return ("json", as_json({"": value}))
    return ("number" if _kind(value) in ("integer", "real") else _kind(value), value)


def _kind(value: Any) -> str:
    """The kind of a scalar, as SQLite's json_type names it."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return {str: "text", int: "integer", float: "real"}[type(value)]
