"""Learn a map of the question's vector from judged questions, and store it if it is better."""

from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from searchengine.backends.contract import Backend
from searchengine.backends.mode import Mode
from searchengine.encoders.protocol import TextEncoder
from searchengine.encoders.questions import QUERY_MAP, encoded
from searchengine.errors import CollectionError, QueryError
from searchengine.indexer.arrays import Floats
from searchengine.indexer.building.build import Progress
from searchengine.trainer.evaluation.intervals import Values
from searchengine.trainer.training.question_map import (
    FIRST,
    Examples,
    Learning,
    learn,
    ndcg,
    relevant,
)

SAMPLE = 10_000
"""Passages compared with, of a larger collection, beside those judged and the NEAREST ones."""
_NEAREST, _BATCH = 20, 256


def learn_map(
    collection: Backend,
    encoder: TextEncoder,
    texts: Sequence[str],
    grades: Sequence[Mapping[str, int]],
    mode: Mode,
    rank: Callable[[slice, Floats, Mode, int], list[list[str]]],
    force: bool,
    report: Progress,
) -> Learning:
    """See SearchEngine.learn.

    Args:
        texts: what is encoded of each question.
        rank: some of the questions, their vectors (q, D), a mode and k → the first k keys of each.
    """

    def parts(step: str) -> Iterator[slice]:
        for start in range(0, len(texts), _BATCH):
            part = slice(start, min(start + _BATCH, len(texts)))
            yield part
            report(step, part.stop - start, len(texts))

    def score(by: str, vectors: Floats) -> Values:
        ranked = (rank(part, vectors[part], Mode(by), FIRST) for part in parts("Searching"))
        return np.array([*map(ndcg, (keys for batch in ranked for keys in batch), grades)])

    identity, documents = collection.settings["encoder"], [*map(relevant, grades)]
    vectors = np.concatenate([encoded(encoder, texts[part], "query") for part in parts("Encoding")])
    examples = _examples(collection, documents, vectors)
    learning, matrix = learn(examples, documents, str(mode), score, force, report)
    if learning.stored:
        if collection.settings["encoder"] != identity:
            raise CollectionError(f"{collection.path} was reindexed meanwhile; learn again")
        stored = b64encode(matrix.astype("<f4").tobytes()).decode()
        described = {"questions": learning.questions, "mode": mode, "figures": learning.figures}
        learnt_for = {"fingerprint": encoder.fingerprint, "dim": encoder.dim}
        collection.configure({QUERY_MAP: described | learnt_for | {"matrix": stored}})
    return learning


def _examples(collection: Backend, documents: Sequence[Sequence[str]], vectors: Floats) -> Examples:
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
    stored: dict[str, list[int]] = {}
    names = {number: name for name, number in ids.items()}
    for row, passage in enumerate(passages):
        stored.setdefault(names.get(passage.document, ""), []).append(row)
    found = [[np.array(stored[n]) for n in each if n in stored] for each in documents]
    if not any(found):
        raise QueryError(f"{collection.path} has none of the relevant documents to learn from")
    return Examples(vectors, rows, found)
