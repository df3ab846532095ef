"""Feedback: documents named as examples move the vector of a question (Rocchio).

    q / |q| + LIKED · mean of `like` − UNLIKED · mean of `unlike`

of unit vectors; that of a document is the mean of its passages. Without a question, the first term
is left out. The words of the question stay as they are, and beside a vector of the length n they
count as beside n vectors: with a question alone n is 1. Chosen in docs/quality.md.

Rocchio, "Relevance Feedback in Information Retrieval", 1971.
"""

from collections.abc import Sequence

import numpy as np

from searchengine.backends.contract import Snapshot
from searchengine.backends.mode import Mode
from searchengine.corpus.documents import Key
from searchengine.errors import QueryError
from searchengine.indexer.arrays import Floats
from searchengine.query.duplicates import means
from searchengine.query.request import Query

LIKED, UNLIKED = 0.75, 0.1
"""Weights of the mean of the examples, beside 1 of the question."""
_CANCELLED = 1e-3  # length of a vector that says nothing


def without_question(query: Query) -> Query:
    """The query for documents like the examples alone. Raises QueryError for what needs a text."""
    if not query.like:
        raise QueryError("a search needs a question, or documents to find others like: like=[keys]")
    query = query.by(Mode.VECTOR)
    if query.mode != Mode.VECTOR:
        raise QueryError(
            f"a search without a question needs the mode vector, got {query.mode}; leave mode out"
        )
    for name in ("layers", "as_you_type", "cross_encoder"):
        if getattr(query, name):
            raise QueryError(f"{name} needs a question; leave {name} out")
    return query


def examples(snapshot: Snapshot, query: Query) -> frozenset[int]:
    """The ids of the documents that are named, which are not found. Raises QueryError."""
    return frozenset(_ids(snapshot, [*query.like, *query.unlike]))


def moved(snapshot: Snapshot, query: Query, vectors: Floats | None) -> Floats | None:
    """The vectors of questions (q, D), moved by the examples; of none, those alone, (1, D).

    Raises QueryError for an unknown key, a document without a vector, and examples that leave
    nothing of a question.
    """
    if not query.like and not query.unlike:
        return vectors
    result: Floats = np.zeros((1, 1), np.float32)
    if vectors is not None:
        result = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    for keys, weight in ((query.like, LIKED), (query.unlike, -UNLIKED)):
        if keys:
            result = result + np.float32(weight) * _means(snapshot, keys).mean(axis=0)
    if (np.linalg.norm(result, axis=1) < _CANCELLED).any():
        raise QueryError("like and unlike leave nothing of the question; name other documents")
    return result


def weight_beside(vector: Floats, weight: float) -> float:
    """The weight of the cosine to a moved vector (D,), if that of an unmoved one is `weight`."""
    share = weight * float(np.linalg.norm(vector))
    return share / (share + 1 - weight)


def _means(snapshot: Snapshot, keys: Sequence[Key]) -> Floats:
    """The unit vector of each document, (n, D)."""
    vectors = means(snapshot, _ids(snapshot, keys))
    for key, vector in zip(keys, vectors, strict=True):
        if not vector.any():
            raise QueryError(
                f"the document {key!r} has no vector; search for its words instead: mode='text'"
            )
    return vectors


def _ids(snapshot: Snapshot, keys: Sequence[Key]) -> list[int]:
    names = list(map(str, keys))  # which a Query has checked
    stored = snapshot.store.ids_of(names)
    for name in names:
        if name not in stored:
            raise QueryError(f"{snapshot.path} has no document {name!r:.80}")
    return [stored[name] for name in names]
