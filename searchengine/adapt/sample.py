"""Documents without their questions, encoded: what the questions are trained on and judged by.

A passage that still has the title, or the sentence, that is asked for would be found by its words.
So a document loses its title and one sentence, and is cut into passages and encoded again.
"""

import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from searchengine.adapt.questions import Kind, Question, Split, without_sentence
from searchengine.backends.folder.documents.changes import Span
from searchengine.backends.folder.documents.store import Store
from searchengine.backends.folder.documents.tables import Ids
from searchengine.corpus.documents import Document
from searchengine.encoders.protocol import Vectors
from searchengine.ingest.passages import PassageReader
from searchengine.ingest.pipeline import encoded, in_batches

_BLOCK = 256  # documents read and encoded at a time
_PER_TITLE = 8  # documents of a title that it is paired with


@dataclass(frozen=True, slots=True)
class Asked:
    """A question, and the vectors (p, D) of the passages that answer it, for training."""

    question: Question
    positives: Vectors


@dataclass(frozen=True, slots=True)
class Sample:
    """Encoded documents, and the questions that were taken from them.

    Attributes:
        vectors: (n, D), a row a passage.
        documents: (n,), the id of each row's document, ascending.
        asked: the questions.
    """

    vectors: Vectors
    documents: Ids
    asked: tuple[Asked, ...]


@dataclass(frozen=True, slots=True)
class _Cut:
    """A document without its questions; `place`: where the sentence was."""

    document: int
    title: str
    sentence: str
    rest: Document
    place: int


def read_sample(
    store: Store,
    split: Split,
    most: int,
    reader: PassageReader,
    seed: int,
    progress: Callable[[int, int], None],
) -> Sample:
    """Encode about `most` documents without their questions; those without text are left out.

    progress: called with the number of documents just done, and of all.
    """
    ids = split.sample(most)
    vectors: list[Vectors] = []  # of each document
    documents: list[int] = []
    asked: list[Asked] = []
    titles: dict[str, list[int]] = defaultdict(list)  # the places of the documents in `documents`
    cuts: dict[str, _Cut] = {}  # of documents that are being encoded, by key

    def blocks() -> Iterator[Sequence[Document]]:
        for batch in in_batches(ids, _BLOCK):
            block = list(_cuts(store, split, batch, seed))
            cuts.update((cut.rest.key, cut) for cut in block)
            if block:
                yield [cut.rest for cut in block]
            progress(len(batch), len(ids))

    for block in encoded(reader, blocks()):
        for document, spans, rows in zip(block.documents, block.spans, block.parts, strict=True):
            cut = cuts.pop(document.key)
            if cut.title:
                titles[cut.title].append(len(documents))
            if cut.sentence:
                part = split.parts[cut.document]
                question = Question(Kind.SENTENCE, cut.sentence, (cut.document,), part)
                asked.append(Asked(question, rows[_near(spans, cut.place)]))
            documents.append(cut.document)
            vectors.append(rows)
    for title, places in titles.items():
        named = tuple(documents[place] for place in places)
        question = Question(Kind.TITLE, title, named, split.parts[named[0]])
        asked.append(Asked(question, np.stack([vectors[i][0] for i in places[:_PER_TITLE]])))
    return Sample(
        np.concatenate(vectors) if vectors else np.empty((0, reader.encoder.dim), np.float32),
        np.repeat(np.array(documents, np.int64), [len(rows) for rows in vectors]),
        tuple(asked),
    )


def _cuts(store: Store, split: Split, ids: Sequence[int], seed: int) -> Iterator[_Cut]:
    for i, document in zip(ids, store.documents(ids), strict=True):
        if not document.text.strip():
            continue
        rng = random.Random(f"{seed} {document.key}")
        cut = without_sentence(document.text, rng) or ("", document.text, 0)
        yield _Cut(i, split.title(document), cut[0], Document(document.key, cut[1]), cut[2])


def _near(spans: Sequence[Span], place: int) -> slice:
    """The passage that had the sentence, and its neighbour."""
    here = max(0, sum(start <= place for start, _ in spans) - 1)
    return slice(here, here + 2)
