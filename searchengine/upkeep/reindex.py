"""Change the encoder of a collection in a folder, or preview what that would change."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from searchengine.backends.embedded import Embedded
from searchengine.backends.folder.documents.store import Store
from searchengine.encoders.loading import (
    EncoderArgument,
    check_aligned,
    load_built_by,
    load_given,
    title,
)
from searchengine.encoders.of_collection import CollectionEncoder
from searchengine.encoders.protocol import TextEncoder
from searchengine.encoders.questions import QuestionEncoder
from searchengine.errors import CollectionError, QueryError
from searchengine.indexer.building.build import Progress
from searchengine.ingest.passages import PassageConfig
from searchengine.trainer.runtimes.config import RuntimeConfig
from searchengine.upkeep.blocks import Blocks
from searchengine.upkeep.reindexing import Reindexing, current


@dataclass(frozen=True, slots=True)
class Preview:
    """The hits of a question by the present encoder and by the one of a pending reindex.

    Attributes:
        question: the question.
        before, after: keys of the nearest documents, best first. `before` is found by words if the
            collection has no encoder.
    """

    question: str
    before: tuple[str, ...]
    after: tuple[str, ...]

    @property
    def overlap(self) -> int:
        """Number of documents in both."""
        return len(set(self.before) & set(self.after))

    def as_dict(self) -> dict[str, Any]:
        """All of it, for JSON."""
        return asdict(self) | {"overlap": self.overlap}


def reindex(
    collection: Embedded,
    present: CollectionEncoder,
    encoder: EncoderArgument | None,
    passages: PassageConfig | bool | None,
    runtime: RuntimeConfig | None,
    progress: Progress | None,
) -> None:
    """Encode all documents by another encoder, and use it from now on: SearchEngine.reindex.

    `present`: the encoder of the collection, which becomes the other one."""
    chosen = _chosen(collection, encoder, runtime)
    path, wait = collection.path, collection.wait
    if (questions := present.for_questions) is not None:
        identity = {"fingerprint": chosen.fingerprint, "dim": chosen.dim, "source": None}
        check_aligned(questions, identity, f"{path}, reindexed,")
    with Reindexing.opened(path, chosen, passages, wait, progress) as reindexing:
        reindexing.encode()
        expected = present.expect(chosen, runtime)
        reindexing.swap()
    collection.refresh()
    present.settle(expected)


def preview(
    collection: Embedded,
    questions: Sequence[str],
    k: int,
    encoder: EncoderArgument | None,
    passages: PassageConfig | bool | None,
    runtime: RuntimeConfig | None,
    progress: Progress | None,
) -> list[list[str]]:
    """The keys of the k hits of each question after a reindex, whose documents are kept encoded."""
    chosen = _chosen(collection, encoder, runtime)
    vectors = QuestionEncoder(chosen).encode(questions)
    path, wait = collection.path, collection.wait
    with Reindexing.opened(path, chosen, passages, wait, progress) as reindexing:
        reindexing.encode()
        return _nearest(reindexing.blocks, reindexing.store, vectors, k)


def _chosen(
    collection: Embedded, encoder: EncoderArgument | None, runtime: RuntimeConfig | None
) -> TextEncoder:
    if encoder is not None:
        return load_given(encoder, runtime)
    with collection.own_store() as store:
        work = current(store)
    if work is None:
        raise QueryError(
            f"no reindex of {collection.path} is pending; name the encoder to change to: "
            "--encoder PATH or encoder=…"
        )
    path, identity = collection.path, work.details["settings"]["encoder"]
    try:
        return load_built_by(identity, path, runtime)
    except CollectionError as error:
        reason = f" ({error.__cause__})" if error.__cause__ else ""
        raise CollectionError(
            f"the pending reindex of {path} is by {title(identity)}, which cannot be "
            f"loaded{reason}; name it: --encoder PATH or encoder=…, or drop it: "
            f"searchengine reindex {path} --discard"
        ) from error


def _nearest(
    blocks: Blocks, store: Store, queries: np.ndarray[Any, np.dtype[np.float32]], k: int
) -> list[list[str]]:
    """The keys of the k documents nearest to each query (q, D), by their best passage; exact."""
    scores = np.empty((len(queries), 0), np.float32)
    documents = np.empty((len(queries), 0), np.int64)
    for rows, ids in blocks.live():
        unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
        starts = np.flatnonzero(np.diff(ids, prepend=-1))  # a document's passages are together
        best = np.maximum.reduceat(queries @ unit.T, starts, axis=1)
        scores = np.concatenate([scores, best], axis=1)
        documents = np.concatenate(
            [documents, np.broadcast_to(ids[starts], (len(queries), len(starts)))], axis=1
        )
        order = np.lexsort((documents, -scores), axis=1)[:, :k]
        scores = np.take_along_axis(scores, order, axis=1)
        documents = np.take_along_axis(documents, order, axis=1)
    marks = ", ".join("?" * len(unique := np.unique(documents).tolist()))
    keys = dict(store.read(f"SELECT id, key FROM documents WHERE id IN ({marks})", unique))
    return [[keys[i] for i in row.tolist() if i in keys] for row in documents]
