"""From a batch of rows to the scalar that is minimised, as the configuration puts it together.

Each term is a function of `losses.contrastive`; here they get their candidates, masks and
weights. An objective says which texts this process encodes of a batch (`views`), after which
layers their vectors are wanted, the last one last (`layers`; () for the last alone), and what is
lost (`loss`, a scalar of (L, n, dim) vectors for each view). The sum over all processes is the
batch's loss.
"""

import functools
import math
import random
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize

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
from trainer.training.training_model import Trainee, text_numbers


class Contrastive:
    """InfoNCE over in-batch, hard and queued candidates, nested over prefixes and layers."""

    def __init__(
        self, trainee: Trainee, config: TrainConfig, dims: Sequence[int], processes: Processes
    ):
        self.trainee = trainee
        self.config = config
        self.dims = tuple(dims)
        self.weights = config.prefix_weights or (1.0,) * len(self.dims)
        self.processes = processes

    def views(self, rows: Batch) -> list[View]:
        mine = rows[self.processes.mine(len(rows))]
        against = [text for row in mine for text in row.negatives]
        other = self.config.encoders - 1
        # Two views of one sentence are no question and answer: a prompt would tell them apart.
        role: Role = "document" if rows[0].one_text else "query"  # a batch has rows of one kind
        return [
            View([row.anchor for row in mine], role),
            View([row.positive for row in mine], "document", other),
            View(against, "document", other),
        ]

    def layers(self, step: int) -> tuple[int, ...]:
        last = self.trainee.sentence.layers
        count = min(self.config.layers_per_step, last - 1)
        drawn = random.Random(f"layers {self.config.seed} {step}").sample(range(1, last), count)
        return (*sorted(drawn), last) if drawn else ()

    def loss(self, vectors: Sequence[Tensor], rows: Batch, step: int) -> Tensor:
        anchors, own, against = vectors
        sizes = self.processes.sizes(len(rows))
        counts = [sum(len(r.negatives) for r in rows[p]) for p in self._parts(rows)]
        candidates = [self.processes.gather(own, sizes), self.processes.gather(against, counts)]
        numbers = text_numbers(
            [row.positive for row in rows] + [text for row in rows for text in row.negatives]
        ).to(own.device)
        if self.trainee.queue is not None:
            candidates.append(self.trainee.queue.vectors.unsqueeze(0))
            numbers = torch.cat([numbers, self.trainee.queue.texts])
        everything = torch.cat(candidates, dim=1)  # (L, N, D)
        fixed = self._fixed_bias(rows, numbers)
        mine = self.processes.mine(len(rows))
        labels = torch.arange(len(rows), device=own.device)[mine]
        if not len(labels):  # no anchors, but the way back leads through the gathering
            return everything.sum() * 0
        total = own.new_zeros(())
        for layer in reversed(range(len(anchors))):
            bias = self._masked(fixed, anchors[layer], everything[layer], labels)
            value = self._nested(anchors[layer], everything[layer], labels, bias, step)
            if layer < len(anchors) - 1:
                value = self.config.layer_weight * value / (len(anchors) - 1)
                shallow, full = (torch.cat([v[at] for v in vectors]) for at in (layer, -1))
                drawn = layer_distillation(normalize(shallow, dim=-1), normalize(full, dim=-1))
                value = value + self.config.layer_distillation * drawn
            total = total + value
        return total * len(labels) / len(rows)

    def _parts(self, rows: Batch) -> list[slice]:
        """The rows of each process."""
        count = self.processes.count
        return [Processes(rank, count).mine(len(rows)) for rank in range(count)]

    def _fixed_bias(self, rows: Batch, numbers: Tensor) -> Tensor:
        """(B, N) for this process's anchors: what the texts alone say of the candidates.

        −inf where a candidate has the text of the anchor or of its positive, log α at the
        anchor's own negatives.
        """
        start, stop = (mine := self.processes.mine(len(rows))).start, mine.stop
        anchors = text_numbers([row.anchor for row in rows[mine]]).to(numbers.device)
        positives = numbers[start:stop]
        same = (numbers == anchors.unsqueeze(1)) | (numbers == positives.unsqueeze(1))  # (B, N)
        at = torch.arange(stop - start, device=numbers.device)
        same[at, at + start] = False  # its own positive stays
        bias = torch.zeros(same.shape, device=numbers.device)
        if self.config.hard_negative_weight != 1.0:
            owner = [i for i, row in enumerate(rows) for _ in row.negatives]
            of = torch.full((len(numbers),), -1, device=numbers.device)
            of[len(rows) : len(rows) + len(owner)] = torch.tensor(owner, device=numbers.device)
            bias[of == (at + start).unsqueeze(1)] = math.log(self.config.hard_negative_weight)
        return bias.masked_fill(same, float("-inf"))

    def _masked(self, fixed: Tensor, anchors: Tensor, candidates: Tensor, labels: Tensor) -> Tensor:
        """fixed, and −inf where a candidate lies too near to be false (`mask_above`)."""
        if self.config.mask_above is None:
            return fixed
        near = cosines(anchors.detach(), candidates.detach()) > self.config.mask_above
        near[torch.arange(len(labels), device=near.device), labels] = False
        return fixed.masked_fill(near, float("-inf"))

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
        for dim, weight, found in zip(dims, weights, scores, strict=True):
            total = total + weight * nce(found)
            if dim < self.dims[0]:
                drawn = distillation(found, full, temperature=config.temperature, bias=bias)
                total = total + weight * config.prefix_distillation * drawn
        return total

    @torch.no_grad()
    def remember(self, vectors: Tensor, rows: Batch) -> None:
        """Put the momentum encoder's vectors of this process's positives, and all others', away."""
        assert self.trainee.queue is not None
        found = self.processes.gather(vectors, self.processes.sizes(len(rows)))
        numbers = text_numbers([row.positive for row in rows]).to(found.device)
        self.trainee.queue.push(found, numbers)


class Classification:
    """(1 − λ) · cross-entropy + λ · supervised contrastive (Gunel et al., arXiv 2011.01403).

    Label smoothing: Szegedy et al., arXiv 1512.00567. Mixup of sentence vectors: Guo et al., arXiv
    1905.08941, in the cross-entropy alone, where a mixed label means something.
    """

    def __init__(
        self, trainee: Trainee, config: TrainConfig, dims: Sequence[int], processes: Processes
    ):
        assert trainee.classifier is not None
        self.classifier = trainee.classifier
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
            drawn = [self.config.seed, step, abs(int(text_numbers([rows[0].anchor])))]
            terms = (self._cross_entropy(x, labels, dim, drawn) for dim in dims)
            total = total + (1 - share) * sum(
                (w * term for w, term in zip(weights, terms, strict=True)), x.new_zeros(())
            )
        if share > 0:
            contrast = functools.partial(
                supervised_contrastive, labels=labels, temperature=config.label_temperature
            )
            total = total + share * matryoshka(contrast, dims, weights)(x, x)
        return total / self.processes.count

    def _cross_entropy(self, x: Tensor, labels: Tensor, dim: int, drawn: Sequence[int]) -> Tensor:
        """Of the logits over a prefix. drawn: what the mixing follows from, by batch."""
        smoothing = self.config.label_smoothing
        if self.config.mixup == 0:
            logits = self.classifier(x, dim)
            return cross_entropy(logits, labels, label_smoothing=smoothing)
        # PCG64, not torch: the same for every number of processes.
        rng = np.random.default_rng(drawn)
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
    """The prefixes of an update and their weights: all, or some drawn by its number."""
    chosen = range(len(dims))
    if 0 < config.prefixes_per_step < len(dims):
        rng = random.Random(f"prefixes {config.seed} {step}")
        chosen = sorted(rng.sample(chosen, config.prefixes_per_step))  # type: ignore[assignment]
    return [dims[i] for i in chosen], [weights[i] for i in chosen]
