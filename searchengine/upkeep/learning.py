"""Learn a map of the question's vector from judged questions, and store it if it is better."""

from collections.abc import Mapping, Sequence

import numpy as np

from searchengine.backends.contract import Backend
from searchengine.encoders.protocol import TextEncoder
from searchengine.encoders.questions import encoded
from searchengine.errors import CollectionError
from searchengine.indexer.arrays import Floats
from searchengine.indexer.building.build import Progress
from searchengine.trainer.training import question_map as maps

SAMPLE = 10_000
"""Passages compared with, of a larger collection, beside those judged and the NEAREST ones."""
_NEAREST, _BATCH = 20, 256


def learn_map(
    collection: Backend,
    encoder: TextEncoder,
    texts: Sequence[str],
    grades: Sequence[Mapping[str, int]],
    mode: str,
    rank: maps.Rank,
    force: bool,
    report: Progress,
) -> maps.Learning:
    """See SearchEngine.learn. `texts`: what is encoded of each question; `rank` ranks them."""
    identity, documents = collection.settings["encoder"], [*map(maps.relevant, grades)]
    blocks = maps.parts(len(texts), "Encoding", report)
    vectors = np.concatenate([encoded(encoder, texts[part], "query") for part in blocks])
    examples = _examples(collection, documents, vectors)
    learning, matrix = maps.learn(examples, grades, mode, rank, force, report)
    if learning.stored:
        if collection.settings["encoder"] != identity:
            raise CollectionError(f"{collection.path} was reindexed meanwhile; learn again")
        collection.configure(maps.setting(learning, matrix, encoder.fingerprint, encoder.dim))
    return learning


def _examples(
    collection: Backend, documents: Sequence[Sequence[str]], vectors: Floats
) -> maps.Examples:
    """What is learnt from: of a larger collection, a sample of the passages to compare with."""
    with collection.reading() as snapshot:
        ids = snapshot.store.ids_of({name for names in documents for name in names})
        compared = snapshot.store.ids_after(-1, None, snapshot.store.count())
        if snapshot.rows > SAMPLE:
            every = -(-snapshot.rows // SAMPLE)
            chosen = [compared[::every], np.array([*ids.values()], np.int64)]
            for start in range(0, len(vectors), _BATCH):
                near = snapshot.search(vectors[start : start + _BATCH], _NEAREST).rows
                chosen.append(np.unique(snapshot.documents_of(near[near >= 0])))
            compared = np.unique(np.concatenate(chosen))
        passages = snapshot.store.passages_of(compared.tolist())
        rows = snapshot.vectors(np.array([passage.id for passage in passages]))
    names = {number: name for name, number in ids.items()}
    owners = [names.get(passage.document, "") for passage in passages]
    return maps.Examples.of(vectors, rows, owners, documents)
