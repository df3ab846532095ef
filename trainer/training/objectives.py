"""From the vectors of a batch to the scalar that is minimised, as the configuration wants it.

Each term is a function of `losses`; here they get their candidates, masks, targets and weights. An
objective gives the texts of a batch (`views`), the layers after which their vectors are needed
(`layers`: the last one last; () for it alone), and the loss of the vectors (`loss`: a scalar from
(L, n, D) for each view).
"""

import functools
import math
import random
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize

from searchengine.trainer.encoder import Role
from searchengine.trainer.training.examples import Batch
from searchengine.trainer.training.losses import (
    cosent,
    info_nce,
    layer_distillation,
    matryoshka,
    paired_cosines,
    supervised_contrastive,
)
from searchengine.trainer.training.moco import text_ids
from searchengine.trainer.training.passes import View
from searchengine.trainer.training.train_config import Objective, TrainConfig
from searchengine.trainer.training.training_model import TrainingModel


class PrefixObjective:
    """What all objectives share: the prefixes of an update."""

    def __init__(self, config: TrainConfig, dims: Sequence[int], training_model: TrainingModel):
        self.config = config
        self.dims = tuple(dims)
        self.weights = config.prefix_weights or (1.0,) * len(self.dims)
        self.training_model = training_model

    def layers(self, step: int) -> tuple[int, ...]:
        """The layers after which vectors are needed; () for the last alone."""
        return ()

    def prefixes(self, step: int) -> tuple[list[int], list[float]]:
        """The prefixes of an update and their weights: all, or one if layers are drawn as well.

        The one is drawn by the number of the update, as 2D Matryoshka does (arXiv 2402.14776).
        """
        if not self.config.layers_per_step:
            return list(self.dims), list(self.weights)
        chosen = random.Random(f"prefixes {self.config.seed} {step}").randrange(len(self.dims))
        return [self.dims[chosen]], [self.weights[chosen]]

    def views(self, rows: Batch) -> list[View]:
        """Anchors, positives and negatives of a batch, whose rows are of one kind.

        A pair alone is a question and its answer: prompts would tell apart the two views of one
        sentence, and the sides of a scored pair.
        """
        role: Role = "query" if rows[0].kind == "pairs" else "document"
        return [
            View([row.anchor for row in rows], role),
            View([row.positive for row in rows if not row.label], "document"),
            View([text for row in rows for text in row.negatives], "document"),
        ]

    def loss(self, vectors: Sequence[Tensor], rows: Batch, step: int) -> Tensor:
        """A scalar from the vectors (L, n, D) of each view."""
        raise NotImplementedError


class Contrastive(PrefixObjective):
    """InfoNCE over in-batch, hard and queued candidates, nested over prefixes and layers.

    Candidate i is the positive of row i. After the positives come the hard negatives of all rows,
    then the vectors of the queue.
    """

    def layers(self, step: int) -> tuple[int, ...]:
        last = self.training_model.sentence.layers
        count = min(self.config.layers_per_step, last - 1)
        layers = random.Random(f"layers {self.config.seed} {step}").sample(range(1, last), count)
        return (*sorted(layers), last) if layers else ()

    def loss(self, vectors: Sequence[Tensor], rows: Batch, step: int) -> Tensor:
        anchors, candidates = vectors[0], torch.cat(tuple(vectors[1:]), dim=1)
        *truncated, full = normalize(torch.cat([anchors, candidates], dim=1), dim=-1)
        total = anchors.new_zeros(())
        for layer in truncated:
            total = total + layer_distillation(layer, full)
        queue = self.training_model.queue
        if queue is not None:
            candidates = torch.cat([candidates, queue.vectors.unsqueeze(0)], dim=1)
        bias = candidate_bias(
            rows, None if queue is None else queue.texts.cpu(), self.config.hard_negative_weight
        ).to(anchors.device)
        nce = functools.partial(info_nce, bias=bias, temperature=self.config.temperature)
        nested = matryoshka(nce, *self.prefixes(step))
        *shallow, deep = (nested(a, c) for a, c in zip(anchors, candidates, strict=True))
        return total + deep + sum(shallow) / max(1, len(shallow))  # a weight for all but the last


def candidate_bias(rows: Batch, queued: Tensor | None, hard_negative_weight: float) -> Tensor:
    """(B, N), to be added to the logits of the candidates of `Contrastive`.

    −inf if a candidate is another positive of the anchor, or has the text of the anchor or of its
    positive; log α at the anchor's own hard negatives. queued: (n,), ids of the queue's texts.
    """
    anchors = text_ids(row.anchor for row in rows)
    positives = text_ids(row.positive for row in rows)
    others = text_ids(text for row in rows for text in row.negatives)
    owners = [i for i, row in enumerate(rows) for _ in row.negatives]
    if queued is not None:
        others = torch.cat([others, queued])
    ids, of_anchor = torch.cat([positives, others]), torch.cat([anchors, others])
    anchor = anchors.unsqueeze(1)
    same = (ids == anchor) | (of_anchor == anchor) | (ids == positives.unsqueeze(1))  # (B, N)
    same.fill_diagonal_(False)  # its positive stays
    bias = torch.zeros(same.shape)
    bias[owners, range(len(rows), len(rows) + len(owners))] = math.log(hard_negative_weight)
    return bias.masked_fill(same, float("-inf"))


class Classification(PrefixObjective):
    """(1 − λ) · cross-entropy + λ · supervised contrastive (Gunel et al., arXiv 2011.01403)."""

    def loss(self, vectors: Sequence[Tensor], rows: Batch, step: int) -> Tensor:
        classifier = self.training_model.classifier
        assert classifier is not None
        x = vectors[0][0]  # (B, D)
        labels = torch.tensor([classifier.labels.index(row.label) for row in rows], device=x.device)
        dims, weights = self.prefixes(step)
        share = self.config.label_weight
        total = x.new_zeros(())
        if share < 1:
            for dim, weight in zip(dims, weights, strict=True):
                total = total + (1 - share) * weight * cross_entropy(classifier(x, dim), labels)
        if share > 0:
            contrast = functools.partial(
                supervised_contrastive, labels=labels, temperature=self.config.label_temperature
            )
            total = total + share * matryoshka(contrast, dims, weights)(x, x)
        return total


class Similarity(PrefixObjective):
    """CoSENT of the scores, over every prefix."""

    def loss(self, vectors: Sequence[Tensor], rows: Batch, step: int) -> Tensor:
        first, second = vectors[0][0], vectors[1][0]  # (B, D)
        scores = torch.tensor([row.score for row in rows], device=first.device)
        loss = functools.partial(cosent, gold=scores, temperature=self.config.temperature)
        return matryoshka(loss, *self.prefixes(step), paired_cosines)(first, second)


OBJECTIVES: dict[Objective, type[PrefixObjective]] = {
    Objective.CONTRASTIVE: Contrastive,
    Objective.CLASSIFICATION: Classification,
    Objective.SIMILARITY: Similarity,
}
