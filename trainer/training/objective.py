"""From a batch of rows to the scalar that is minimised, as the configuration puts it together.

Each term is a function of `losses.contrastive`; here they get their candidates, masks and weights.
An objective gives the texts of a batch that this process encodes (`views`), the layers after which
their vectors are needed, the last one last (`layers`; () for the last alone), and the loss of the
vectors (`loss`: a scalar from (L, n, dim) for each view). The batch's loss is the sum over all
processes.
"""

import functools
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize, pad

from trainer.encoder import Role
from trainer.training.config import TrainConfig
from trainer.training.data.files import Batch
from trainer.training.losses.contrastive import (
    distillation,
    info_nce,
    layer_distillation,
    matryoshka,
    supervised_contrastive,
)
from trainer.training.losses.cosines import cosines, nested_cosines
from trainer.training.passes import View
from trainer.training.processes import Processes
from trainer.training.training_model import TrainingModel, text_ids


@dataclass(frozen=True, slots=True)
class Candidates:
    """The candidates for every anchor of a batch; candidate i is the positive of row i.

    After the positives come the hard negatives of all rows, then the vectors of the queue.

    vectors: (L, N, D). text_ids: (N,), see `text_ids`. owners: (N,), the row whose hard negative a
    candidate is, −1 for other candidates.
    """

    vectors: Tensor
    text_ids: Tensor
    owners: Tensor


class Contrastive:
    """InfoNCE over in-batch, hard and queued candidates, nested over prefixes and layers."""

    def __init__(
        self,
        training_model: TrainingModel,
        config: TrainConfig,
        dims: Sequence[int],
        processes: Processes,
    ):
        self.training_model = training_model
        self.config = config
        self.dims = tuple(dims)
        self.weights = config.prefix_weights or (1.0,) * len(self.dims)
        self.processes = processes

    def views(self, rows: Batch) -> list[View]:
        mine = rows[self.processes.mine(len(rows))]
        negatives = [text for row in mine for text in row.negatives]
        other = self.config.encoders - 1
        # Two views of one sentence are not question and answer: prompts would tell them apart.
        role: Role = "document" if rows[0].one_text else "query"  # a batch has rows of one kind
        return [
            View([row.anchor for row in mine], role),
            View([row.positive for row in mine], "document", other),
            View(negatives, "document", other),
        ]

    def layers(self, step: int) -> tuple[int, ...]:
        last = self.training_model.sentence.layers
        count = min(self.config.layers_per_step, last - 1)
        layers = random.Random(f"layers {self.config.seed} {step}").sample(range(1, last), count)
        return (*sorted(layers), last) if layers else ()

    def loss(self, vectors: Sequence[Tensor], rows: Batch, step: int) -> Tensor:
        anchors, positives, negatives = vectors
        candidates = self._candidates(positives, negatives, rows)
        mine = self.processes.mine(len(rows))
        labels = torch.arange(len(rows), device=positives.device)[mine]
        if not len(labels):  # no anchors here, but gradients must flow back through the gathering
            return candidates.vectors.sum() * 0
        fixed = self._fixed_bias(rows, candidates)
        total = positives.new_zeros(())
        for layer in reversed(range(len(anchors))):
            of_layer = candidates.vectors[layer]
            bias = self._masked(fixed, anchors[layer], of_layer, labels)
            value = self._nested(anchors[layer], of_layer, labels, bias, step)
            if layer < len(anchors) - 1:
                value = self.config.layer_weight * value / (len(anchors) - 1)
                truncated, full = (torch.cat([v[at] for v in vectors]) for at in (layer, -1))
                distance = layer_distillation(normalize(truncated, dim=-1), normalize(full, dim=-1))
                value = value + self.config.layer_distillation * distance
            total = total + value
        return total * len(labels) / len(rows)

    def _candidates(self, positives: Tensor, negatives: Tensor, rows: Batch) -> Candidates:
        """The candidates of all processes. positives, negatives: (L, n, D) of this process."""
        sizes = self.processes.sizes(len(rows))
        counts = [sum(len(row.negatives) for row in rows[part]) for part in self._parts(rows)]
        vectors = [
            self.processes.gather(positives, sizes),
            self.processes.gather(negatives, counts),
        ]
        ids = text_ids([row.positive for row in rows] + [t for row in rows for t in row.negatives])
        ids = ids.to(positives.device)
        queue = self.training_model.queue
        if queue is not None:
            vectors.append(queue.vectors.unsqueeze(0))
            ids = torch.cat([ids, queue.texts])
        of_negatives = [i for i, row in enumerate(rows) for _ in row.negatives]
        owners = pad(
            torch.tensor(of_negatives, dtype=torch.int64, device=positives.device),
            (len(rows), len(ids) - len(rows) - len(of_negatives)),
            value=-1,
        )
        return Candidates(torch.cat(vectors, dim=1), ids, owners)

    def _parts(self, rows: Batch) -> list[slice]:
        """The rows of each process."""
        count = self.processes.count
        return [Processes(rank, count).mine(len(rows)) for rank in range(count)]

    def _fixed_bias(self, rows: Batch, candidates: Candidates) -> Tensor:
        """(B, N) for this process's anchors: the part of the bias that follows from the texts.

        −inf where a candidate has the text of the anchor or of its positive, log α at the
        anchor's own negatives.
        """
        mine = self.processes.mine(len(rows))
        ids = candidates.text_ids
        anchors = text_ids([row.anchor for row in rows[mine]]).to(ids.device)
        positives = ids[mine]
        same = (ids == anchors.unsqueeze(1)) | (ids == positives.unsqueeze(1))  # (B, N)
        places = torch.arange(len(rows), device=ids.device)[mine]
        same[torch.arange(len(places), device=ids.device), places] = False  # its positive stays
        bias = torch.zeros(same.shape, device=ids.device)
        if self.config.hard_negative_weight != 1.0:
            own = candidates.owners == places.unsqueeze(1)
            bias[own] = math.log(self.config.hard_negative_weight)
        return bias.masked_fill(same, float("-inf"))

    def _masked(self, fixed: Tensor, anchors: Tensor, candidates: Tensor, labels: Tensor) -> Tensor:
        """fixed, and −inf where a candidate is too similar to be a negative (`mask_above`)."""
        if self.config.mask_above is None:
            return fixed
        similar = cosines(anchors.detach(), candidates.detach()) > self.config.mask_above
        similar[torch.arange(len(labels), device=similar.device), labels] = False
        return fixed.masked_fill(similar, float("-inf"))

    def _nested(
        self, anchors: Tensor, candidates: Tensor, labels: Tensor, bias: Tensor, step: int
    ) -> Tensor:
        config = self.config
        dims, weights = drawn_prefixes(self.dims, self.weights, config, step)
        nce = functools.partial(info_nce, labels=labels, bias=bias, temperature=config.temperature)
        if config.prefix_distillation == 0:
            return matryoshka(nce, dims, weights)(anchors, candidates)
        full, *scores = nested_cosines(anchors, candidates, (self.dims[0], *dims))
        total = anchors.new_zeros(())
        for dim, weight, of_prefix in zip(dims, weights, scores, strict=True):
            total = total + weight * nce(of_prefix)
            if dim < self.dims[0]:
                distance = distillation(of_prefix, full, temperature=config.temperature, bias=bias)
                total = total + weight * config.prefix_distillation * distance
        return total

    @torch.no_grad()
    def remember(self, vectors: Tensor, rows: Batch) -> None:
        """Add the positives of all processes to the queue. vectors: of this process's positives."""
        assert self.training_model.queue is not None
        gathered = self.processes.gather(vectors, self.processes.sizes(len(rows)))
        ids = text_ids([row.positive for row in rows]).to(gathered.device)
        self.training_model.queue.push(gathered, ids)


class Classification:
    """(1 − λ) · cross-entropy + λ · supervised contrastive (Gunel et al., arXiv 2011.01403).

    Label smoothing: Szegedy et al., arXiv 1512.00567. Mixup of sentence vectors: Guo et al., arXiv
    1905.08941, in the cross-entropy alone, where a mixed label means something.
    """

    def __init__(
        self,
        training_model: TrainingModel,
        config: TrainConfig,
        dims: Sequence[int],
        processes: Processes,
    ):
        assert training_model.classifier is not None
        self.classifier = training_model.classifier
        self.config = config
        self.dims = tuple(dims)
        self.weights = config.prefix_weights or (1.0,) * len(self.dims)
        self.processes = processes
        self._place = {label: i for i, label in enumerate(self.classifier.labels)}

    def views(self, rows: Batch) -> list[View]:
        mine = rows[self.processes.mine(len(rows))]
        return [View([row.anchor for row in mine], "document")]

    def layers(self, step: int) -> tuple[int, ...]:
        return ()

    def loss(self, vectors: Sequence[Tensor], rows: Batch, step: int) -> Tensor:
        # All processes compute the whole loss: an anchor's positives may be with any of them.
        sizes = self.processes.sizes(len(rows))
        x = self.processes.gather(vectors[0][0], sizes)  # (B, D)
        labels = torch.tensor([self._place[row.label] for row in rows], device=x.device)
        config = self.config
        dims, weights = drawn_prefixes(self.dims, self.weights, config, step)
        share = config.label_weight
        total = x.new_zeros(())
        if share < 1:
            seed = [self.config.seed, step, abs(int(text_ids([rows[0].anchor])))]
            terms = (self._cross_entropy(x, labels, dim, seed) for dim in dims)
            total = total + (1 - share) * sum(
                (w * term for w, term in zip(weights, terms, strict=True)), x.new_zeros(())
            )
        if share > 0:
            contrast = functools.partial(
                supervised_contrastive, labels=labels, temperature=config.label_temperature
            )
            total = total + share * matryoshka(contrast, dims, weights)(x, x)
        return total / self.processes.count

    def _cross_entropy(self, x: Tensor, labels: Tensor, dim: int, seed: Sequence[int]) -> Tensor:
        """The loss of the logits over a prefix. seed: of the mixing, by batch."""
        smoothing = self.config.label_smoothing
        if self.config.mixup == 0:
            logits = self.classifier(x, dim)
            return cross_entropy(logits, labels, label_smoothing=smoothing)
        # PCG64, not torch: the same for every number of processes.
        rng = np.random.default_rng(seed)
        part = float(rng.beta(self.config.mixup, self.config.mixup))
        other = torch.from_numpy(rng.permutation(len(x))).to(x.device)
        unit = normalize(x, dim=-1)
        logits = self.classifier(part * unit + (1 - part) * unit[other], dim)
        first, second = (
            cross_entropy(logits, target, label_smoothing=smoothing)
            for target in (labels, labels[other])
        )
        return part * first + (1 - part) * second


def drawn_prefixes(
    dims: Sequence[int], weights: Sequence[float], config: TrainConfig, step: int
) -> tuple[list[int], list[float]]:
    """The prefixes of an update and their weights: all, or a sample that its number seeds."""
    chosen = range(len(dims))
    if 0 < config.prefixes_per_step < len(dims):
        rng = random.Random(f"prefixes {config.seed} {step}")
        chosen = sorted(rng.sample(chosen, config.prefixes_per_step))  # type: ignore[assignment]
    return [dims[i] for i in chosen], [weights[i] for i in chosen]
