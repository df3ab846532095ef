"""From the vectors of a batch to the scalar that is minimised, as the configuration wants it.

Each term is a function of `losses`; here they get their candidates, masks, targets
and weights. An objective gives the texts of a batch that this process encodes (`views`), the layers
after which their vectors are needed, the last one last (`layers`; () for the last alone), and the
loss of the vectors (`loss`: a scalar from (L, n, D) for each view). The batch's loss is the sum
over all processes.
"""

import functools
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize, pad
from torch.utils.checkpoint import checkpoint

from searchengine.trainer.encoder import Role
from searchengine.trainer.model.model_folder import Model
from searchengine.trainer.training.losses import (
    cosent,
    info_nce,
    layer_distillation,
    matryoshka,
    paired_cosines,
    supervised_contrastive,
)
from searchengine.trainer.training.passes import View
from searchengine.trainer.training.processes import Processes
from searchengine.trainer.training.rows import Batch
from searchengine.trainer.training.train_config import (
    Objective,
    TrainConfig,
)
from searchengine.trainer.training.training_model import TrainingModel, text_ids

# Cosines of anchors and candidates that are computed at a time: with more of them, each part is
# computed again for its gradient, so that memory does not grow with the square of the batch.
_COSINES_AT_ONCE = 1 << 18


class PrefixObjective:
    """What all objectives share: the prefixes of an update, and vectors of several processes."""

    def __init__(self, config: TrainConfig, dims: Sequence[int], processes: Processes):
        self.config = config
        self.dims = tuple(dims)
        self.weights = config.prefix_weights or (1.0,) * len(self.dims)
        self.processes = processes

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
        """The texts of this process: anchors, positives and negatives."""
        mine = rows[self.processes.mine(len(rows))]
        # Two views of one sentence are not question and answer: prompts would tell them apart.
        role: Role = "document" if rows[0].one_text else "query"  # a batch has rows of one kind
        return [
            View([row.anchor for row in mine], role),
            View([row.positive for row in mine], "document"),
            View([text for row in mine for text in row.negatives], "document"),
        ]

    def gather(self, vectors: Tensor, rows: Batch) -> Tensor:
        """The anchors or positives of all processes: (…, n, D) of this one to (…, B, D)."""
        return self.processes.gather(vectors, self.processes.sizes(len(rows)))

    def gather_candidates(self, positives: Tensor, negatives: Tensor, rows: Batch) -> Tensor:
        """Positives, then negatives, of all processes: (…, n, D) of this one to (…, N, D)."""
        blocks = self.processes.parts(len(rows))
        counts = [sum(len(row.negatives) for row in rows[block]) for block in blocks]
        others = self.processes.gather(negatives, counts)
        return torch.cat([self.gather(positives, rows), others], dim=-2)


@dataclass(frozen=True, slots=True)
class Contrast:
    """The anchors of this process, and the candidates of all processes for every one of them.

    Candidate i is the positive of row i. After the positives come the hard negatives of all rows,
    then the vectors of the queue.

    labels, anchor_texts: (n,), the anchors' rows in the batch, and the ids of their texts. vectors:
    (L, N, D). texts: (N,), the ids of the candidates' texts. owners: (N,), the row whose hard
    negative a candidate is, −1 for other candidates. For the ids of texts see `text_ids`.
    """

    labels: Tensor
    anchor_texts: Tensor
    vectors: Tensor
    texts: Tensor
    owners: Tensor


class Contrastive(PrefixObjective):
    """InfoNCE over in-batch, hard and queued candidates, nested over prefixes and layers."""

    def __init__(
        self,
        training_model: TrainingModel,
        config: TrainConfig,
        dims: Sequence[int],
        processes: Processes,
    ):
        super().__init__(config, dims, processes)
        self.training_model = training_model

    def layers(self, step: int) -> tuple[int, ...]:
        last = self.training_model.sentence.layers
        count = min(self.config.layers_per_step, last - 1)
        layers = random.Random(f"layers {self.config.seed} {step}").sample(range(1, last), count)
        return (*sorted(layers), last) if layers else ()

    def loss(self, vectors: Sequence[Tensor], rows: Batch, step: int) -> Tensor:
        anchors = vectors[0]
        contrast = self._contrast(vectors, rows)
        count = len(contrast.labels)
        if not count:  # no anchors here, but gradients must flow back through the gathering
            return contrast.vectors.sum() * 0
        total = anchors.new_zeros(())
        for at in range(len(anchors) - 1):
            truncated, full = (torch.cat([v[layer] for v in vectors]) for layer in (at, -1))
            distance = layer_distillation(normalize(truncated, dim=-1), normalize(full, dim=-1))
            total = total + distance
        size = max(1, _COSINES_AT_ONCE // contrast.vectors.shape[1])
        blocks = [slice(start, start + size) for start in range(0, count, size)]
        for block in blocks:
            of_block = functools.partial(self._of_anchors, contrast, block, step)
            if len(blocks) > 1:
                of_block = functools.partial(checkpoint, of_block, use_reentrant=False)
            part = anchors[:, block]
            total = total + of_block(part) * part.shape[1] / count
        return total * count / len(rows)

    def _contrast(self, vectors: Sequence[Tensor], rows: Batch) -> Contrast:
        """vectors: (L, n, D) for each view of this process."""
        candidates = self.gather_candidates(vectors[1], vectors[2], rows)
        device = candidates.device
        texts = [row.positive for row in rows] + [t for row in rows for t in row.negatives]
        ids = text_ids(texts).to(device)
        queue = self.training_model.queue
        if queue is not None:
            candidates = torch.cat([candidates, queue.vectors.unsqueeze(0)], dim=1)
            ids = torch.cat([ids, queue.texts])
        owners = [i for i, row in enumerate(rows) for _ in row.negatives]
        around = len(rows), len(ids) - len(rows) - len(owners)
        owner_rows = pad(torch.tensor(owners, dtype=torch.int64, device=device), around, value=-1)
        mine = self.processes.mine(len(rows))
        labels = torch.arange(len(rows), device=device)[mine]
        anchor_texts = text_ids([row.anchor for row in rows[mine]]).to(device)
        return Contrast(labels, anchor_texts, candidates, ids, owner_rows)

    def _of_anchors(self, contrast: Contrast, block: slice, step: int, anchors: Tensor) -> Tensor:
        """InfoNCE of a block of anchors (L, b, D) among all candidates, nested."""
        labels = contrast.labels[block]
        bias = self._text_bias(contrast, block)
        total = anchors.new_zeros(())
        for layer in reversed(range(len(anchors))):
            value = self._nested(anchors[layer], contrast.vectors[layer], labels, bias, step)
            if layer < len(anchors) - 1:
                value = value / (len(anchors) - 1)
            total = total + value
        return total

    def _text_bias(self, contrast: Contrast, block: slice) -> Tensor:
        """(b, N): the part of the bias of a block of anchors that follows from the texts.

        −inf if a candidate has the text of the anchor or of its positive, log α at the anchor's own
        negatives.
        """
        ids, labels = contrast.texts, contrast.labels[block]
        anchors = contrast.anchor_texts[block].unsqueeze(1)
        same = (ids == anchors) | (ids == ids[labels].unsqueeze(1))  # (b, N)
        same[torch.arange(len(labels), device=ids.device), labels] = False  # its positive stays
        bias = torch.zeros(same.shape, device=ids.device)
        if self.config.hard_negative_weight != 1.0:
            own = contrast.owners == labels.unsqueeze(1)
            bias[own] = math.log(self.config.hard_negative_weight)
        return bias.masked_fill(same, float("-inf"))

    def _nested(
        self, anchors: Tensor, candidates: Tensor, labels: Tensor, bias: Tensor, step: int
    ) -> Tensor:
        """The loss after one layer, summed over the prefixes of the update."""
        nce = functools.partial(
            info_nce, labels=labels, bias=bias, temperature=self.config.temperature
        )
        return matryoshka(nce, *self.prefixes(step))(anchors, candidates)

    @torch.no_grad()
    def remember(self, vectors: Tensor, rows: Batch) -> None:
        """Add the positives of all processes to the queue. vectors: of this process's positives."""
        assert self.training_model.queue is not None
        gathered = self.gather(vectors, rows)
        ids = text_ids([row.positive for row in rows]).to(gathered.device)
        self.training_model.queue.push(gathered, ids)


class Classification(PrefixObjective):
    """(1 − λ) · cross-entropy + λ · supervised contrastive (Gunel et al., arXiv 2011.01403)."""

    def __init__(
        self,
        training_model: TrainingModel,
        config: TrainConfig,
        dims: Sequence[int],
        processes: Processes,
    ):
        super().__init__(config, dims, processes)
        assert training_model.classifier is not None
        self.classifier = training_model.classifier
        self._place = {label: i for i, label in enumerate(self.classifier.labels)}

    def views(self, rows: Batch) -> list[View]:
        return [replace(super().views(rows)[0], role="document")]

    def loss(self, vectors: Sequence[Tensor], rows: Batch, step: int) -> Tensor:
        # All processes compute the whole loss: an anchor's positives may be with any of them.
        x = self.gather(vectors[0][0], rows)  # (B, D)
        labels = torch.tensor([self._place[row.label] for row in rows], device=x.device)
        dims, weights = self.prefixes(step)
        share = self.config.label_weight
        total = x.new_zeros(())
        if share < 1:
            terms = (cross_entropy(self.classifier(x, dim), labels) for dim in dims)
            total = total + (1 - share) * sum(
                (w * term for w, term in zip(weights, terms, strict=True)), x.new_zeros(())
            )
        if share > 0:
            contrast = functools.partial(
                supervised_contrastive, labels=labels, temperature=self.config.label_temperature
            )
            total = total + share * matryoshka(contrast, dims, weights)(x, x)
        return total / self.processes.count


class Similarity(PrefixObjective):
    """CoSENT of the scores, over every prefix."""

    def views(self, rows: Batch) -> list[View]:
        anchors, positives, _ = super().views(rows)
        # The two texts have one role: a query prompt for one of them would tell them apart.
        return [replace(anchors, role="document"), positives]

    def loss(self, vectors: Sequence[Tensor], rows: Batch, step: int) -> Tensor:
        # All processes compute the whole loss: a pair is compared with those of all.
        first, second = (self.gather(v[0], rows) for v in vectors)  # (B, D)
        scores = torch.tensor([row.score for row in rows], device=first.device)
        loss = functools.partial(cosent, scores=scores, temperature=self.config.temperature)
        nested = matryoshka(loss, *self.prefixes(step), paired_cosines)
        return nested(first, second) / self.processes.count


AnyObjective = Contrastive | Classification | Similarity


def make_objective(
    config: TrainConfig,
    training_model: TrainingModel,
    model: Model,
    processes: Processes,
) -> AnyObjective:
    """The objective that the configuration names."""
    dims = model.matryoshka_dims
    match config.objective:
        case Objective.CLASSIFICATION:
            return Classification(training_model, config, dims, processes)
        case Objective.SIMILARITY:
            return Similarity(config, dims, processes)
        case _:
            return Contrastive(training_model, config, dims, processes)
