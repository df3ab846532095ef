"""What an engine offers to change its encoder: `reindex`, `preview_reindex`, `discard_reindex`."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, cast

import numpy as np

from searchengine.backends.folder.collection import Local
from searchengine.backends.folder.documents.store import Store
from searchengine.encoders.loading import (
    EncoderArgument,
    check_aligned,
    load_built_by,
    load_given,
    title,
)
from searchengine.encoders.of_collection import CollectionEncoder
from searchengine.encoders.protocol import NoEncoder, TextEncoder
from searchengine.encoders.questions import QuestionEncoder, check_questions
from searchengine.errors import CollectionError, QueryError
from searchengine.indexer.building.build import Progress
from searchengine.ingest.passages import PassageConfig
from searchengine.trainer.runtimes.config import RuntimeConfig
from searchengine.upkeep.blocks import Blocks
from searchengine.upkeep.reindexing import Reindexing, current, discard


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


class Reindexes(Local):
    """Changes the encoder of an open collection."""

    _encoder: CollectionEncoder

    def reindex(
        self,
        encoder: EncoderArgument | None = None,
        *,
        passages: PassageConfig | bool | None = None,
        runtime: RuntimeConfig | None = None,
        progress: Progress | None = None,
    ) -> None:
        """Encode all documents by another encoder, and use it from now on.

        Others read and write meanwhile, with the former encoder; what they change is included. All
        changes become visible in one commit. If this is interrupted, the same call goes on where it
        was. The settings follow the new encoder as in a new collection. An index config that was
        tuned keeps its structure and loses its operating point: tune it again.

        Args:
            encoder: as for `create`; None: that of the pending reindex.
            passages: as for `create`; None: as they are.
            runtime: runs the encoder.
            progress: progress callback: step, documents or rows just done, total.

        Raises:
            CollectionBusy: another process is reindexing, or writing.
            CollectionError: a document has vectors and no text, or another reindex is pending.
        """
        chosen = self._chosen(encoder, runtime)
        path, wait = self.local.path, self.local.wait
        if (questions := self._encoder.for_questions) is not None:
            identity = {"fingerprint": chosen.fingerprint, "dim": chosen.dim, "source": None}
            check_aligned(questions, identity, f"{path}, reindexed,")
        with Reindexing.opened(path, chosen, passages, wait, progress) as reindexing:
            reindexing.encode()
            expected = self._encoder.expect(chosen, runtime)
            reindexing.swap()
        self.collection.refresh()
        self._encoder.settle(expected)

    def preview_reindex(
        self,
        questions: Sequence[str],
        encoder: EncoderArgument | None = None,
        k: int = 10,
        *,
        passages: PassageConfig | bool | None = None,
        runtime: RuntimeConfig | None = None,
        progress: Progress | None = None,
    ) -> list[Preview]:
        """What a reindex would change for questions. All documents are encoded, and kept.

        `reindex` then swaps without encoding them again; `discard_reindex` drops them. The
        collection stays as it is. Arguments and errors as for `reindex`; `k`: hits per question.
        """
        if not questions:
            raise QueryError("preview_reindex compares the hits of questions, got none")
        check_questions(questions)
        words = isinstance(self._encoder.load(), NoEncoder)
        search = partial(cast(Any, self).search_batch, k=k, mode="text" if words else "vector")
        search(list(questions[:1]))  # raises now, not when everything is encoded
        chosen = self._chosen(encoder, runtime)
        vectors = QuestionEncoder(chosen).encode(questions)
        path, wait = self.local.path, self.local.wait
        with Reindexing.opened(path, chosen, passages, wait, progress) as reindexing:
            reindexing.encode()
            after = _nearest(reindexing.blocks, reindexing.store, vectors, k)
        before = search(list(questions))
        return [
            Preview(question, tuple(hit.key for hit in hits), tuple(keys))
            for question, hits, keys in zip(questions, before, after, strict=True)
        ]

    def discard_reindex(self) -> bool:
        """Drop the pending reindex with all that it has encoded; False if there is none."""
        return discard(self.local)

    def _chosen(
        self, encoder: EncoderArgument | None, runtime: RuntimeConfig | None
    ) -> TextEncoder:
        if encoder is not None:
            return load_given(encoder, runtime)
        with self.local.own_store() as store:
            work = current(store)
        if work is None:
            raise QueryError(
                f"no reindex of {self.collection.path} is pending; name the encoder to change to: "
                "--encoder PATH or encoder=…"
            )
        path, identity = self.local.path, work.details["settings"]["encoder"]
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
