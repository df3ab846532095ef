"""A teacher: its scores of candidates, given by the files or by its vectors; or the vectors."""

import functools
from collections.abc import Sequence

import torch
from torch import Tensor

from searchengine.trainer.encoder import Role
from searchengine.trainer.training.config import TrainConfig
from searchengine.trainer.training.data.positives import Batch
from searchengine.trainer.training.losses.contrastive import PrefixScores, matryoshka
from searchengine.trainer.training.losses.cosines import cosines, nested_cosines, paired_cosines
from searchengine.trainer.training.losses.distillation import (
    distillation,
    margin_mse,
    vector_distance,
)
from searchengine.trainer.training.objectives.fixed import FixedCrossEncoder, FixedEncoder
from searchengine.trainer.training.objectives.shared import drawn_prefixes, negative_counts
from searchengine.trainer.training.passes import View
from searchengine.trainer.training.processes import Processes
from searchengine.trainer.training.settings.objective import DistillationLoss


class Distillation:
    """The distance of every prefix to the teacher, which has no shorter ones: always the whole.

    A teacher's ranking is of all candidates of the batch; where the files give scores, of a row's
    own, which is also what a cross-encoder scores. Vectors are compared with the first dimensions
    along the teacher's axes.
    """

    def __init__(
        self,
        config: TrainConfig,
        dims: Sequence[int],
        processes: Processes,
        teacher: FixedEncoder | FixedCrossEncoder | None = None,
        axes: Tensor | None = None,
    ):
        """axes: (teacher's dim, dim), by which its vectors are multiplied; None leaves them."""
        self.config = config
        self.dims = tuple(dims)
        self.weights = config.prefix_weights or (1.0,) * len(self.dims)
        self.processes = processes
        self.teacher = teacher
        self.axes = axes
        default = config.temperature if isinstance(teacher, FixedEncoder) else 1.0
        self.teacher_temperature = config.teacher_temperature or default

    def views(self, rows: Batch) -> list[View]:
        mine = rows[self.processes.mine(len(rows))]
        if self.config.question_encoder:  # documents have an encoder of their own
            nothing = View([], "document")
            return [View([row.anchor for row in mine], "query"), nothing, nothing]
        one_text = rows[0].one_text  # a batch has rows of one kind
        role: Role = "document" if one_text else "query"
        # A sentence is one text to compare with the teacher's vector of it, not two.
        alone = one_text and self.config.learns_vectors
        return [
            View([row.anchor for row in mine], role),
            View([] if alone else [row.positive for row in mine], "document"),
            View([text for row in mine for text in row.negatives], "document"),
        ]

    def layers(self, step: int) -> tuple[int, ...]:
        return ()

    def loss(self, vectors: Sequence[Tensor], rows: Batch, step: int) -> Tensor:
        students = [v[0] for v in vectors]
        teachers = None
        if isinstance(self.teacher, FixedEncoder):
            teachers = [self.teacher(view.texts, view.role) for view in self.views(rows)]
        dims, weights = drawn_prefixes(self.dims, self.weights, self.config, step)
        if self.config.learns_vectors:
            assert teachers is not None
            return self._of_vectors(torch.cat(students), torch.cat(teachers), rows, dims, weights)
        # All processes compute the whole loss, for the candidates of all.
        students = self._gathered(students, rows)
        candidates = torch.cat(students[1:])
        config = self.config
        if config.distillation_loss is DistillationLoss.KL and teachers is not None:
            queries, *others = self._gathered(teachers, rows)
            loss = functools.partial(
                distillation,
                teacher=cosines(queries, torch.cat(others)),
                temperature=config.temperature,
                teacher_temperature=self.teacher_temperature,
            )
            form: PrefixScores = nested_cosines
            anchors = students[0]
        else:
            owners = [*range(len(rows)), *(i for i, row in enumerate(rows) for _ in row.negatives)]
            own = torch.tensor(owners, device=candidates.device)
            if isinstance(self.teacher, FixedCrossEncoder):
                texts = [row.positive for row in rows] + [t for row in rows for t in row.negatives]
                scores = self.teacher([rows[i].anchor for i in owners], texts)
            elif teachers is None:
                scores = torch.tensor(flat_scores(rows), device=candidates.device)
            else:
                queries, *others = self._gathered(teachers, rows)
                (scores,) = paired_cosines(queries[own], torch.cat(others), (queries.shape[1],))
            loss = functools.partial(self._of_own, scores=scores, rows=rows)
            form, anchors = paired_cosines, students[0][own]
        return matryoshka(loss, dims, weights, form)(anchors, candidates) / self.processes.count

    def _gathered(self, vectors: Sequence[Tensor], rows: Batch) -> list[Tensor]:
        """Anchors, positives and negatives of all processes. vectors: (n, D) of this one."""
        sizes = self.processes.sizes(len(rows))
        counts = negative_counts(rows, self.processes)
        return [
            self.processes.gather(v, n)
            for v, n in zip(vectors, (sizes, sizes, counts), strict=True)
        ]

    def _of_own(self, cosines: Tensor, scores: Tensor, rows: Batch) -> Tensor:
        """The loss of a prefix over each row's own candidates.

        cosines, scores: (N,), of the positives of all rows, then of their negatives row by row.
        """
        config = self.config
        places = [(i, 0) for i in range(len(rows))]
        places += [(i, k) for i, row in enumerate(rows) for k in range(1, 1 + len(row.negatives))]
        index = tuple(torch.tensor(places, device=cosines.device).T)
        shape = len(rows), 1 + max(len(row.negatives) for row in rows)
        valid = torch.zeros(shape, dtype=torch.bool, device=cosines.device).index_put(
            index, torch.tensor(True, device=cosines.device)
        )
        student, teacher = (
            torch.zeros(shape, device=x.device, dtype=x.dtype).index_put(index, x)
            for x in (cosines, scores)
        )
        if config.distillation_loss is DistillationLoss.MARGIN_MSE:
            return margin_mse(
                student / config.temperature, teacher / self.teacher_temperature, valid
            )
        return distillation(
            student,
            teacher,
            temperature=config.temperature,
            teacher_temperature=self.teacher_temperature,
            bias=torch.zeros(shape, device=student.device).masked_fill(~valid, float("-inf")),
        )

    def _of_vectors(
        self,
        students: Tensor,
        teachers: Tensor,
        rows: Batch,
        dims: Sequence[int],
        weights: Sequence[float],
    ) -> Tensor:
        """This process's part of the mean over all texts. students, teachers: (n, D)."""
        if not len(students):
            return students.sum()
        if self.axes is not None:
            teachers = teachers @ self.axes
        if self.config.distillation_loss is DistillationLoss.MSE:
            weights = [2 * weight / dim for dim, weight in zip(dims, weights, strict=True)]
        views = 1 if rows[0].one_text else 2
        count = sum(views + len(row.negatives) for row in rows)
        if self.config.question_encoder:
            count = len(rows)
        total = matryoshka(vector_distance, dims, weights, paired_cosines)(students, teachers)
        return total * len(students) / count


def flat_scores(rows: Batch) -> list[float]:
    """The scores of the positives of all rows, then of their negatives row by row.

    Where a row has a margin for each negative, its positive has the score 0.
    """
    lists = [
        row.scores if len(row.scores) > len(row.negatives) else (0.0, *(-m for m in row.scores))
        for row in rows
    ]
    return [scores[0] for scores in lists] + [s for scores in lists for s in scores[1:]]
