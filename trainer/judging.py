"""Which step of a run is best: a score per prefix length, higher is better."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainer.classifier import accuracy
from trainer.config import Objective, TrainConfig
from trainer.data import Examples, hold_out, read_file
from trainer.encoder import Encoder, Role
from trainer.evaluation import ScoredPair, read_sts, sts
from trainer.geometry import alignment, uniformity
from trainer.positives import Drawn

Scores = Mapping[int, float]
# Pairs that people scored this high mean the same (of 5; SimCSE, arXiv 2104.08821, section 5).
ALIKE = 4.0


@dataclass(frozen=True, slots=True)
class Judgement:
    """scores: by prefix length. alignment, uniformity: of the full width; None without STS files.

    What a prefix scored is Spearman's correlation on STS files, the accuracy on labelled ones, and
    without either the share of held-out anchors whose own positive is nearest.
    """

    scores: Scores = field(default_factory=dict)
    alignment: float | None = None
    uniformity: float | None = None

    def __bool__(self) -> bool:
        return bool(self.scores)


Judge = Callable[[Encoder], Judgement]


def make_judge(config: TrainConfig, examples: Examples) -> tuple[Judge | None, Examples]:
    """The judge of a run, and the examples left for training.

    Without `dev` files some examples are held out. None for sentences alone, or too few examples
    to hold some out.
    """
    labels = config.objective is Objective.CLASSIFICATION
    if config.dev and labels:
        read = [texts for path in config.dev for _, texts in read_file(path, labelled=True)]
        return lambda encoder: _judge_labels(encoder, read), examples
    if config.dev:
        pairs = read_sts(config.dev)
        return lambda encoder: judge_pairs(encoder, pairs), examples
    rest, held = hold_out(examples, config.seed)
    if not held:
        return None, examples
    if labels:
        own = [(row.anchor, row.label) for row in held]
        return lambda encoder: _judge_labels(encoder, own), rest
    return lambda encoder: Judgement(top1_accuracy(encoder, held)), rest


def judge_pairs(encoder: Encoder, pairs: Sequence[ScoredPair]) -> Judgement:
    """Spearman's correlation, and the geometry of the same vectors (arXiv 2005.10242)."""
    known = Remembered(encoder)
    scores = {row.dim: row.spearman for row in sts(known, pairs, encoder.matryoshka_dims)}
    alike = [(a, b) for score, a, b in pairs if score >= ALIKE]
    near = None
    if alike:
        near = alignment(known.encode([a for a, _ in alike]), known.encode([b for _, b in alike]))
    return Judgement(scores, near, uniformity(known.all_rows()))


class Remembered:
    """An encoder that encodes a text once."""

    def __init__(self, encoder: Encoder):
        self._encoder = encoder
        self._known: dict[str, NDArray[np.float32]] = {}

    def encode(
        self, texts: Sequence[str], *, role: Role | None = None, on_batch: Any = None
    ) -> NDArray[np.float32]:
        """As the encoder's own, for texts of one role."""
        fresh = [text for text in dict.fromkeys(texts) if text not in self._known]
        vectors = self._encoder.encode(fresh, role=role, on_batch=on_batch)
        self._known.update(zip(fresh, vectors, strict=True))
        return np.stack([self._known[text] for text in texts])

    def all_rows(self) -> NDArray[np.float32]:
        """The rows of all texts so far."""
        return np.stack(list(self._known.values()))


def _judge_labels(encoder: Encoder, labelled: Sequence[tuple[str, ...]]) -> Judgement:
    rows = accuracy(encoder, [(texts[0], texts[1]) for texts in labelled])
    return Judgement({row.dim: row.accuracy for row in rows})


def top1_accuracy(encoder: Encoder, rows: Sequence[Drawn]) -> dict[int, float]:
    """Share of anchors nearer to their own positive than to any other, per prefix length.

    A positive with the same text as the anchor's own is no mistake: it counts once, as its own.
    """
    positives = list(dict.fromkeys(row.positive for row in rows))
    place = {text: i for i, text in enumerate(positives)}
    own = np.array([place[row.positive] for row in rows])
    queries = encoder.encode([row.anchor for row in rows], role="query")
    documents = encoder.encode(positives, role="document")
    scores = {}
    for dim in encoder.matryoshka_dims:
        a, b = queries[:, :dim], documents[:, :dim]
        lengths = np.linalg.norm(b, axis=1)
        cosines = (a @ b.T) / np.maximum(lengths, 1e-12)  # the anchor's own length ranks nothing
        scores[dim] = float(np.mean(cosines.argmax(axis=1) == own))
    return scores
