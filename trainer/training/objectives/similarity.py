"""Scored pairs: the similarity of a pair follows its score."""

import functools
from collections.abc import Sequence

import torch
from torch import Tensor

from searchengine.trainer.training.config import TrainConfig
from searchengine.trainer.training.data.positives import Batch
from searchengine.trainer.training.losses.contrastive import matryoshka
from searchengine.trainer.training.losses.cosines import paired_angles, paired_cosines
from searchengine.trainer.training.losses.scored import cosent, squared_error
from searchengine.trainer.training.objectives.shared import drawn_prefixes
from searchengine.trainer.training.passes import View
from searchengine.trainer.training.processes import Processes
from searchengine.trainer.training.settings.objective import SimilarityLoss


class Similarity:
    """CoSENT, AnglE or the squared error of the scores, over every prefix."""

    def __init__(self, config: TrainConfig, dims: Sequence[int], processes: Processes):
        self.config = config
        self.dims = tuple(dims)
        self.weights = config.prefix_weights or (1.0,) * len(self.dims)
        self.processes = processes

    def views(self, rows: Batch) -> list[View]:
        mine = rows[self.processes.mine(len(rows))]
        # The two texts are alike: a query prompt for one of them would tell them apart.
        return [
            View([row.anchor for row in mine], "document"),
            View([row.positive for row in mine], "document"),
        ]

    def layers(self, step: int) -> tuple[int, ...]:
        return ()

    def loss(self, vectors: Sequence[Tensor], rows: Batch, step: int) -> Tensor:
        # All processes compute the whole loss: a pair is compared with those of all.
        sizes = self.processes.sizes(len(rows))
        first, second = (self.processes.gather(v[0], sizes) for v in vectors)  # (B, D)
        scores = torch.tensor([row.scores[0] for row in rows], device=first.device)
        config = self.config
        dims, weights = drawn_prefixes(self.dims, self.weights, config, step)
        loss = functools.partial(cosent, scores=scores, temperature=config.temperature)
        if config.similarity_loss is SimilarityLoss.MSE:
            loss = functools.partial(squared_error, scores=scores)
        angle = config.similarity_loss is SimilarityLoss.ANGLE
        form = paired_angles if angle else paired_cosines
        return matryoshka(loss, dims, weights, form)(first, second) / self.processes.count
