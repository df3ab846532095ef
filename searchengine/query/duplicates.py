"""Documents by the means of their passages: near duplicates, and the vector of several."""

from collections.abc import Callable, Sequence, Set
from typing import Any, NamedTuple

import numpy as np

from searchengine.backends import entries
from searchengine.backends.contract import Snapshot
from searchengine.backends.entries import ids_of, keys_of
from searchengine.errors import QueryError, UnknownKey
from searchengine.indexer.arrays import Floats
from searchengine.indexer.search.near_duplicates import leaders

_READ = 2000  # documents whose passages are read at a time
_CANCELLED = 1e-3  # length of a mean that says nothing


class Duplicates(NamedTuple):
    """A group of documents that are nearly the same.

    Attributes:
        keys: of the documents, in the order in which they were first added.
        cosines: of each of them to the first.
    """

    keys: tuple[str, ...]
    cosines: tuple[float, ...]

    def as_dict(self) -> dict[str, Any]:
        """The fields, for JSON."""
        return self._asdict()


def duplicates(
    snapshot: Snapshot, above: float, where: str | None, progress: Callable[[int, int], None] | None
) -> list[Duplicates]:
    """The groups of at least two documents, by their first documents.

    `progress`: called with the number of documents just compared, and in all. Keeps a vector of
    each document in memory. Raises QueryError for what is no cosine above 0.
    """
    if type(above) not in (int, float) or not 0 < above <= 1:
        raise QueryError(f"above must be a cosine above 0 and at most 1, got {above!r}")
    ids = [i for block in entries.ids(snapshot, where) for i in block.tolist()]
    blocks = [means(snapshot, ids[start : start + _READ]) for start in range(0, len(ids), _READ)]
    if not blocks:
        return []
    leader, cosines = leaders(
        np.concatenate(blocks), above, lambda done: progress and progress(done, len(ids))
    )
    groups: dict[int, list[int]] = {}
    for position in np.flatnonzero(leader != np.arange(len(ids))).tolist():
        first = int(leader[position])
        groups.setdefault(first, [first]).append(position)
    found = []
    for _, members in sorted(groups.items()):
        keys = keys_of(snapshot, (ids[position] for position in members))
        found.append(Duplicates(tuple(keys), tuple(cosines[members].clip(-1, 1).tolist())))
    return found


def means(snapshot: Snapshot, ids: Sequence[int]) -> Floats:
    """The mean of the passages of each document, as a unit row, (n, D); zeros if it has none."""
    sums = np.zeros((len(ids), snapshot.settings["encoder"]["dim"]), np.float32)
    if (passages := snapshot.passages(of=ids)).ids.size:
        place = {document: position for position, document in enumerate(ids)}
        places = [place[document] for document in passages.documents.tolist()]
        np.add.at(sums, places, snapshot.vectors(passages.ids))
    lengths = np.linalg.norm(sums, axis=1, keepdims=True)
    sums /= np.where(lengths > 0, lengths, np.float32(1))
    return sums


def mean_of(snapshot: Snapshot, keys: Sequence[str], path: object) -> tuple[Set[int], Floats]:
    """The ids of the documents of these keys, and the mean of their vectors, (1, D).

    `path`: names the collection. Raises QueryError for no key, an unknown key, a document without a
    vector, and documents that cancel each other.
    """
    if not keys:
        raise QueryError("similar takes the key of a document, or several keys, got none")
    stored = ids_of(snapshot, names := list(dict.fromkeys(keys)))
    if missing := [name for name in names if name not in stored]:
        raise UnknownKey(f"{path} has no document {missing[0]!r:.80}")
    ids = [stored[name] for name in names]
    vectors = means(snapshot, ids)
    for name, vector in zip(names, vectors, strict=True):
        if not vector.any():
            raise QueryError(
                f"the document {name!r} has no vector; search for its words instead: mode='text'"
            )
    mean: Floats = vectors.mean(axis=0, keepdims=True)
    if np.linalg.norm(mean) < _CANCELLED:
        raise QueryError("the vectors of these documents cancel each other; name others")
    return {*ids}, mean
