"""Encode some stored passages again, and compare the vectors: `verify --encode N`."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from searchengine.backends.contract import Ids
from searchengine.backends.folder.collection import Collection
from searchengine.backends.folder.snapshot import Snapshot
from searchengine.encoders.loading import CollectionEncoder
from searchengine.encoders.protocol import NO_ENCODER
from searchengine.errors import CollectionError, EncoderMismatch, QueryError
from searchengine.ingest.passages import BATCH, PassageReader
from searchengine.ingest.settings import CollectionSettings

MIN_COSINE = 0.95
"""Of a stored vector and the encoder's. An int8 runtime may have 0.99 to float32, and so two of
different machines cos(2 · acos(0.99)) = 0.96 to each other; bf16 and float16 lose far less."""
_NAMED = 20  # documents that an error names; the others are counted


def check_encoded(collection: Collection, encoder: CollectionEncoder, count: int) -> int:
    """Encode at most `count` passages of the newest commit again; returns how many.

    They are chosen at random, in turn from every segment. Vectors that came with their documents
    are left out. Raises CollectionError, with the keys of the documents whose vectors differ,
    QueryError (no encoder) and EncoderMismatch.
    """
    with collection.newest() as snapshot:
        if snapshot.settings["encoder"]["fingerprint"] == NO_ENCODER:
            raise QueryError(
                f"{collection.path} has no encoder, so no vector can be computed again; leave "
                "encode out"
            )
        passages = CollectionSettings.from_stored(snapshot.settings).passages
        try:
            reader = PassageReader(encoder.load(snapshot.settings), passages)
        except EncoderMismatch:
            if not encoder.is_past(snapshot.settings):
                raise
            return check_encoded(collection, encoder, count)  # reindexed meanwhile
        chosen, least = _chosen(snapshot, count), dict[str, float]()
        for start in range(0, len(chosen), BATCH):
            for key, cosine in _cosines(snapshot, reader, chosen[start : start + BATCH]):
                least[key] = min(cosine, least.get(key, 1.0))
        if far := {key: cosine for key, cosine in least.items() if cosine < MIN_COSINE}:
            raise _differ(collection, snapshot, far)
        return len(chosen)


def _chosen(snapshot: Snapshot, count: int) -> Ids:
    """Ids of encoded passages: one of each segment, then a second one of each, and so on."""
    random = np.random.default_rng()
    sql = (
        "SELECT p.id FROM live_passages AS p JOIN documents ON documents.id = p.document "
        "WHERE p.id BETWEEN ? AND ? AND documents.vectors IS NULL"
    )
    ids = [random.permutation(snapshot.store.numbers(sql, row.ends)) for row in snapshot.segments]
    if not ids:
        return np.empty(0, np.int64)
    together = np.concatenate(ids)
    turns = np.concatenate([np.arange(len(each)) for each in ids])
    return together[np.lexsort((random.random(len(together)), turns))[:count]]


def _cosines(snapshot: Snapshot, reader: PassageReader, ids: Ids) -> list[tuple[str, float]]:
    """The key of each passage's document, and the cosine of the stored and the new vector."""
    passages = snapshot.store.passages(ids)
    numbers = list(dict.fromkeys(passage.document for passage in passages))
    documents = dict(zip(numbers, snapshot.store.documents(numbers), strict=True))
    pairs = [
        (replace(documents[each.document], origin="verify"), (each.start, each.end))
        for each in passages
    ]
    encoded = reader.encode(pairs, reader.texts(pairs), lambda _: None)
    stored = snapshot.vectors(ids)
    norms = np.linalg.norm(encoded, axis=1) * np.linalg.norm(stored, axis=1)
    cosines = (encoded * stored).sum(axis=1) / norms
    return [(doc.key, float(c)) for (doc, _), c in zip(pairs, cosines, strict=True)]


def _differ(
    collection: Collection, snapshot: Snapshot, far: Mapping[str, float]
) -> CollectionError:
    worst = sorted(far, key=lambda key: (round(far[key], 2), key))
    named = ", ".join(f"{key!r} (cosine {far[key]:.2f})" for key in worst[:_NAMED])
    more = f" and {len(worst) - _NAMED} more" if len(worst) > _NAMED else ""
    source = snapshot.settings["encoder"]["source"] or "ENCODER"
    return CollectionError(
        f"{collection.path} holds vectors that are not those of its encoder, of "
        f"{'this document' if len(worst) == 1 else 'these documents'}: {named}{more}; delete and "
        "add them again, or encode all documents again: "
        f"searchengine reindex {collection.path} --encoder {source}"
    )
