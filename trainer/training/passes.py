"""Rows of text through the networks, in short passes of texts of like length.

Texts of a batch are sorted by length and cut into passes of some thousand tokens, so that little is
spent on padding. Every pass seeds its own dropout; that is what lets gradient caching (Gao et al.,
arXiv 2101.06983) do a pass again: first all vectors without gradients, then the loss on them, then
each pass once more with the gradient that the loss has for its vectors. Memory is that of one pass.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from trainer.encoder import Encoder, Role
from trainer.model.modules import Batch
from trainer.model.tokens import TokenIds, Tokenization
from trainer.runtimes.runtime import token_budget_batches
from trainer.runtimes.torch_runtime import token_budget
from trainer.training.config import TrainConfig
from trainer.training.processes import Processes
from trainer.training.training_model import Tower, Trainee

# Added to an update's seed: what the masks of a text are drawn from, and the dropout of the passes
# that read them.
MASKS, LANGUAGE_DROPOUT = 5000, 9000


@dataclass(frozen=True, slots=True)
class View:
    """Texts that one tower reads in one role."""

    texts: Sequence[str]
    role: Role
    tower: int = 0


@dataclass(frozen=True, slots=True)
class Pass:
    """places: (view, row) of each row of the batch."""

    tower: Tower
    batch: Batch
    places: list[tuple[int, int]]
    seed: int


Loss = Callable[[list[Tensor]], Tensor]


class Passes:
    """Views to vectors and back. autocast: makes the context that forward passes run in."""

    def __init__(
        self,
        trainee: Trainee,
        encoder: Encoder,
        config: TrainConfig,
        autocast: Callable[[], AbstractContextManager[Any]],
    ):
        self.trainee = trainee
        self.config = config
        self.device = next(trainee.parameters()).device
        self.autocast = autocast
        most = min(config.max_tokens, encoder.max_tokens)
        self._ids = TokenIds(Tokenization.of(encoder.model.tokenizer, most))
        self._prompt = {role: encoder.prompt(role) for role in ("query", "document")}
        self._known: dict[str, Tensor] = {}
        self._nothing = torch.zeros(0, trainee.sentence.pooling.out_width, device=self.device)
        self._budget = config.chunk_tokens or token_budget(self.device)

    def backward(
        self, views: Sequence[View], layers: Sequence[int], seed: int, loss: Loss, share: float
    ) -> float:
        """Add the gradients of share · `loss` of the views' vectors; returns its value.

        layers: those whose vectors are wanted, () for the last alone. loss: gets (L, n, dim)
        float32 of each view, not unit rows.
        """
        if self.config.head_only:
            value = share * loss([self._frozen(view) for view in views])
            torch.autograd.backward(value)
            return value.item()
        passes = self._plan(views, seed)
        if not self.config.gradient_cache:
            with self.autocast():
                found = [self._run(one, layers) for one in passes]
            value = share * loss(self._arranged(views, passes, found, layers))
            torch.autograd.backward(value)
            return value.item()
        # Two contexts: autocast keeps the weights it has cast, and those cast here are cut off.
        with torch.no_grad(), self.autocast():
            leaves = [self._run(one, layers).requires_grad_() for one in passes]
        value = share * loss(self._arranged(views, passes, leaves, layers))
        torch.autograd.backward(value)
        for one, leaf in zip(passes, leaves, strict=True):
            with self.autocast():
                again = self._run(one, layers)
            torch.autograd.backward(again, leaf.grad)
        return value.item()

    def _frozen(self, view: View) -> Tensor:
        """(1, n, dim): the head on what a network that does not change gives, found once a text."""
        tower: Any = self.trainee.towers[view.tower]
        tower.sentence.transformer.eval()
        keys = [self._prompt[view.role] + text for text in view.texts]
        fresh = {k: t for k, t in zip(keys, view.texts, strict=True) if k not in self._known}
        if fresh:
            passes = self._plan([View(list(fresh.values()), view.role)], 0)
            with torch.no_grad(), self.autocast():
                found = [torch.stack(tower.sentence.pooled(one.batch)) for one in passes]
            rows = self._arranged([View(list(fresh), view.role)], passes, found)[0][0]
            self._known.update(zip(fresh, rows, strict=True))
        pooled = torch.stack([self._known[key] for key in keys]) if keys else self._nothing
        return cast(Tensor, tower.behind([pooled]))

    @torch.no_grad()
    def vectors(self, tower: Tower, texts: Sequence[str]) -> Tensor:
        """(n, dim) of documents, without gradients and without dropout."""
        tower.eval()
        views = [View(texts, "document")]
        passes = self._plan(views, 0, tower)
        with self.autocast():
            found = [self._run(one, ()) for one in passes]
        return self._arranged(views, passes, found)[0][0]

    def language_backward(self, view: View, seed: int, processes: Processes, share: float) -> float:
        """Add the gradients of the masked-language-model loss on a view; returns its value.

        The mean over all masked tokens of the view, of every process; which are masked depends on
        a text's place in the view, not on how the view is cut into passes.
        """
        language = self.trainee.language
        assert language is not None
        passes = self._plan([view], seed + LANGUAGE_DROPOUT)
        drawn = [
            language.masked(one.batch, [seed + MASKS + row for _, row in one.places])
            for one in passes
        ]
        count = sum(int((labels >= 0).sum()) for _, labels in drawn)
        weight = self.config.mlm_weight * share / max(1, processes.add(count, self.device))
        total = 0.0
        for one, (ids, labels) in zip(passes, drawn, strict=True):
            torch.manual_seed(one.seed)  # dropout
            with self.autocast():
                value = weight * language(ids, one.batch.mask, labels)
            if value.requires_grad:  # else nothing is masked
                torch.autograd.backward(value)
            total += value.item()
        return total

    def _plan(self, views: Sequence[View], seed: int, tower: Tower | None = None) -> list[Pass]:
        """What runs together: the same tower and prompt. tower: in place of the views' own."""
        groups: dict[tuple[int, int, int], list[tuple[int, int]]] = {}
        ids = []
        for v, view in enumerate(views):
            prompt = self._prompt[view.role]
            ids.append(self._ids([prompt + text for text in view.texts]))
            # One mask for both views of a text needs passes of the same shape and seed.
            alone = v if self.config.fixed_dropout else 0
            group = (view.tower, self._ids.prompt_tokens(prompt), alone)
            groups.setdefault(group, []).extend((v, row) for row in range(len(view.texts)))
        passes: list[Pass] = []
        for (number, prompt_tokens, _), places in groups.items():
            lengths = [len(ids[v][row]) for v, row in places]
            for n, chosen in enumerate(token_budget_batches(lengths, self._budget)):
                here = [places[i] for i in chosen]
                padded = self._ids.pad([ids[v][row] for v, row in here], prompt_tokens)
                batch = Batch.of(padded, self.device)
                count = n if self.config.fixed_dropout else len(passes)
                reader: Any = self.trainee.towers[number] if tower is None else tower
                passes.append(Pass(reader, batch, here, seed + count))
        return passes

    def _run(self, one: Pass, layers: Sequence[int]) -> Tensor:
        torch.manual_seed(one.seed)  # dropout
        found: Tensor = one.tower(one.batch, layers)
        return found

    def _arranged(
        self,
        views: Sequence[View],
        passes: Sequence[Pass],
        found: Sequence[Tensor],
        layers: Sequence[int] = (),
    ) -> list[Tensor]:
        """The rows of all passes as (L, n, dim) for each view, in the order of its texts."""
        if not found:  # no text for this process: nothing, that gradients can flow to
            width = self.trainee.sentence.dim
            shape = max(1, len(layers)), 0, width
            return [torch.zeros(shape, device=self.device, requires_grad=True)] * len(views)
        rows = torch.cat(list(found), dim=1)
        at = {place: i for i, place in enumerate(p for one in passes for p in one.places)}
        index = [[at[v, row] for row in range(len(view.texts))] for v, view in enumerate(views)]
        return [rows[:, torch.tensor(i, dtype=torch.int64, device=rows.device)] for i in index]
