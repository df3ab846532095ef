"""Pairs: the positive of each anchor must score above the other candidates."""

import functools
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import normalize, pad
from torch.utils.checkpoint import checkpoint

from searchengine.trainer.encoder import Role
from searchengine.trainer.training.config import TrainConfig
from searchengine.trainer.training.data.positives import Batch
from searchengine.trainer.training.losses.contrastive import PrefixScores, info_nce, matryoshka
from searchengine.trainer.training.losses.cosines import nested_cosines
from searchengine.trainer.training.losses.distillation import distillation, layer_distillation
from searchengine.trainer.training.objectives.fixed import FixedEncoder
from searchengine.trainer.training.objectives.shared import drawn_prefixes, negative_counts
from searchengine.trainer.training.passes import View
from searchengine.trainer.training.processes import Processes
from searchengine.trainer.training.settings.objective import Margin
from searchengine.trainer.training.training_model import TrainingModel, text_ids

# Cosines of anchors and candidates that are computed at a time: with more of them, each part is
# computed again for its gradient, so that memory does not grow with the square of the batch.
_COSINES_AT_ONCE = 1 << 18


@dataclass(frozen=True, slots=True)
class Candidates:
    """The candidates for every anchor of a batch; candidate i is the positive of row i.

    After the positives come the hard negatives of all rows, then the anchors where they are
    candidates (`contrast_anchors`), then the vectors of the queue.

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
        guide: FixedEncoder | None = None,
    ):
        self.training_model = training_model
        self.config = config
        self.guide = guide
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
        anchors, positives, _ = vectors
        candidates = self._candidates(vectors, rows)
        guide = self._guide_vectors(rows)
        mine = self.processes.mine(len(rows))
        labels = torch.arange(len(rows), device=positives.device)[mine]
        if not len(labels):  # no anchors here, but gradients must flow back through the gathering
            return candidates.vectors.sum() * 0
        ids = text_ids([row.anchor for row in rows[mine]]).to(positives.device)
        total = positives.new_zeros(())
        for at in range(len(anchors) - 1):
            truncated, full = (torch.cat([v[layer] for v in vectors]) for layer in (at, -1))
            distance = layer_distillation(normalize(truncated, dim=-1), normalize(full, dim=-1))
            total = total + self.config.layer_distillation * distance
        size = max(1, _COSINES_AT_ONCE // candidates.vectors.shape[1])
        parts = [slice(start, start + size) for start in range(0, len(labels), size)]
        for part in parts:
            of_part = functools.partial(
                self._of_anchors,
                candidates=candidates,
                labels=labels[part],
                ids=ids[part],
                guide=None if guide is None else (guide[0][part], guide[1]),
                positives=len(rows),
                step=step,
            )
            if len(parts) > 1:
                of_part = functools.partial(checkpoint, of_part, use_reentrant=False)
            total = total + of_part(anchors[:, part]) * len(labels[part]) / len(labels)
        return total * len(labels) / len(rows)

    def _of_anchors(
        self,
        anchors: Tensor,
        *,
        candidates: Candidates,
        labels: Tensor,
        ids: Tensor,
        guide: tuple[Tensor, Tensor] | None,
        positives: int,
        step: int,
    ) -> Tensor:
        """InfoNCE of some anchors (L, b, D) among all candidates, over prefixes and layers.

        labels, ids: (b,), the anchors' rows in the batch, and their texts, see `text_ids`. guide:
        its vectors of these anchors and of the candidates. positives: rows of the batch.
        """
        form = functools.partial(self._scores, labels=labels, positives=positives)
        fixed = self._fixed_bias(candidates, labels, ids, positives)
        if guide is not None:
            fixed = self._guided(fixed, *guide, labels, form)
        total = anchors.new_zeros(())
        for layer in reversed(range(len(anchors))):
            of_layer = candidates.vectors[layer]
            bias = self._masked(fixed, anchors[layer], of_layer, labels, form)
            value = self._nested(anchors[layer], of_layer, labels, bias, step, form)
            if layer < len(anchors) - 1:
                value = self.config.layer_weight * value / (len(anchors) - 1)
            total = total + value
        return total

    def _gathered(self, vectors: Sequence[Tensor], rows: Batch) -> Tensor:
        """The candidates of all processes in their order: (…, N, D).

        vectors: (…, n, D) for each view of this process.
        """
        anchors, positives, negatives = vectors
        sizes = self.processes.sizes(len(rows))
        counts = negative_counts(rows, self.processes)
        parts = [
            self.processes.gather(positives, sizes),
            self.processes.gather(negatives, counts),
        ]
        if self.config.contrast_anchors:
            parts.append(self.processes.gather(anchors, sizes))
        return torch.cat(parts, dim=-2)

    def _candidates(self, vectors: Sequence[Tensor], rows: Batch) -> Candidates:
        """The candidates of all processes. vectors: (L, n, D) for each view of this one."""
        candidates = self._gathered(vectors, rows)
        texts = [row.positive for row in rows] + [t for row in rows for t in row.negatives]
        if self.config.contrast_anchors:
            texts += [row.anchor for row in rows]
        ids = text_ids(texts).to(candidates.device)
        queue = self.training_model.queue
        if queue is not None:
            candidates = torch.cat([candidates, queue.vectors.unsqueeze(0)], dim=1)
            ids = torch.cat([ids, queue.texts])
        of_negatives = [i for i, row in enumerate(rows) for _ in row.negatives]
        owners = pad(
            torch.tensor(of_negatives, dtype=torch.int64, device=ids.device),
            (len(rows), len(ids) - len(rows) - len(of_negatives)),
            value=-1,
        )
        return Candidates(candidates, ids, owners)

    def _fixed_bias(
        self, candidates: Candidates, labels: Tensor, anchors: Tensor, positives: int
    ) -> Tensor:
        """(b, N): the part of the bias of some anchors that follows from the texts.

        −inf where a candidate has the text of the anchor or of its positive, log α at the
        anchor's own negatives. N: of `_scores`; the others are as in `_of_anchors`.
        """
        ids = candidates.text_ids
        if self.config.contrast_positives:
            ids = torch.cat([ids, ids[:positives]])
        same = (ids == anchors.unsqueeze(1)) | (ids == ids[labels].unsqueeze(1))  # (b, N)
        same[torch.arange(len(labels), device=ids.device), labels] = False  # its positive stays
        bias = torch.zeros(same.shape, device=ids.device)
        if self.config.hard_negative_weight != 1.0:
            own = candidates.owners == labels.unsqueeze(1)
            bias[:, : own.shape[1]][own] = math.log(self.config.hard_negative_weight)
        return bias.masked_fill(same, float("-inf"))

    def _scores(
        self,
        anchors: Tensor,
        candidates: Tensor,
        dims: Sequence[int],
        *,
        labels: Tensor,
        positives: int,
    ) -> list[Tensor]:
        """The cosines over each prefix: (B, N), one column for each candidate.

        With `contrast_positives`, `positives` more follow: those of the anchor's positive with the
        positives of all rows. labels: see `info_nce`.
        """
        scores = nested_cosines(anchors, candidates, dims)
        if not self.config.contrast_positives:
            return scores
        more = nested_cosines(candidates[labels], candidates[:positives], dims)
        return [torch.cat(parts, dim=1) for parts in zip(scores, more, strict=True)]

    def _guide_vectors(self, rows: Batch) -> tuple[Tensor, Tensor] | None:
        """The guide's vectors of this process's anchors (n, D) and of all candidates (N, D)."""
        if self.guide is None:
            return None
        vectors = [self.guide(view.texts, view.role) for view in self.views(rows)]
        return vectors[0], self._gathered(vectors, rows)

    def _guided(
        self, fixed: Tensor, anchors: Tensor, candidates: Tensor, labels: Tensor, form: PrefixScores
    ) -> Tensor:
        """fixed, and −inf where the guide, by its vectors, takes a candidate for a positive.

        Solatorio, arXiv 2402.16829, section 3.2; the relative margin as in sentence-transformers.
        """
        (scores,) = form(anchors, candidates, (anchors.shape[-1],))
        places = torch.arange(len(labels), device=labels.device)
        of_positive = scores[places, labels].unsqueeze(1)
        relative = self.config.guide_margin_kind is Margin.RELATIVE
        unit = of_positive.abs() if relative else torch.ones_like(of_positive)
        near = scores > of_positive - self.config.guide_margin * unit
        near[places, labels] = False
        return fixed.masked_fill(near, float("-inf"))

    def _masked(
        self, fixed: Tensor, anchors: Tensor, candidates: Tensor, labels: Tensor, form: PrefixScores
    ) -> Tensor:
        """fixed, and −inf where a candidate is too similar to be a negative (`mask_above`)."""
        if self.config.mask_above is None:
            return fixed
        (scores,) = form(anchors.detach(), candidates.detach(), (anchors.shape[-1],))
        similar = scores > self.config.mask_above
        similar[torch.arange(len(labels), device=similar.device), labels] = False
        return fixed.masked_fill(similar, float("-inf"))

    def _nested(
        self,
        anchors: Tensor,
        candidates: Tensor,
        labels: Tensor,
        bias: Tensor,
        step: int,
        form: PrefixScores,
    ) -> Tensor:
        config = self.config
        dims, weights = drawn_prefixes(self.dims, self.weights, config, step)
        nce = functools.partial(info_nce, labels=labels, bias=bias, temperature=config.temperature)
        if config.prefix_distillation == 0:
            return matryoshka(nce, dims, weights, form)(anchors, candidates)
        full, *scores = form(anchors, candidates, (self.dims[0], *dims))
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
