"""What `adapt` trains on and judges by: encoded documents, and questions in three parts."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from searchengine.adapt.questions import Part, Question, Split, clicked
from searchengine.adapt.sample import Asked, Sample, read_sample
from searchengine.backends.folder.documents.store import Store
from searchengine.backends.folder.snapshot import Snapshot
from searchengine.encoders.protocol import TextEncoder, Vectors
from searchengine.errors import QueryError
from searchengine.indexer.building.build import Progress
from searchengine.ingest.passages import PassageReader
from searchengine.ingest.settings import CollectionSettings

MIN_QUESTIONS = {Part.TRAINING: 50, Part.VALIDATION: 10, Part.HELD_OUT: 25}
"""Fewer questions cannot show anything."""


@dataclass(frozen=True, slots=True)
class Material:
    """What is trained on and judged by.

    Attributes:
        sample: the encoded documents.
        asked: the questions, those from clicks last.
        vectors: (q, D), the questions.
        parts: document id → part.
    """

    sample: Sample
    asked: tuple[Asked, ...]
    vectors: Vectors
    parts: dict[int, Part]


def read_material(
    snapshot: Snapshot,
    encoder: TextEncoder,
    clicks: Mapping[str, Sequence[str]],
    documents: int,
    seed: int,
    progress: Progress,
) -> Material:
    """Encode a sample of documents and all questions; arguments as for `adapt`."""
    store, split = snapshot.store, Split(snapshot.store, seed)
    reader = PassageReader(encoder, CollectionSettings.from_stored(snapshot.settings).passages)

    def report(done: int, total: int) -> None:
        progress("Encoding", done, total)

    sample = read_sample(store, split, documents, reader, seed, report)
    ids = store.ids_of({key for keys in clicks.values() for key in keys})
    logged = clicked(clicks, ids, split.parts)
    questions = [*(each.question for each in sample.asked), *logged]
    texts = [question.text for question in questions]
    vectors = (
        encoder.encode(texts, role="query") if texts else np.empty((0, encoder.dim), np.float32)
    )
    asked = list(sample.asked)
    for question, vector in zip(logged, vectors[len(asked) :], strict=True):
        asked.append(Asked(question, _nearest(snapshot, question, vector)))
    return Material(sample, tuple(asked), vectors, split.parts)


def _nearest(snapshot: Snapshot, question: Question, vector: Vectors) -> Vectors:
    """The stored passage of each document of a question that is nearest to it, (p, D)."""
    nearest = []
    for document in question.documents:
        ids = [passage.id for passage in snapshot.store.passages_of([document])]
        if ids:
            rows = snapshot.vectors(np.array(ids, np.int64))
            nearest.append(rows[(rows @ vector).argmax()])
    return np.stack(nearest) if nearest else np.empty((0, len(vector)), np.float32)


def check_documents(
    store: Store,
    clicks: Mapping[str, Sequence[str]],
    documents: int,
    seed: int,
    path: Path | str,
) -> None:
    """Raise QueryError, before anything is encoded, if a part must get too few questions.

    A document is asked for by its title and by one sentence, and by the log.
    """
    if not list(store.scan("SELECT id FROM documents WHERE text != '' LIMIT 1")):
        raise QueryError(f"{path} has no document with a text, so there is nothing to learn from")
    split = Split(store, seed)
    counts = Counter(split.parts[i] for i in split.sample(documents))
    ids = store.ids_of({key for keys in clicks.values() for key in keys})
    logged = Counter(question.part for question in clicked(clicks, ids, split.parts))
    for part in MIN_QUESTIONS:
        _check_count(2 * counts[part] + logged[part], part, path, "at most ")


def check_questions(material: Material, path: Path | str) -> None:
    """Raise QueryError if there are no texts, or a part has too few questions."""
    if not len(material.sample.vectors):
        raise QueryError(f"{path} has no document with a text, so there is nothing to learn from")
    for part in MIN_QUESTIONS:
        _check_count(sum(asked.question.part is part for asked in material.asked), part, path)


def _check_count(count: int, part: Part, path: Path | str, about: str = "") -> None:
    if count < MIN_QUESTIONS[part]:
        raise QueryError(
            f"{path} has {about}{count} questions for {part}, adapt needs {MIN_QUESTIONS[part]}: "
            "from titles and sentences of documents with text, and from --log; add documents "
            "(100 are usually enough), or a log"
        )


def of_part(
    material: Material, part: Part, sampled: Collection[int] | None = None
) -> tuple[list[Question], Vectors]:
    """The questions of a part, and their vectors; `sampled`: only those about these documents."""
    places = [
        i
        for i, asked in enumerate(material.asked)
        if asked.question.part is part
        and (sampled is None or all(j in sampled for j in asked.question.documents))
    ]
    return [material.asked[i].question for i in places], material.vectors[places]
