"""What `adapt` trains on and judges by: encoded documents without their questions, and these.

A passage that still has the title, or the sentence, that is asked for would be found by its words.
So a document loses its title and one sentence, and is cut into passages and encoded again.
"""

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from searchengine.adapt.sampled_questions import (
    Kind,
    Part,
    Question,
    Split,
    clicked,
    without_sentence,
)
from searchengine.engine import Document, SearchEngine, Snapshot, contract
from searchengine.errors import QueryError
from searchengine.indexer.arrays import Floats, RowNumbers
from searchengine.indexer.building.build import Progress

_BLOCK = 256  # documents read and encoded at a time
_PER_TITLE = 8  # documents of a title that it is paired with


@dataclass(frozen=True, slots=True)
class Example:
    """A question, and the vectors (p, D) of the passages that answer it, for training."""

    question: Question
    positives: Floats


@dataclass(frozen=True, slots=True)
class Sample:
    """Encoded documents, and the questions that were taken from them.

    Attributes:
        vectors: (n, D), a row a passage.
        documents: (n,), the id of each row's document, ascending.
        examples: the questions.
        texts: the documents as they were encoded, and the passages of each.
    """

    vectors: Floats
    documents: RowNumbers
    examples: tuple[Example, ...]
    texts: tuple[tuple[Document, Sequence[contract.Span]], ...] = ()


@dataclass(frozen=True, slots=True)
class _Cut:
    """A document without its questions; `place`: where the sentence was."""

    document: int
    title: str
    sentence: str
    rest: Document
    place: int


def read_sample(
    engine: SearchEngine,
    snapshot: Snapshot,
    split: Split,
    most: int,
    seed: int,
    progress: Callable[[int, int], None],
) -> Sample:
    """Encode about `most` documents without their questions; those without text are left out.

    progress: called with the number of documents just done, and of all.
    """
    ids = split.sample(most)
    vectors: list[Floats] = []  # of each document
    documents: list[int] = []
    texts: list[tuple[Document, Sequence[contract.Span]]] = []
    examples: list[Example] = []
    titles: dict[str, list[int]] = defaultdict(list)  # the places of the documents in `documents`
    cuts: dict[str, _Cut] = {}  # of documents that are being encoded, by key

    def blocks() -> Iterator[Sequence[Document]]:
        for start in range(0, len(ids), _BLOCK):
            batch = ids[start : start + _BLOCK]
            block = list(_cuts(snapshot, split, batch, seed))
            cuts.update((cut.rest.key, cut) for cut in block)
            if block:
                yield [cut.rest for cut in block]
            progress(len(batch), len(ids))

    for block in engine.encode_blocks(blocks()):
        for document, spans, rows in zip(block.documents, block.spans, block.parts, strict=True):
            cut = cuts.pop(document.key)
            if cut.title:
                titles[cut.title].append(len(documents))
            if cut.sentence:
                part = split.parts[cut.document]
                question = Question(Kind.SENTENCE, cut.sentence, (cut.document,), part)
                examples.append(Example(question, rows[_near(spans, cut.place)]))
            documents.append(cut.document)
            texts.append((document, spans))
            vectors.append(rows)
    for title, places in titles.items():
        named = tuple(documents[place] for place in places)
        question = Question(Kind.TITLE, title, named, split.parts[named[0]])
        examples.append(Example(question, np.stack([vectors[i][0] for i in places[:_PER_TITLE]])))
    return Sample(
        np.concatenate(vectors) if vectors else np.empty((0, engine.encoder.dim), np.float32),
        np.repeat(np.array(documents, np.int64), [len(rows) for rows in vectors]),
        tuple(examples),
        tuple(texts),
    )


def _cuts(snapshot: Snapshot, split: Split, ids: Sequence[int], seed: int) -> Iterator[_Cut]:
    for i, document in zip(ids, snapshot.store.documents(ids), strict=True):
        if not document.text.strip():
            continue
        rng = random.Random(f"{seed} {document.key}")
        cut = without_sentence(document.text, rng) or ("", document.text, 0)
        yield _Cut(i, split.title(document), cut[0], Document(document.key, cut[1]), cut[2])


def _near(spans: Sequence[tuple[int, int]], place: int) -> slice:
    """The passage that had the sentence, and its neighbour."""
    nearest = max(0, sum(start <= place for start, _ in spans) - 1)
    return slice(nearest, nearest + 2)


MIN_QUESTIONS = {Part.TRAINING: 50, Part.VALIDATION: 10, Part.HELD_OUT: 25}
"""Fewer questions cannot show anything."""


@dataclass(frozen=True, slots=True)
class Material:
    """The data for training and for judging it.

    Attributes:
        sample: the encoded documents.
        examples: the questions, those from clicks last.
        vectors: (q, D), the questions.
        parts: document id → part.
    """

    sample: Sample
    examples: tuple[Example, ...]
    vectors: Floats
    parts: dict[int, Part]


def read_material(
    engine: SearchEngine,
    snapshot: Snapshot,
    clicks: Mapping[str, Sequence[str]],
    documents: int,
    seed: int,
    progress: Progress,
) -> Material:
    """Encode a sample of documents and all questions; arguments as for `adapt`."""
    encoder, split = engine.encoder, Split(snapshot, seed)
    sample = read_sample(engine, snapshot, split, documents, seed, partial(progress, "Encoding"))
    ids = snapshot.store.ids_of({key for keys in clicks.values() for key in keys})
    logged = clicked(clicks, ids, split.parts)
    questions = [*(example.question for example in sample.examples), *logged]
    texts = [question.text for question in questions]
    vectors = (
        encoder.encode(texts, role="query") if texts else np.empty((0, encoder.dim), np.float32)
    )
    examples = list(sample.examples)
    for question, vector in zip(logged, vectors[len(examples) :], strict=True):
        examples.append(Example(question, _nearest(snapshot, question, vector)))
    return Material(sample, tuple(examples), vectors, split.parts)


def _nearest(snapshot: Snapshot, question: Question, vector: Floats) -> Floats:
    """The stored passage of each document of a question that is nearest to it, (p, D)."""
    nearest = []
    for document in question.documents:
        ids = [passage.id for passage in snapshot.store.passages_of([document])]
        if ids:
            rows = snapshot.vectors(np.array(ids, np.int64))
            nearest.append(rows[(rows @ vector).argmax()])
    return np.stack(nearest) if nearest else np.empty((0, len(vector)), np.float32)


def check_documents(
    snapshot: Snapshot, clicks: Mapping[str, Sequence[str]], documents: int, seed: int
) -> None:
    """Raise QueryError, before anything is encoded, if a part must get too few questions.

    A document is asked for by its title and by one sentence, and by the log.
    """
    store, path = snapshot.store, snapshot.path
    if not list(store.scan("SELECT id FROM documents WHERE text != '' LIMIT 1")):
        raise QueryError(f"{path} has no document with a text, so there is nothing to learn from")
    split = Split(snapshot, seed)
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
        _check_count(
            sum(example.question.part is part for example in material.examples), part, path
        )


def _check_count(count: int, part: Part, path: Path | str, about: str = "") -> None:
    if count < MIN_QUESTIONS[part]:
        raise QueryError(
            f"{path} has {about}{count} questions for {part}, adapt needs {MIN_QUESTIONS[part]}: "
            "from titles and sentences of documents with text, and from --log; add documents "
            "(100 are usually enough), or a log"
        )


def of_part(
    material: Material, part: Part, sampled: Collection[int] | None = None
) -> tuple[list[Question], Floats]:
    """The questions of a part, and their vectors; `sampled`: only those about these documents."""
    places = [
        i
        for i, example in enumerate(material.examples)
        if example.question.part is part
        and (sampled is None or all(j in sampled for j in example.question.documents))
    ]
    return [material.examples[i].question for i in places], material.vectors[places]
