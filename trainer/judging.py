"""Which step of a run is best: a score per prefix length, higher is better."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from trainer.config import TrainConfig
from trainer.data import Examples, hold_out
from trainer.encoder import Encoder
from trainer.evaluation import read_sts, sts
from trainer.positives import Drawn

Scores = Mapping[int, float]
Judge = Callable[[Encoder], Scores]


def make_judge(config: TrainConfig, examples: Examples) -> tuple[Judge | None, Examples]:
    """The judge of a run, and the examples left for training.

    With `dev` files: Spearman's correlation on them. Without: some examples are held out, and the
    score is the share of anchors whose positive is nearest among all held-out positives. None for
    sentences alone, or too few pairs to hold some out.
    """
    if config.dev:
        pairs = read_sts(config.dev)
        return lambda encoder: {row.dim: row.spearman for row in sts(encoder, pairs)}, examples
    rest, held = hold_out(examples, config.seed)
    if not held:
        return None, examples
    return lambda encoder: top1_accuracy(encoder, held), rest


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
