"""Adapts the encoder of a collection to its documents: `adapt`.

1. A sample of the documents loses titles and single sentences, which become questions; logged
   clicks are questions too. By their documents they train, validate or are held out.
2. A linear map behind the encoder is trained on the frozen vectors of pairs, with hard negatives
   from the training documents. The validation questions choose how strongly, whether the vectors
   are whitened first, or no map at all.
3. The held-out questions are searched among all documents, before and after, by the default mode of
   the collection. The map is offered if it is better beyond doubt, and words alone are not: it
   becomes a layer of a model folder, for `reindex`.

Or, with only="rotation", an orthogonal map that changes no score (searchengine.adapt.rotation)."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from searchengine.adapt import rotation
from searchengine.adapt.material import (
    Material,
    Sample,
    check_documents,
    check_questions,
    of_part,
    read_material,
)
from searchengine.adapt.sampled_questions import Part, Question, read_clicks
from searchengine.adapt.searched import BY_VECTOR, Search, by_multilingual, searched
from searchengine.adapt.validation import (
    MIN_GAIN,
    NO_MAP,
    Corpus,
    Outcome,
    Row,
    best,
    held_out,
    judge,
    objection,
    row_of,
    rows_of,
)
from searchengine.engine import Mode, SearchEngine, Snapshot
from searchengine.errors import CollectionError, QueryError
from searchengine.indexer.arrays import Floats, RowNumbers
from searchengine.indexer.building.build import Progress
from searchengine.indexer.segment import SegmentConfig
from searchengine.trainer.encoder import Encoder
from searchengine.trainer.evaluation.significance import Values
from searchengine.trainer.model.multilingual import MULTILINGUAL, multilingual_installed
from searchengine.trainer.training.hard_negatives import MiningConfig, choose
from searchengine.trainer.training.posthoc import LinearMap, adapter, baked, whitening

_BLOCK = 256  # questions scored at a time


def hard_negatives(
    anchors: Floats,
    positives: Floats,
    related: Sequence[Sequence[int]],
    passages: Floats,
    documents: RowNumbers,
    config: MiningConfig | None = None,
) -> Floats:
    """The hardest passage within the margins for each pair, (n, D); zeros where there is none.

    anchors, positives: (n, D) unit rows. related: the documents that answer each anchor, which are
    left out. passages: (m, D) unit rows to choose from, of `documents` (m,).
    """
    config = config or MiningConfig()
    result = np.zeros_like(anchors)
    cosines = np.einsum("ij,ij->i", anchors, positives)
    for start in range(0, len(anchors), _BLOCK):
        scores = anchors[start : start + _BLOCK] @ passages.T
        for i, row in enumerate(scores, start):
            row[np.isin(documents, related[i])] = -np.inf
            depth = min(config.depth, len(row))
            best = np.argpartition(-row, depth - 1)[:depth]
            best = best[np.isfinite(row[best])]
            ordered = best[np.lexsort((best, -row[best]))]
            ranked = list(zip(ordered.tolist(), row[ordered].tolist(), strict=True))
            chosen, _ = choose(ranked, float(cosines[i]), config, i)
            if chosen:
                result[i] = passages[chosen[0][0]]
    return result


DOCUMENTS = 10_000
"""Documents that are encoded again to make questions of them."""
STRENGTHS = ((0, 0.0), (50, 4e-4), (100, 1.2e-3), (200, 4e-3))
"""Updates and learning rate of the maps that the validation questions choose from."""
RIDGE = 1.0
"""Ridge of the whitening that maps may begin with: trainer.training.posthoc.whitening. With less,
the prefix keeps less, for no gain (docs/quality.md)."""


@dataclass(frozen=True, slots=True)
class Adaptation:
    """The result of `adapt`.

    Attributes:
        offered: whether the adapted encoder is better beyond doubt.
        sentence: the result, and why.
        rows: the held-out questions by kind, then all; () if no map was better in validation.
        others: what else was measured of all held-out questions: by meaning alone; words alone
            against the adapted encoder; `multilingual` against it; the share of the nearest in a
            shortlist.
        documents: number of documents that questions were made of.
        pairs: number of pairs of training; of the rotation, of questions.
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
    others: tuple[Row, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """All of it, for JSON."""
        return asdict(self) | {"out": None if self.out is None else str(self.out)}


def adapt(
    engine: SearchEngine,
    out: str | Path,
    *,
    log: str | Path | None = None,
    documents: int = DOCUMENTS,
    only: Literal["rotation"] | None = None,
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
        only: "rotation" leaves every full-width score as it is, and learns which dimensions come
            first (searchengine.adapt.rotation); None: a linear map.
        apply: reindex at once if it is offered.
        seed: of the parts, the sentences and the training.
        progress: progress callback: step, number just done, total.

    Raises:
        CollectionError: no encoder, one that cannot be trained, or `out` exists; another process
            is reindexing, or has reindexed meanwhile (EncoderMismatch).
        CorpusError: `log` cannot be read.
        QueryError: too few questions in a part, or another value of `only`.
    """
    out, report = Path(out).absolute(), progress or (lambda *_: None)
    if out.exists():
        raise CollectionError(f"{out} exists; name a new folder for the adapted encoder")
    if documents < 1:
        raise QueryError(f"documents must be at least 1, got {documents}")
    if only not in (None, "rotation"):
        raise QueryError(f"only must be 'rotation' or None, got {only!r}")
    clicks = {} if log is None else read_clicks(Path(log))
    encoder = _trainable(engine)
    path = engine.collection.path
    if apply and engine.reindex_pending():
        raise CollectionError(
            f"a reindex of {path} is pending; finish it, or drop it: "
            f"searchengine reindex {path} --discard"
        )
    searches = (
        Search(engine.default_mode, engine.default_weight, engine.synonyms()),
        Search(*engine.default_after(encoder), engine.synonyms()),
    )
    with engine.reading() as snapshot:
        config = engine.config_for(encoder)
        reason = (
            _needless(engine, searches[1]) if only is None else rotation.needless(snapshot, config)
        )
        if reason is not None:
            return Adaptation(False, _sentence(reason, (), only), (), 0, 0)
        check_documents(snapshot, clicks, documents, seed)
        material = read_material(engine, snapshot, clicks, documents, seed, report)
        check_questions(material, path)
        if only is None:
            dims = encoder.matryoshka_dims
            outcome = train_and_judge(material, snapshot, config, dims, seed, report, searches)
            if outcome.reason is None and (other := engine.suggested_encoder(encoder)):
                outcome = _against_multilingual(
                    outcome, other, material, snapshot, config, searches[1], report
                )
        else:
            outcome = rotation.train_and_judge(material, snapshot, config, seed, report)
    result = Adaptation(
        outcome.reason is None,
        _sentence(outcome.reason, outcome.rows, only) + outcome.advice,
        outcome.rows,
        len(np.unique(material.sample.documents)),
        outcome.pairs,
        others=outcome.others,
    )
    if outcome.change is None or outcome.reason is not None:
        return result
    baked(encoder, outcome.change).save(out)
    if apply:
        engine.refresh()  # raises if another process has changed the encoder
        engine.reindex(out, progress=progress)
    return replace(result, out=out, applied=apply)


_UNREAD = "The encoder does not read these documents; one that does may find more"


def _needless(engine: SearchEngine, search: Search) -> str | None:
    """Why no map changes what a collection finds, as a clause; None if one may."""
    if search.mode is not Mode.TEXT:
        return None
    other = engine.suggested_encoder(engine.encoder)
    reason = "the collection is searched by words alone (mode text), which no encoder changes"
    return f"{reason}. {_UNREAD}, such as {other}" if other else reason


def _against_multilingual(
    outcome: Outcome,
    other: str,
    material: Material,
    snapshot: Snapshot,
    config: SegmentConfig,
    search: Search,
    progress: Progress,
) -> Outcome:
    """The outcome for documents that the encoder does not read. `other`: what may find more."""
    if not multilingual_installed():
        return replace(outcome, advice=f". {_UNREAD}, such as {other}")
    sample = material.sample
    questions, vectors = of_part(material, Part.HELD_OUT, set(sample.documents.tolist()))
    progress("Comparing", 0, len(questions))
    theirs = by_multilingual(sample, questions)
    progress("Comparing", len(questions), len(questions))
    ours = searched(
        snapshot, sample, questions, vectors, config, search, outcome.change, others=False
    )
    row = row_of("all, multilingual → adapted", theirs, ours[Mode.AUTO])
    reason = f"the encoder {MULTILINGUAL} finds more" if row.lost else None
    return replace(outcome, reason=reason, others=(*outcome.others, row))


def _trainable(engine: SearchEngine) -> Encoder:
    """The encoder of the collection, if a layer can be added to it."""
    path, encoder = engine.folder.path, engine.encoder
    if not engine.encodes:
        raise CollectionError(
            f"{path} has no encoder, so there is nothing to adapt; give it one first: "
            f"searchengine reindex {path} --encoder MODEL"
        )
    if not isinstance(encoder, Encoder):
        kind = encoder.source or encoder.name or type(getattr(encoder, "wrapped", encoder)).__name__
        raise CollectionError(
            f"{path} is encoded by {kind}, which cannot be trained here; adapt needs the encoder "
            f"of a model folder: searchengine reindex {path} --encoder MODEL"
        )
    if not encoder.layers:
        raise CollectionError(
            f"{path} is encoded by {encoder.source}, a static model, which cannot be adapted; "
            f"change to the encoder of a network: searchengine reindex {path} --encoder MODEL"
        )
    if encoder.model.questions is not None:
        raise CollectionError(
            f"{path} is encoded by {encoder.source}, a Router with a network for questions, which "
            "cannot be adapted; change to the encoder of its documents: searchengine reindex "
            f"{path} --encoder MODEL"
        )
    return encoder


def train_and_judge(
    material: Material,
    snapshot: Snapshot,
    config: SegmentConfig,
    dims: Sequence[int],
    seed: int,
    progress: Progress,
    searches: tuple[Search, Search] = (BY_VECTOR, BY_VECTOR),
) -> Outcome:
    """Train maps of several strengths, choose one in validation, and judge it by nDCG@10.

    config: of the index. dims: the prefix lengths that are trained, the full width first. searches:
    the default of the collection, before and after a reindex.
    """

    # A map may find more at full width, and have a prefix that keeps too little of it.
    prefixes = rotation.scanned(config)

    def score(
        corpus: Corpus, questions: Sequence[Question], vectors: Floats, change: LinearMap | None
    ) -> Values:
        return judge(corpus, questions, vectors, prefixes, change)

    def measure(
        sample: Sample | None,
        questions: Sequence[Question],
        vectors: Floats,
        change: LinearMap | None,
    ) -> dict[str, Values]:
        search, corpus = searches[change is not None], Corpus.of_collection(snapshot, sample)
        return {
            **searched(snapshot, sample, questions, vectors, config, search, change),
            rotation.MEASURE: rotation.agreement(corpus, vectors, prefixes, change),
        }

    maps, pairs = _train(material, dims, seed, progress)
    chosen = best(material, Corpus.of_sample(material.sample), maps, score, progress)
    if chosen is None:
        return Outcome(None, (), pairs, NO_MAP)
    questions, before, after = held_out(material, chosen, measure, progress)
    rows = rows_of(questions, before[Mode.AUTO], after[Mode.AUTO])
    others, reason = [], objection(rows, MIN_GAIN)
    if searches[1].mode is not Mode.VECTOR:
        others.append(row_of("all, by meaning alone", before[Mode.VECTOR], after[Mode.VECTOR]))
    if Mode.TEXT in before:
        words = row_of("all, words alone → adapted", before[Mode.TEXT], after[Mode.AUTO])
        others.append(words)
        if reason is None and words.lost:
            reason = "words alone find more (--mode text)"
    name = rotation.MEASURE
    others.append(row_of(f"{name}, prefix {config.prefix}", before[name], after[name]))
    return Outcome(chosen, rows, pairs, reason, tuple(others))


def _train(
    material: Material, dims: Sequence[int], seed: int, progress: Progress
) -> tuple[list[LinearMap], int]:
    """The maps to choose from, and the number of pairs."""
    training = [
        (i, example, positive)
        for i, example in enumerate(material.examples)
        if example.question.part is Part.TRAINING
        for positive in example.positives
    ]
    anchors = material.vectors[[i for i, *_ in training]]
    positives = np.stack([positive for *_, positive in training])
    related = [example.question.documents for _, example, _ in training]
    sample, parts = material.sample, material.parts
    of_training = np.array([parts[i] is Part.TRAINING for i in sample.documents.tolist()], bool)
    passages = sample.vectors[of_training]
    negatives = hard_negatives(anchors, positives, related, passages, sample.documents[of_training])
    whitened = whitening(np.concatenate([passages, anchors]), anchors.shape[1], ridge=RIDGE)
    updates = 2 * sum(steps for steps, _ in STRENGTHS)

    def learned(rows: Sequence[Floats], steps: int, rate: float) -> LinearMap:
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
    # Without an update, vectors that are not whitened stay as they are.
    maps = [learned(plain, *strength) for strength in STRENGTHS if strength[0]]
    maps += [whitened.then(learned(white, *strength)) for strength in STRENGTHS]
    return maps, len(training)


def _sentence(reason: str | None, rows: Sequence[Row], only: str | None) -> str:
    if not rows:
        return f"Adapting does not help: {reason}"
    total, measure = rows[-1], "nDCG@10" if only is None else rotation.MEASURE
    figures = (
        f"{measure} of {total.questions} held-out questions {total.before:.3f} → "
        f"{total.after:.3f}, {total.comparison.difference:+.3f} [{total.comparison.low:+.3f}, "
        f"{total.comparison.high:+.3f}], p {total.comparison.p:.4f}"
    )
    if reason is None:
        subject = "adapted encoder" if only is None else "learnt rotation"
        return f"The {subject} is better beyond doubt: {figures}"
    return f"Adapting does not help: {reason}: {figures}"
