"""Texts through the network, in short passes of texts of similar length.

Texts of a batch are sorted by length and cut into passes of some thousand tokens, so that little is
spent on padding. Every pass seeds its own dropout; that is what lets gradient caching (Gao et al.,
arXiv 2101.06983) do a pass again: first all vectors without gradients, then the loss on them, then
each pass once more with the gradient that the loss has for its vectors. Memory is that of one pass.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor

from searchengine.trainer.encoder import Encoder, Role
from searchengine.trainer.model.modules import Batch
from searchengine.trainer.model.tokens import Ids, TokenIds, Tokenization
from searchengine.trainer.runtimes.runtime import token_budget_batches
from searchengine.trainer.runtimes.torch_runtime import token_budget
from searchengine.trainer.training.processes import Processes
from searchengine.trainer.training.train_config import TrainConfig
from searchengine.trainer.training.training_model import EncoderCopy, TrainingModel

# Added to an update's seed for the masks of a text, and for the dropout of the passes that read
# masked texts.
MASK_SEED, LANGUAGE_SEED = 5000, 9000
MIN_PASS_TOKENS = 256  # shorter passes save little


@dataclass(frozen=True, slots=True)
class View:
    """Texts that the encoder reads in one role.

    ids: the tokens of the model's prompt and each text; None if they are not known yet.
    """

    texts: Sequence[str]
    role: Role
    ids: Sequence[Ids] | None = None


@dataclass(frozen=True, slots=True)
class Pass:
    """places: (view, row) of each row of the batch. seed: of its dropout."""

    batch: Batch
    places: list[tuple[int, int]]
    seed: int


@dataclass(slots=True)
class CachedPasses:
    """Passes without gradients, to be repeated: see `Passes.repeat`. rows: (L, n, dim) of all."""

    passes: list[Pass]
    layers: Sequence[int]
    rows: Tensor | None


class Passes:
    """Views to vectors. autocast: gives the context of a forward pass."""

    def __init__(
        self,
        training_model: TrainingModel,
        encoder: Encoder,
        config: TrainConfig,
        autocast: Callable[[], AbstractContextManager[Any]],
    ):
        self.training_model = training_model
        self.config = config
        self.device = next(training_model.parameters()).device
        self.autocast = autocast
        max_tokens = min(config.max_tokens, encoder.max_tokens)
        self._ids = TokenIds(Tokenization.of(encoder.model.tokenizer, max_tokens))
        self._prompt = {role: encoder.prompt(role) for role in ("query", "document")}
        self._budget = token_budget(self.device)
        self._caches = config.gradient_cache
        embeddings = (m for m in training_model.modules() if isinstance(m, torch.nn.Embedding))
        self._sparse = [embedding.weight for embedding in embeddings if embedding.sparse]

    def encode(
        self, views: Sequence[View], layers: Sequence[int], seed: int
    ) -> tuple[list[Tensor], CachedPasses | None]:
        """(L, n, dim) float32 for each view, not unit rows; and what must be repeated, if anything.

        layers: those after which vectors are needed, () for the last alone. With gradient caching
        the gradients of the vectors reach the network only by `repeat`.
        """
        passes = self._plan(views, seed)
        if not self._caches:
            return self._arranged(views, passes, self._vectors(passes, layers)), None
        with torch.no_grad():
            rows = self._vectors(passes, layers)
        rows.requires_grad_()
        return self._arranged(views, passes, rows), CachedPasses(passes, layers, rows)

    def repeat(self, cached: CachedPasses) -> None:
        """Do the passes again, each with the gradients of its vectors."""
        rows, cached.rows = cached.rows, None
        gradients = cast(Tensor, cast(Tensor, rows).grad)
        del rows  # of a large batch they take as much memory as their gradients
        start = 0
        for item in cached.passes:
            with self.autocast():  # a context for each: it stores the weights that it has cast
                output = self._run(item, cached.layers)
            end = start + output.shape[1]
            torch.autograd.backward(output, gradients[:, start:end])
            for table in self._sparse:
                # A table of words, to which the gradients of later passes are added in place:
                # sparse, they would get a row for each token of all passes.
                if table.grad is not None and table.grad.is_sparse:
                    table.grad = table.grad.to_dense()
            start = end

    def tokenized(self, view: View) -> View:
        """The view with its tokens."""
        return replace(view, ids=self._ids([self._prompt[view.role] + t for t in view.texts]))

    def spare(self) -> str | None:
        """Take less memory from now on: cache gradients, then halve the tokens of a pass.

        Returns what changes, in words; None if nothing is left to spare.
        """
        if not self._caches:
            self._caches = True
            return "gradients are cached, which takes a second forward pass"
        if self._budget <= MIN_PASS_TOKENS:
            return None
        self._budget = max(MIN_PASS_TOKENS, self._budget // 2)
        return f"a pass has {self._budget} tokens, padding included"

    @torch.no_grad()
    def momentum_vectors(self, texts: Sequence[str]) -> Tensor:
        """(n, dim) of documents by the momentum encoder, without gradients and without dropout."""
        encoder = self.training_model.momentum
        assert encoder is not None
        encoder.eval()
        views = [View(texts, "document")]
        passes = self._plan(views, 0)
        return self._arranged(views, passes, self._vectors(passes, (), encoder))[0][0]

    def language_backward(
        self,
        view: View,
        seed: int,
        processes: Processes,
        share: float,
        scaler: torch.amp.GradScaler | None = None,
    ) -> float:
        """Add the gradients of the masked-language-model loss on a view; returns its value.

        The mean over the masked tokens of the view in all processes. Which tokens are masked
        depends on a text's place in the view, not on how the view is cut into passes.
        """
        language = self.training_model.language
        assert language is not None
        passes = self._plan([view], seed + LANGUAGE_SEED)
        masked = [
            language.masked(item.batch, [seed + MASK_SEED + row for _, row in item.places])
            for item in passes
        ]
        count = sum(int((labels >= 0).sum()) for _, labels in masked)
        weight = self.config.mlm_weight * share / max(1, processes.add(count, self.device))
        total = 0.0
        for item, (ids, labels) in zip(passes, masked, strict=True):
            torch.manual_seed(item.seed)  # dropout
            with self.autocast():
                value = weight * language(ids, item.batch.mask, labels)
            if value.requires_grad:  # else nothing is masked
                torch.autograd.backward(value if scaler is None else scaler.scale(value))
            total += value.item()
        return total

    def _plan(self, views: Sequence[View], seed: int) -> list[Pass]:
        """Passes of texts of similar lengths."""
        ids = []
        for view in views:
            prompt = self._prompt[view.role]
            known = view.ids
            ids.append(self._ids([prompt + t for t in view.texts]) if known is None else known)
        places = [(v, row) for v, view in enumerate(views) for row in range(len(view.texts))]
        lengths = [len(ids[v][row]) for v, row in places]
        passes: list[Pass] = []
        for chosen in token_budget_batches(lengths, self._budget):
            members = [places[i] for i in chosen]
            rows = [ids[v][row] for v, row in members]
            batch = Batch.of(rows, self._ids.pad_id, self.device)
            passes.append(Pass(batch, members, seed + len(passes)))
        return passes

    def _run(self, item: Pass, layers: Sequence[int], encoder: EncoderCopy | None = None) -> Tensor:
        torch.manual_seed(item.seed)  # dropout
        vectors: Tensor = (encoder or self.training_model.encoder)(item.batch, layers)
        return vectors

    def _vectors(
        self, passes: Sequence[Pass], layers: Sequence[int], encoder: EncoderCopy | None = None
    ) -> Tensor:
        """(L, n, dim) of all texts, in the order of the passes. encoder: instead of the trained."""
        if not passes:  # no text for this process: no rows, but gradients can flow to them
            shape = max(1, len(layers)), 0, self.training_model.sentence.dim
            return torch.zeros(shape, device=self.device, requires_grad=True)
        with self.autocast():
            return torch.cat([self._run(item, layers, encoder) for item in passes], dim=1)

    def _arranged(
        self, views: Sequence[View], passes: Sequence[Pass], rows: Tensor
    ) -> list[Tensor]:
        """The rows of all passes as (L, n, dim) for each view, in the order of its texts."""
        places = (place for item in passes for place in item.places)
        at = {place: i for i, place in enumerate(places)}
        index = [[at[v, row] for row in range(len(view.texts))] for v, view in enumerate(views)]
        return [rows[:, torch.tensor(i, dtype=torch.int64, device=rows.device)] for i in index]
