"""Labels: cross-entropy and the supervised contrastive loss."""

import functools
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize

from searchengine.trainer.training.config import TrainConfig
from searchengine.trainer.training.data.positives import Batch
from searchengine.trainer.training.losses.contrastive import matryoshka, supervised_contrastive
from searchengine.trainer.training.objectives.shared import drawn_prefixes
from searchengine.trainer.training.passes import View
from searchengine.trainer.training.processes import Processes
from searchengine.trainer.training.training_model import TrainingModel, text_ids


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
