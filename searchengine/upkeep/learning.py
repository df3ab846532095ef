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
from searchengine.trainer.training.question_map import FEW, Examples, Learning, learn

TOO_FEW, MAX_QUESTIONS = 100, 5_000
"""Judged questions from which nothing was gained on any collection measured; those learnt from."""
SAMPLE = 10_000
"""Passages compared with, of a larger collection, beside those judged and the NEAREST ones."""
_NEAREST, _BATCH, _FIRST = 20, 256, 10


def judged(
    queries: Mapping[str, str], qrels: Mapping[str, Mapping[str, int]], force: bool
) -> list[str]:
    """The keys of the questions to learn from, always the same. Raises QueryError for too few."""
    keys = sorted(key for key in queries if relevant(qrels.get(key, {})))
    if len(keys) < (FEW if force else TOO_FEW + 1):
        raise QueryError(
            f"{len(keys)} questions are judged, and maps learnt from up to {TOO_FEW} gained "
            "nothing on any collection measured; gather more, about 1,000, or learn all the same: "
            f"--force (force=True, from {FEW} on)"
        )
    if len(keys) > MAX_QUESTIONS:
        keys = sorted(np.random.default_rng(0).choice(keys, MAX_QUESTIONS, replace=False).tolist())
    return keys


def relevant(grades: Mapping[str, int]) -> list[str]:
    """The documents of grade 1 and above."""
    return [name for name, grade in grades.items() if grade > 0]


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
        ranked = (rank(part, vectors[part], Mode(by), _FIRST) for part in parts("Searching"))
        return np.array([*map(_ndcg, (keys for batch in ranked for keys in batch), grades)])

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


def _ndcg(documents: Sequence[str], grades: Mapping[str, int]) -> float:
    """nDCG@10 as trec_eval computes it: the gains are the grades."""
    gains = [max(grades.get(name, 0), 0) for name in documents]
    ideal = sorted((max(grade, 0) for grade in grades.values()), reverse=True)[:_FIRST]
    discounts = 1 / np.log2(np.arange(2, _FIRST + 2))
    return float(gains @ discounts[: len(gains)] / (ideal @ discounts[: len(ideal)]))


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
    stored: dict[int, list[int]] = {}
    for row, passage in enumerate(passages):
        stored.setdefault(passage.document, []).append(row)
    found = [
        [np.array(stored[ids[name]]) for name in names if ids.get(name) in stored]
        for names in documents
    ]
    if not any(found):
        raise QueryError(f"{collection.path} has none of the relevant documents to learn from")
    return Examples(vectors, rows, found)
