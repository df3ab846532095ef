"""Texts through the network, in short passes of texts of similar length.

Texts of a batch are sorted by length and cut into passes of some thousand tokens, so that little is
spent on padding. Every pass seeds its own dropout; that is what lets gradient caching (Gao et al.,
arXiv 2101.06983) do a pass again: first all vectors, without keeping activations, then the loss
on them, then each pass once more when its gradients are computed. Memory is that of one pass.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from searchengine.trainer.encoder import Encoder, Role
from searchengine.trainer.model.modules import Batch
from searchengine.trainer.model.tokens import Ids, TokenIds, Tokenization, token_budget_batches
from searchengine.trainer.runtimes.runtime_config import Precision
from searchengine.trainer.runtimes.torch_runtime import pick_precision, token_budget
from searchengine.trainer.training.processes import Processes
from searchengine.trainer.training.train_config import TrainConfig
from searchengine.trainer.training.training_model import EncoderCopy, TrainingModel

# Added to an update's seed for the masks of its texts, and for the dropout of the passes that read
# masked texts.
MASK_SEED, LANGUAGE_SEED = 5000, 9000


@dataclass(frozen=True, slots=True)
class View:
    """Texts that the encoder reads in one role."""

    texts: Sequence[str]
    role: Role


@dataclass(frozen=True, slots=True)
class Pass:
    """rows: the places of its texts among those of all views. seed: of its dropout."""

    batch: Batch
    rows: list[int]
    seed: int


class Passes:
    """Views to vectors."""

    def __init__(
        self,
        training_model: TrainingModel,
        encoder: Encoder,
        config: TrainConfig,
        processes: Processes,
    ):
        self.training_model = training_model
        self.config = config
        self.processes = processes
        self.device = next(training_model.parameters()).device
        self._bf16 = pick_precision(config.precision, self.device) is Precision.BF16
        max_tokens = min(config.max_tokens, encoder.max_tokens)
        self._ids = TokenIds(Tokenization.of(encoder.model.tokenizer, max_tokens))
        self._prompt = {role: encoder.prompt(role) for role in ("query", "document")}
        self._budget = token_budget(self.device)

    def _autocast(self) -> torch.autocast:
        """The context of a forward pass. The weights stay float32."""
        return torch.autocast(self.device.type, torch.bfloat16, self._bf16)

    def _tokens(self, view: View) -> list[Ids]:
        """The tokens of this process's texts of a view, with the model's prompt."""
        mine = view.texts[self.processes.mine(len(view.texts))]
        return self._ids([self._prompt[view.role] + text for text in mine])

    def encode(
        self,
        views: Sequence[View],
        layers: Sequence[int] = (),
        seed: int = 0,
        encoder: EncoderCopy | None = None,
    ) -> list[Tensor]:
        """(L, n, dim) float32 for each view, of all processes; not unit rows.

        layers: those after which vectors are needed, () for the last alone. encoder: the one that
        is trained, or its momentum copy.
        """
        encoder = encoder or self.training_model.encoder
        tokens = [self._tokens(view) for view in views]
        passes = self._plan([*chain(*tokens)], seed)
        # A process without texts has no rows, but gradients can flow to them.
        shape = max(1, len(layers)), 0, self.training_model.sentence.dim
        parts = [torch.zeros(shape, device=self.device, requires_grad=True)]
        with self._autocast():
            parts += [self._run(item, encoder, layers) for item in passes]
        order = torch.tensor([row for item in passes for row in item.rows], dtype=torch.int64)
        rows = torch.cat(parts, dim=1)[:, order.argsort().to(self.device)]
        parts = rows.split([*map(len, tokens)], dim=1)  # type: ignore[no-untyped-call]
        counts = [len(view.texts) for view in views]
        return [self.processes.gather(x, count) for x, count in zip(parts, counts, strict=True)]

    def _run(self, item: Pass, encoder: EncoderCopy, layers: Sequence[int]) -> Tensor:
        def vectors() -> Tensor:
            torch.manual_seed(item.seed)  # dropout
            rows: Tensor = encoder(item.batch, layers)
            return rows

        if not (self.config.gradient_cache and torch.is_grad_enabled()):
            return vectors()
        rows: Tensor = checkpoint(vectors, use_reentrant=False, preserve_rng_state=False)
        return rows

    @torch.no_grad()
    def momentum_vectors(self, view: View) -> Tensor:
        """(n, dim) of all processes' texts, by the momentum encoder, without dropout."""
        encoder = self.training_model.momentum
        assert encoder is not None
        return self.encode([view], encoder=encoder.eval())[0][0]

    def language_backward(self, view: View, seed: int) -> float:
        """Add the gradients of the masked-language-model loss on a view; returns its value.

        The mean over the masked tokens of all processes. The masks do not depend on the passes.
        """
        language = self.training_model.language
        assert language is not None
        tokens = self._tokens(view)
        passes = self._plan(tokens, seed + LANGUAGE_SEED)
        ids, labels = language.mask(
            Batch.of(tokens, self._ids.pad_id, torch.device("cpu")), seed + MASK_SEED
        )
        count = self.processes.add(int((labels >= 0).sum()), self.device)
        weight = self.config.mlm_weight / max(1, count)
        total = 0.0
        for item in passes:
            width = item.batch.ids.shape[1]
            part = (x[item.rows, :width].to(self.device) for x in (ids, labels))
            torch.manual_seed(item.seed)  # dropout
            with self._autocast():
                value = weight * language(item.batch.mask, *part)
            if value.requires_grad:  # else nothing is masked
                torch.autograd.backward(value)
            total += value.item()
        return total

    def _plan(self, ids: Sequence[Ids], seed: int) -> list[Pass]:
        """Passes of texts of similar lengths."""
        return [
            Pass(
                Batch.of([ids[i] for i in rows], self._ids.pad_id, self.device), rows, seed + number
            )
            for number, rows in enumerate(token_budget_batches([*map(len, ids)], self._budget))
        ]
