"""Questions asked of a temporary collection as users ask them: by the default mode.

It holds all documents, those of a sample without the questions that were taken from them: their
words would find them. A map of the vectors is applied to questions and documents.
"""

import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from searchengine.adapt.material import Sample
from searchengine.adapt.sampled_questions import Question
from searchengine.adapt.validation import BATCH, FIRST, Corpus, ndcg
from searchengine.corpus.analyzer import Tokenizer
from searchengine.engine import Document, Mode, SearchEngine, Snapshot
from searchengine.indexer.arrays import Floats
from searchengine.indexer.segment import SegmentConfig
from searchengine.trainer.evaluation.significance import Values
from searchengine.trainer.model.multilingual import MULTILINGUAL
from searchengine.trainer.training.posthoc import LinearMap

_DOCUMENTS = 256  # documents read at a time


@dataclass(frozen=True, slots=True)
class Search:
    """How a collection ranks documents for a text: its default.

    Attributes:
        mode: vector, text or hybrid.
        weight: weight of the cosine in the mode hybrid.
        synonyms: the groups of synonyms.
    """

    mode: Mode
    weight: float
    synonyms: Sequence[Sequence[str]] = ()


BY_VECTOR = Search(Mode.VECTOR, 1.0)


def searched(
    snapshot: Snapshot,
    sample: Sample | None,
    questions: Sequence[Question],
    vectors: Floats,
    config: SegmentConfig,
    search: Search,
    change: LinearMap | None = None,
    others: bool = True,
) -> dict[str, Values]:
    """nDCG@10 of each question (q,), as a collection answers it: by its default mode.

    That is Mode.AUTO. Mode.VECTOR and, with words, Mode.TEXT are by one of them alone.

    Args:
        snapshot: the collection.
        sample: documents that take the place of the stored ones.
        questions: the questions.
        vectors: of the questions, (q, D).
        config: of the index.
        search: the default.
        change: a map of questions and documents.
        others: search documents that are not in the sample too.
    """
    asked = vectors if change is None else change(vectors)
    modes = {Mode.AUTO: search.mode, Mode.VECTOR: Mode.VECTOR}
    tokenizer = snapshot.settings["tokenizer"]
    if tokenizer != Tokenizer.NONE:
        modes[Mode.TEXT] = Mode.TEXT
    corpus = Corpus.of_collection(snapshot, sample)
    if sample is not None and not others:
        corpus = Corpus.of_sample(sample)
    documents = _documents(snapshot, sample, others)
    with (
        collection(tokenizer, documents, corpus, config, search, change) as engine,
        engine.reading() as now,
    ):
        by_mode = {
            mode: ndcg(
                questions,
                (
                    list(map(int, keys))
                    for start in range(0, len(questions), BATCH)
                    for keys in engine.rank(
                        now,
                        [question.text for question in questions[start : start + BATCH]],
                        asked[start : start + BATCH],
                        FIRST,
                        mode=mode,
                    )
                ),
            )
            for mode in set(modes.values())
        }
        return {name: by_mode[mode] for name, mode in modes.items()}


@contextmanager
def collection(
    tokenizer: str,
    documents: Iterable[Document],
    corpus: Corpus,
    config: SegmentConfig,
    search: Search,
    change: LinearMap | None = None,
) -> Iterator[SearchEngine]:
    """A temporary collection of documents, whose keys are the ids of the corpus.

    tokenizer: of its words.
    """
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        rows = _written(Path(folder) / "vectors.npy", corpus, change)
        with SearchEngine.create(
            Path(folder) / "judged.index",
            None,
            config,
            dim=rows.shape[1],
            tokenizer=tokenizer,
        ) as engine:
            engine.add(documents, rows, passages=_passages(corpus))
            if search.mode is Mode.HYBRID:
                engine.set_default(weight=search.weight)
            if search.synonyms:
                engine.set_synonyms(search.synonyms)
            yield engine


def _written(file: Path, corpus: Corpus, change: LinearMap | None) -> Floats:
    """The vectors of a corpus after a map, (n, width), mapped from a file."""
    rows: Floats | None = None
    done = 0
    for block in corpus.blocks():
        mapped = block if change is None else change(block)
        if rows is None:
            shape = len(corpus.documents), mapped.shape[1]
            rows = np.lib.format.open_memmap(file, "w+", np.float32, shape)
        rows[done : done + len(mapped)] = mapped
        done += len(mapped)
    assert rows is not None  # a sample has rows
    return rows


def _documents(snapshot: Snapshot, sample: Sample | None, others: bool) -> Iterator[Document]:
    """The sample's documents, and all others, with their ids as keys."""
    sampled: set[int] = set()
    if sample is not None:
        ids = np.unique(sample.documents).tolist()
        sampled = set(ids)
        for i, (document, _) in zip(ids, sample.texts, strict=True):
            yield Document(str(i), document.text)
    if not others:
        return
    stored = [i for (i,) in snapshot.store.scan("SELECT id FROM documents ORDER BY id")]
    outside = [i for i in stored if i not in sampled]
    for start in range(0, len(outside), _DOCUMENTS):
        batch = outside[start : start + _DOCUMENTS]
        for i, document in zip(batch, snapshot.store.documents(batch), strict=True):
            yield Document(str(i), document.text, document.title)


def _passages(corpus: Corpus) -> Iterator[dict[str, Any]]:
    """The passage of each row, as SearchEngine.add reads them."""
    for document, (start, end) in zip(
        corpus.documents.tolist(), corpus.spans.tolist(), strict=True
    ):
        yield {"key": str(document), "start": start, "end": end}


def by_multilingual(sample: Sample, questions: Sequence[Question]) -> Values:
    """nDCG@10 of each question (q,) among the sample's documents, by the encoder multilingual."""
    ids = np.unique(sample.documents).tolist()
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder,
        SearchEngine.create(Path(folder) / "judged.index", MULTILINGUAL) as engine,
    ):
        engine.add(
            Document(str(i), document.text)
            for i, (document, _) in zip(ids, sample.texts, strict=True)
        )
        hits = engine.search_batch([question.text for question in questions], FIRST)
        return ndcg(questions, ([int(hit.key) for hit in found] for found in hits))
