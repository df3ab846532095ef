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
from torch.utils.checkpoint import checkpoint

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
from searchengine.trainer.training.passes import View
from searchengine.trainer.training.train_config import Objective, TrainConfig
from searchengine.trainer.training.training_model import TrainingModel, text_ids

# Cosines of anchors and candidates that are computed at a time: with more of them, each part is
# computed again for its gradient, so that memory does not grow with the square of the batch.
COSINES_AT_ONCE = 1 << 20


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
        """The texts of a batch."""
        raise NotImplementedError

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

    def views(self, rows: Batch) -> list[View]:
        """Anchors, positives and negatives."""
        # Two views of one sentence are not question and answer: prompts would tell them apart.
        role: Role = "document" if rows[0].one_text else "query"  # a batch has rows of one kind
        return [
            View([row.anchor for row in rows], role),
            View([row.positive for row in rows], "document"),
            View([text for row in rows for text in row.negatives], "document"),
        ]

    def loss(self, vectors: Sequence[Tensor], rows: Batch, step: int) -> Tensor:
        anchors, candidates = vectors[0], torch.cat(tuple(vectors[1:]), dim=1)
        *truncated, full = normalize(torch.cat([anchors, candidates], dim=1), dim=-1)
        total = anchors.new_zeros(())
        for layer in truncated:
            total = total + layer_distillation(layer, full)
        ids = text_ids([row.positive for row in rows] + [t for row in rows for t in row.negatives])
        owners = [-1] * len(rows) + [i for i, row in enumerate(rows) for _ in row.negatives]
        queue = self.training_model.queue
        if queue is not None:
            candidates = torch.cat([candidates, queue.vectors.unsqueeze(0)], dim=1)
            ids = torch.cat([ids.to(queue.texts), queue.texts])
            owners += [-1] * len(queue.texts)
        texts = torch.stack([ids, ids.new_tensor(owners)]).to(anchors.device)
        sources = text_ids(row.anchor for row in rows).to(anchors.device)
        size = max(1, COSINES_AT_ONCE // candidates.shape[1])
        for start in range(0, len(rows), size):
            labels = torch.arange(len(rows), device=anchors.device)[start : start + size]
            arguments = anchors[:, labels], candidates, labels, sources[labels], texts, step
            if size < len(rows):
                part = checkpoint(self._of_anchors, *arguments, use_reentrant=False)
            else:
                part = self._of_anchors(*arguments)
            total = total + part * len(labels) / len(rows)
        return total

    def _of_anchors(
        self,
        anchors: Tensor,
        candidates: Tensor,
        labels: Tensor,
        sources: Tensor,
        texts: Tensor,
        step: int,
    ) -> Tensor:
        """InfoNCE of some anchors (L, b, D) among all candidates (L, N, D), nested.

        labels, sources: (b,), the anchors' rows in the batch, and the ids of their texts. texts:
        (2, N), of the candidates, and the row whose hard negative each is, or −1. The layers before
        the last share a weight.
        """
        ids, owners = texts
        bias = candidate_bias(labels, sources, ids, owners, self.config.hard_negative_weight)
        nce = functools.partial(
            info_nce, labels=labels, bias=bias, temperature=self.config.temperature
        )
        nested = matryoshka(nce, *self.prefixes(step))
        *truncated, full = (nested(a, c) for a, c in zip(anchors, candidates, strict=True))
        return full + sum(truncated) / max(1, len(truncated))


def candidate_bias(
    labels: Tensor, sources: Tensor, ids: Tensor, owners: Tensor, hard_negative_weight: float
) -> Tensor:
    """(b, N), to be added to the logits: see `Contrastive._of_anchors`.

    −inf if a candidate has the text of the anchor or of its positive, log α at the anchor's own
    hard negatives.
    """
    rows = labels.unsqueeze(1)
    same = (ids == sources.unsqueeze(1)) | (ids == ids[rows])  # (b, N)
    same.scatter_(1, rows, False)  # its positive stays
    bias = (owners == rows) * math.log(hard_negative_weight)
    return bias.masked_fill(same, float("-inf"))


class Classification(PrefixObjective):
    """(1 − λ) · cross-entropy + λ · supervised contrastive (Gunel et al., arXiv 2011.01403)."""

    def views(self, rows: Batch) -> list[View]:
        """The labelled texts."""
        return [View([row.anchor for row in rows], "document")]

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

    def views(self, rows: Batch) -> list[View]:
        """The texts of each pair, in one role: a prompt for one of them would tell them apart."""
        return [
            View([row.anchor for row in rows], "document"),
            View([row.positive for row in rows], "document"),
        ]

    def loss(self, vectors: Sequence[Tensor], rows: Batch, step: int) -> Tensor:
        first, second = (x[0] for x in vectors)  # (B, D)
        scores = torch.tensor([row.score for row in rows], device=first.device)
        loss = functools.partial(cosent, scores=scores, temperature=self.config.temperature)
        return matryoshka(loss, *self.prefixes(step), paired_cosines)(first, second)


OBJECTIVES: dict[Objective, type[PrefixObjective]] = {
    Objective.CONTRASTIVE: Contrastive,
    Objective.CLASSIFICATION: Classification,
    Objective.SIMILARITY: Similarity,
}
