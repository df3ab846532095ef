"""Adapts the encoder of a collection to its documents: `adapt`.

1. A sample of the documents loses titles and single sentences, which become questions; logged
   clicks are questions too. By their documents they train, validate or are held out.
2. A linear map behind the encoder is trained on the frozen vectors of pairs, with hard negatives
   from the training documents. The validation questions choose how strongly, whether the vectors
   are whitened first, or no map at all.
3. The held-out questions are searched among all documents, before and after. The map is offered if
   it is better beyond doubt: it becomes a layer of a model folder, for `reindex`.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from indexer.building.build import Progress
from indexer.segment import SegmentConfig
from searchengine.adapt.judging import Corpus, Row, judge, objection, rows_of
from searchengine.adapt.negatives import hard_negatives
from searchengine.adapt.questions import Kind, Part, Question, Split, clicked, read_clicks
from searchengine.adapt.sample import Asked, Sample, read_sample
from searchengine.encoders.none import NoEncoder
from searchengine.encoders.protocol import TextEncoder, Vectors
from searchengine.engine import SearchEngine
from searchengine.errors import CollectionError, QueryError
from searchengine.ingest.passages import PassageReader
from searchengine.ingest.settings import CollectionSettings
from searchengine.maintenance.reindexing import current, settings_for
from searchengine.storage.snapshot import Snapshot
from trainer.encoder import Encoder
from trainer.training.posthoc import LinearMap, adapter, baked, whitening

DOCUMENTS = 10_000
"""Documents that are encoded again to make questions of them."""
STRENGTHS = ((0, 0.0), (50, 4e-4), (100, 1.2e-3), (200, 4e-3))
"""Updates and learning rate of the maps that the validation questions choose from."""
RIDGE = 0.1
"""Of the whitening that maps begin with, or not; see trainer.training.posthoc.whitening."""
MIN_QUESTIONS = {Part.TRAINING: 50, Part.VALIDATION: 10, Part.HELD_OUT: 25}
"""Fewer questions cannot show anything."""


@dataclass(frozen=True, slots=True)
class Adaptation:
    """The result of `adapt`.

    Attributes:
        offered: whether the adapted encoder is better beyond doubt.
        sentence: the result, and why.
        rows: the held-out questions by kind, then all; () if no map was better in validation.
        documents: number of documents that questions were made of.
        pairs: number of pairs of training.
        out: the folder of the adapted encoder; None if it is not offered.
        applied: whether the collection was encoded by it.
    """

    offered: bool
    sentence: str
    rows: tuple[Row, ...]
    documents: int
    pairs: int
    out: Path | None = None
    applied: bool = False

    def as_dict(self) -> dict[str, Any]:
        """All of it, for JSON."""
        return asdict(self) | {"out": None if self.out is None else str(self.out)}


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


@dataclass(frozen=True, slots=True)
class Outcome:
    """A trained map and its judgement.

    Attributes:
        change: the map; None if no map was better in validation.
        rows: the held-out questions; () without a map.
        pairs: number of pairs of training.
    """

    change: LinearMap | None
    rows: tuple[Row, ...]
    pairs: int


def adapt(
    engine: SearchEngine,
    out: str | Path,
    *,
    log: str | Path | None = None,
    documents: int = DOCUMENTS,
    apply: bool = False,
    seed: int = 0,
    progress: Progress | None = None,
) -> Adaptation:
    """Train the collection's encoder on the collection, and offer it if it is better beyond doubt.

    The collection stays as it is; it can be read and changed meanwhile. If the adapted encoder is
    offered, it is written, and `engine.reindex(out)` changes to it.

    Args:
        engine: an open collection in a folder, with an encoder that torch can load.
        out: a new folder for the adapted encoder.
        log: a file of questions and the documents chosen for them (questions.read_clicks).
        documents: number of documents to make questions of; of more, a sample.
        apply: reindex at once if it is offered.
        seed: of the parts, the sentences and the training.
        progress: progress callback: step, number just done, total.

    Raises:
        CollectionError: no encoder, one that cannot be trained, or `out` exists; another process
            is reindexing, or has reindexed meanwhile (EncoderMismatch).
        CorpusError: `log` cannot be read.
        QueryError: too few questions in a part.
    """
    out, report = Path(out).absolute(), progress or (lambda *_: None)
    if out.exists():
        raise CollectionError(f"{out} exists; name a new folder for the adapted encoder")
    if documents < 1:
        raise QueryError(f"documents must be at least 1, got {documents}")
    clicks = {} if log is None else read_clicks(Path(log))
    encoder = _trainable(engine)
    if apply:
        _check_no_reindex(engine)
    with engine.local.reading() as snapshot:
        material = read_material(snapshot, encoder, clicks, documents, seed, report)
        check_questions(material, engine.local.path)
        config = settings_for(encoder, snapshot.settings).config
        dims = encoder.matryoshka_dims
        outcome = train_and_judge(material, snapshot, config, dims, seed, report)
    reason = objection(outcome.rows) if outcome.rows else "no map was better in validation"
    result = Adaptation(
        reason is None,
        _sentence(reason, outcome.rows),
        outcome.rows,
        len(np.unique(material.sample.documents)),
        outcome.pairs,
    )
    if outcome.change is None or reason is not None:
        return result
    baked(encoder, outcome.change).save(out)
    if apply:
        engine.refresh()  # raises if another process has changed the encoder
        engine.reindex(out, progress=progress)
    return replace(result, out=out, applied=apply)


def _trainable(engine: SearchEngine) -> Encoder:
    """The encoder of the collection, if a layer can be added to it."""
    path, encoder = engine.local.path, engine.encoder
    if isinstance(encoder, NoEncoder):
        raise CollectionError(
            f"{path} has no encoder, so there is nothing to adapt; give it one first: "
            f"searchengine reindex {path} --encoder MODEL"
        )
    if not isinstance(encoder, Encoder):
        kind = getattr(encoder, "source", None) or type(encoder).__name__
        raise CollectionError(
            f"{path} is encoded by {kind}, which cannot be trained here; adapt needs the encoder "
            f"of a model folder: searchengine reindex {path} --encoder MODEL"
        )
    if not encoder.layers:
        raise CollectionError(
            f"{path} is encoded by {encoder.source}, a static model, which cannot be adapted; "
            f"change to the encoder of a network: searchengine reindex {path} --encoder MODEL"
        )
    return encoder


def _check_no_reindex(engine: SearchEngine) -> None:
    """Raise CollectionError if a reindex is pending: another cannot begin."""
    path = engine.local.path
    with engine.local.own_store() as store:
        if current(store) is not None:
            raise CollectionError(
                f"a reindex of {path} is pending; finish it, or drop it: "
                f"searchengine reindex {path} --discard"
            )


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


def check_questions(material: Material, path: Path | str) -> None:
    """Raise QueryError if there are no texts, or a part has too few questions."""
    if not len(material.sample.vectors):
        raise QueryError(f"{path} has no document with a text, so there is nothing to learn from")
    for part, least in MIN_QUESTIONS.items():
        count = sum(asked.question.part is part for asked in material.asked)
        if count < least:
            raise QueryError(
                f"{path} has {count} questions for {part}, adapt needs {least}: from titles and "
                "sentences of documents with text, and from --log; add documents, or a log"
            )


def train_and_judge(
    material: Material,
    snapshot: Snapshot,
    config: SegmentConfig,
    dims: Sequence[int],
    seed: int,
    progress: Progress,
) -> Outcome:
    """Train maps of several strengths, choose one in validation, and judge it.

    config: of the index. dims: the prefix lengths that are trained, the full width first.
    """
    maps, pairs = _train(material, dims, seed, progress)
    chosen = _choose(material, maps, config, progress)
    if chosen is None:
        return Outcome(None, (), pairs)
    held_out, vectors = _of_part(material, Part.HELD_OUT)
    made = np.array([question.kind is not Kind.CLICK for question in held_out])
    before, after = np.zeros((2, len(held_out)))
    for of_kind, sample in ((made, material.sample), (~made, None)):
        if not of_kind.any():
            continue
        corpus = Corpus.of_collection(snapshot, sample)
        questions = [held_out[i] for i in np.flatnonzero(of_kind)]
        for scores, change in ((before, None), (after, chosen)):
            scores[of_kind] = judge(corpus, questions, vectors[of_kind], config, change)
            progress("Judging", len(questions), 2 * len(held_out))
    return Outcome(chosen, rows_of(held_out, before, after), pairs)


def _of_part(
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


def _train(
    material: Material, dims: Sequence[int], seed: int, progress: Progress
) -> tuple[list[LinearMap], int]:
    """The maps to choose from, and the number of pairs."""
    training = [
        (i, asked, positive)
        for i, asked in enumerate(material.asked)
        if asked.question.part is Part.TRAINING
        for positive in asked.positives
    ]
    anchors = material.vectors[[i for i, *_ in training]]
    positives = np.stack([positive for *_, positive in training])
    related = [asked.question.documents for _, asked, _ in training]
    sample, parts = material.sample, material.parts
    of_training = np.array([parts[i] is Part.TRAINING for i in sample.documents.tolist()], bool)
    passages = sample.vectors[of_training]
    negatives = hard_negatives(anchors, positives, related, passages, sample.documents[of_training])
    whitened = whitening(np.concatenate([passages, anchors]), anchors.shape[1], ridge=RIDGE)
    updates = 2 * sum(steps for steps, _ in STRENGTHS)

    def learned(rows: Sequence[Vectors], steps: int, rate: float) -> LinearMap:
        return adapter(
            rows[0],
            rows[1],
            dims,
            negatives=rows[2],
            seed=seed,
            steps=steps,
            learning_rate=rate,
            report=lambda *_: progress("Training", 1, updates),
        )

    plain = anchors, positives, negatives
    white = [np.where(rows.any(axis=1, keepdims=True), whitened(rows), 0) for rows in plain]
    # Without an update, what is not whitened stays as it is.
    maps = [learned(plain, *strength) for strength in STRENGTHS if strength[0]]
    maps += [whitened.then(learned(white, *strength)) for strength in STRENGTHS]
    return maps, len(training)


def _choose(
    material: Material, maps: Sequence[LinearMap], config: SegmentConfig, progress: Progress
) -> LinearMap | None:
    """The map with the best mean on the validation questions; None if none beats no map."""
    sampled = set(material.sample.documents.tolist())
    questions, vectors = _of_part(material, Part.VALIDATION, sampled)
    corpus = Corpus.of_sample(material.sample)
    choices: list[LinearMap | None] = [None, *maps]
    means = []
    for change in choices:
        means.append(judge(corpus, questions, vectors, config, change).mean())
        progress("Validating", 1, len(choices))
    return choices[int(np.argmax(means))]


def _sentence(reason: str | None, rows: Sequence[Row]) -> str:
    result = "the adapted encoder is better beyond doubt" if reason is None else reason
    if not rows:
        return f"Adapting does not help: {result}"
    total = rows[-1]
    figures = (
        f"nDCG@10 of {total.questions} held-out questions {total.before:.3f} → {total.after:.3f}, "
        f"{total.comparison.difference:+.3f} [{total.comparison.low:+.3f}, "
        f"{total.comparison.high:+.3f}], p {total.comparison.p:.4f}"
    )
    if reason is None:
        return f"The adapted encoder is better beyond doubt: {figures}"
    return f"Adapting does not help: {result}: {figures}"
