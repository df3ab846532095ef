"""Which dimensions come first: a rotation learnt on a collection, and judged by its shortlists.

An orthogonal map behind the encoder leaves every full-width score as it was, and decides what the
prefix holds, which an index uses to choose its shortlist. The index's own rotation keeps the most
energy of the documents (PCA). The one learnt here begins there, and is trained so that the prefix
ranks documents for questions as the full width does.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from searchengine.adapt.material import Material, Sample, of_part
from searchengine.adapt.sampled_questions import Part, Question
from searchengine.adapt.validation import (
    NO_MAP,
    Corpus,
    Outcome,
    best,
    held_out,
    indexed,
    objection,
    rows_of,
)
from searchengine.engine import Snapshot
from searchengine.indexer.arrays import Floats, evenly
from searchengine.indexer.building.build import Progress
from searchengine.indexer.config import RotationKind
from searchengine.indexer.segment import SegmentConfig
from searchengine.indexer.tuning.points import recalls
from searchengine.trainer.evaluation.significance import Values
from searchengine.trainer.training import posthoc
from searchengine.trainer.training.posthoc import LinearMap

NEIGHBOURS, SHORTLIST = 10, 25
"""The rotation is judged by the share of a question's nearest passages that its shortlist holds.
The shortlist is short because a longer one finds nearly all of them by any rotation."""
MEASURE = f"share of the {NEIGHBOURS} nearest passages in a shortlist of {SHORTLIST}"
PASSAGES = 20_000
"""Passages that are ranked in training, of more an even sample; `posthoc.rotation` begins by their
strongest axes."""
MIN_GAIN = 0.005
"""The interval of the difference in this share has to be above."""
STRENGTHS = ((100, 1e-3), (300, 1e-3))
"""Updates and learning rate of the rotations that the validation questions choose from."""


def needless(snapshot: Snapshot, config: SegmentConfig) -> str | None:
    """Why no rotation changes what a collection finds, as a clause; None if one may.

    config: of its index.
    """
    dim = int(snapshot.settings["encoder"]["dim"])
    if config.prefix >= dim:
        return f"the prefix of the index has all {dim} dimensions"
    segments = snapshot.segments.values()
    if segments and all(segment.config.shortlist >= segment.rows for segment in segments):
        return (
            f"all {snapshot.rows:,} passages are scored at full width, so the prefix decides "
            "nothing"
        )
    return None


def train_and_judge(
    material: Material, snapshot: Snapshot, config: SegmentConfig, seed: int, progress: Progress
) -> Outcome:
    """Train rotations of several strengths, choose one in validation, and judge it.

    Passages of all documents are ranked in training, as the rotation of an index is fitted on all
    that it stores: what is held out are questions. config: of the index; its prefix is trained. The
    judgement scans all prefixes, whatever the structure of the index: it concerns the rotation
    alone.
    """
    before, after = scanned(config), scanned(kept(config))

    def score(
        corpus: Corpus, _: Sequence[Question], vectors: Floats, change: LinearMap | None
    ) -> Values:
        return agreement(corpus, vectors, before if change is None else after, change)

    _, questions = of_part(material, Part.TRAINING)
    corpus = Corpus.of_collection(snapshot, material.sample)
    passages = _evenly(corpus)
    updates = sum(steps for steps, _ in STRENGTHS)
    maps = [
        posthoc.rotation(
            questions,
            passages,
            config.prefix,
            seed=seed,
            steps=steps,
            learning_rate=rate,
            report=lambda *_: progress("Training", 1, updates),
        )
        for steps, rate in STRENGTHS
    ]
    # Among all documents: of fewer, a shortlist of the same length holds more by any rotation.
    chosen = best(material, corpus, maps, score, progress)
    if chosen is None:
        return Outcome(None, (), len(questions), NO_MAP)

    def measure(
        sample: Sample | None,
        asked: Sequence[Question],
        vectors: Floats,
        change: LinearMap | None,
    ) -> dict[str, Values]:
        return {MEASURE: score(Corpus.of_collection(snapshot, sample), asked, vectors, change)}

    judged, former, learnt = held_out(material, chosen, measure, progress)
    rows = rows_of(judged, former[MEASURE], learnt[MEASURE])
    return Outcome(chosen, rows, len(questions), objection(rows, MIN_GAIN))


def _evenly(corpus: Corpus) -> Floats:
    """At most PASSAGES of the passages, evenly spread: (n, D)."""
    chosen, blocks, start = evenly(len(corpus.documents), PASSAGES), [], 0
    for block in corpus.blocks():
        inside = chosen[(chosen >= start) & (chosen < start + len(block))]
        blocks.append(block[inside - start])
        start += len(block)
    return np.concatenate(blocks)


def scanned(config: SegmentConfig) -> SegmentConfig:
    """The config of the judgement: all prefixes are scanned for a shortlist of SHORTLIST."""
    return replace(config.scanned(), shortlist=SHORTLIST, stages=(), bounds=0)


def kept(config: SegmentConfig) -> SegmentConfig:
    """The config of an index that keeps a learnt prefix, as a reindex chooses it."""
    if config.rotation is RotationKind.IDENTITY:
        return config
    return replace(config, rotation=RotationKind.BLOCKS, blocks=(config.prefix,))


def agreement(
    corpus: Corpus, vectors: Floats, config: SegmentConfig, change: LinearMap | None = None
) -> Values:
    """The share of each question's NEIGHBOURS nearest passages that an index finds, (q,).

    vectors: (q, D), the questions. config: with the length of the shortlist. change: applied to
    questions and corpus.
    """
    with indexed(corpus, vectors, config, change) as (segment, batches):
        shares = [
            recalls(segment.search(batch, NEIGHBOURS).rows, segment.exact(batch, NEIGHBOURS).rows)
            for batch in batches
        ]
    return np.concatenate(shares)
