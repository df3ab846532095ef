"""Documents by the cosine of their best passage: parts of the order of a question."""

from collections.abc import Hashable, Mapping, Sequence, Set
from itertools import islice
from math import inf
from typing import NamedTuple

import numpy as np

from searchengine.backends import limits
from searchengine.backends.contract import Place, Snapshot
from searchengine.backends.mode import Mode
from searchengine.indexer.arrays import Floats, RowNumbers
from searchengine.query.paging import MIN_FIRST, Label, Ranked, part_size
from searchengine.query.request import Query

_DECIMALS = 6
"""Of a cosine in the mode hybrid: equal texts must tie, and the last bits depend on which rows are
compared together."""
_MAX_READ = 16384
"""Most passages of one question that are in memory at once while groups are sought among them."""


class Nearest(NamedTuple):
    """A part of the documents near a vector.

    Attributes:
        documents: the first ones of the part, best first, and those as near as the last one; all
            of them, if fewer than asked for.
        rows, cosines: all passages in the part, (n,) int64 and float32, best first.
        last: there are no more rows.
        exact: as in Hits.
    """

    documents: list[Ranked]
    rows: RowNumbers
    cosines: Floats
    last: bool
    exact: bool


def nearest(
    snapshot: Snapshot,
    query: Query,
    vectors: Floats,
    number: int,
    depth: int,
    *,
    without: Set[int] = frozenset(),
    texts: tuple[str, ...] = (),
) -> list[Nearest]:
    """Part `number` of the documents for each vector (q, D), each by its best passage.

    Args:
        snapshot: the commit to search.
        query: the options.
        vectors: (q, D) float32.
        number: of the part.
        depth: documents that are enough.
        without: documents to leave out.
        texts: phrases that the documents must contain.
    """
    if not snapshot.at_most(1):
        empty = np.zeros(0, np.int64), np.zeros(0, np.float32)
        return [Nearest([], *empty, last=True, exact=True)] * len(vectors)
    label, several = labels(snapshot, query)
    enough = (2 * depth if several else depth) + len(without)
    # The true order does not depend on how many rows are asked for.
    wanted = _wanted(snapshot, query, number, enough if query.exact else None)
    count = snapshot.at_most(wanted)
    result = snapshot.search(
        vectors,
        count,
        shortlist=query.shortlist,
        where=query.where,
        phrases=texts,
        exact=query.exact,
        shown=enough,
    )
    # Stored rows are rounded, so a computed cosine can exceed 1 slightly. The order stays that of
    # the computed scores.
    cosines = result.scores.clip(-1, 1)
    if query.mode == Mode.HYBRID:
        cosines = cosines.round(_DECIMALS)
    valid = (result.rows >= 0).sum(axis=1).tolist()
    no_more = count < wanted or snapshot.at_most(count + 1) == count
    found: list[dict[Hashable, Ranked]] = [{} for _ in vectors]
    lowest = [inf] * len(vectors)  # cosine of the last document found
    pending, complete, start = list(range(len(vectors))), set[int](), 0
    while pending:
        limits.check()
        rows = [result.rows[i, start : min(enough, valid[i])] for i in pending]
        ids = np.concatenate(rows)
        places = map(Place, ids.tolist(), snapshot.documents_of(ids))
        read = [list(islice(places, len(group))) for group in rows]
        named = label({passage.document for group in read for passage in group})
        for i, group in zip(pending, read, strict=True):
            scores = cosines[i, start : start + len(group)].tolist()
            for passage, cosine in zip(group, scores, strict=True):
                if len(found[i]) >= depth and cosine < lowest[i]:
                    complete.add(i)
                    break
                if passage.document not in without:
                    ranked = Ranked(cosine, passage, {"vector": cosine})
                    if found[i].setdefault(named[passage.document], ranked) is ranked:
                        lowest[i] = cosine
        pending = [i for i in pending if i not in complete and enough < valid[i]]
        start, enough = enough, min(4 * enough, enough + _MAX_READ)
    return [
        Nearest(
            list(found[i].values()),
            result.rows[i, : valid[i]],
            cosines[i, : valid[i]],
            last=valid[i] < count or no_more,
            exact=result.exact,
        )
        for i in range(len(vectors))
    ]


def rows_of_part(snapshot: Snapshot, query: Query, number: int) -> int:
    """The rows that a part compares at full width."""
    return snapshot.at_most(_wanted(snapshot, query, number, None))


def _wanted(snapshot: Snapshot, query: Query, number: int, enough: int | None) -> int:
    """As rows_of_part, if there are as many. All of a given shortlist: no funnel narrows it."""
    first = enough or query.shortlist or snapshot.shortlist
    return part_size(max(MIN_FIRST, first), number)


def labels(snapshot: Snapshot, query: Query) -> tuple[Label, bool]:
    """The labels of documents, and whether several passages may have one label."""
    if query.group_by is None:
        return lambda documents: {i: i for i in documents}, snapshot.cuts
    field = query.group_by
    return lambda documents: snapshot.store.values(documents, field), True


def cosines_of(
    snapshot: Snapshot,
    documents: Sequence[int],
    first: Mapping[int, int],
    vector: Floats,
    by_vector: Nearest,
) -> Mapping[int, tuple[float, Place]]:
    """Documents with vectors: the highest cosine to a vector (D,), and the passage that has it.

    Cosines that `by_vector` has are taken from there: computed again they could differ in the last
    bit, and so could the order of documents. `documents`, `first`: as Snapshot.passages_of.
    """
    passages = snapshot.passages_of(documents, first)
    best: dict[int, tuple[float, Place]] = {}

    def add(rows: RowNumbers, cosines: Floats) -> None:
        for row, cosine in zip(rows.tolist(), cosines.tolist(), strict=True):
            if (document := passages.get(row)) is not None:
                best.setdefault(document, (cosine, Place(row, document)))

    add(by_vector.rows, by_vector.cosines)
    missing = [row for row, document in passages.items() if document not in best]
    if missing:
        result = snapshot.cosines(vector, np.array(missing, np.int64))
        add(result.rows[0], result.scores[0].clip(-1, 1).round(_DECIMALS))
    return best
