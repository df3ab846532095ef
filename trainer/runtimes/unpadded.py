"""The texts of a batch behind one another, without padding: for networks in 16 bits on CUDA.

Between attention and attention a network treats each token alone, so the tokens of all texts are
one long row; attention within each text is torch's for texts of many lengths.
https://docs.pytorch.org/docs/stable/nn.attention.varlen.html
"""

import inspect
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import repeat_kv, sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from searchengine.trainer.errors import first_line
from searchengine.trainer.model.modules import Batch, SentenceModule
from searchengine.trainer.model.network import quiet

_log = logging.getLogger(__name__)
UNPADDED = "unpadded"
# Networks whose attention knows no position, by the first position that they give a token: 0, or
# behind that of padding.
FROM_ZERO = frozenset(("bert", "llama", "qwen2", "qwen3"))
BEHIND_PADDING = frozenset(("camembert", "roberta", "xlm-roberta"))
# Lengths of the texts that are compared, and the least cosine of their vectors.
LENGTHS, MIN_COSINE = (24, 17, 9, 3), 0.999


class Unpadded(nn.Module):
    """A network, called as before, that computes no padding of two texts and more."""

    def __init__(self, network: Any):
        super().__init__()
        self.network, self.config = network, network.config
        kind, padding = network.config.model_type, network.config.pad_token_id
        self._first = padding + 1 if kind in BEHIND_PADDING else 0

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, output_hidden_states: bool = False
    ) -> Any:
        """input_ids, attention_mask: (B, T). As the network; the states (B, T, H), of padding 0."""
        if len(input_ids) == 1 or output_hidden_states:
            return self.network(
                input_ids=input_ids,
                attention_mask=attention_mask,
                output_hidden_states=output_hidden_states,
            )
        rows, width = input_ids.shape
        real = attention_mask.flatten().nonzero()[:, 0]  # (N,)
        positions = torch.arange(width, device=real.device).repeat(rows)[real] + self._first
        starts = nn.functional.pad(attention_mask.sum(dim=1).cumsum(0), (1, 0)).to(torch.int32)
        with _packed(starts, width):
            hidden = self.network(
                input_ids=input_ids.flatten()[real][None], position_ids=positions[None]
            )[0][0]  # (N, H)
        states = hidden.new_zeros(rows * width, hidden.shape[-1])
        states[real] = hidden
        return (states.view(rows, width, -1),)


def unpadded(module: SentenceModule) -> SentenceModule:
    """The module with an Unpadded network; as it was where that gives other vectors, or cannot be.

    module: a copy for inference in 16 bits on CUDA, which is changed.
    """
    network: Any = module.transformer
    before = getattr(network.config, "_attn_implementation", None)
    if not _suits(network) or before != "sdpa":
        return module
    AttentionInterface.register(UNPADDED, attend)
    AttentionMaskInterface.register(UNPADDED, _mask)
    batch = _sample(network)
    expected = module.output(batch)
    try:
        with quiet():
            network.set_attn_implementation(UNPADDED)
        changed = module.changed(transformer=Unpadded(network))
        cosine = float((changed.output(batch) * expected).sum(dim=1).min())
        if cosine >= MIN_COSINE:
            return changed
        reason = f"the cosine to padded texts is {cosine:.4f}"
    except Exception as error:  # whatever another version of torch or transformers does
        reason = first_line(error)
    _log.info("texts are padded: %s", reason)
    network.set_attn_implementation(before)
    return module


def _sample(network: Any) -> Batch:
    """Texts of LENGTHS, of any tokens but that of padding."""
    device, padding = next(network.parameters()).device, network.config.pad_token_id or 0
    lengths = torch.tensor(LENGTHS, device=device)[:, None]
    mask = (torch.arange(max(LENGTHS), device=device) < lengths).to(torch.int64)
    ids = torch.arange(mask.numel(), device=device).reshape(mask.shape)
    ids = (ids % (network.config.vocab_size - 1) + padding + 1) % network.config.vocab_size
    return Batch(torch.where(mask == 1, ids, padding), mask)


def _suits(network: Any) -> bool:
    """Whether each token of a network sees all others of its text, or all before it."""
    config = network.config
    sliding = "sliding_attention" in (getattr(config, "layer_types", None) or ())
    known = getattr(config, "model_type", None) in FROM_ZERO | BEHIND_PADDING
    return known and not sliding and hasattr(network, "set_attn_implementation")


_bounds = threading.local()


@contextmanager
def _packed(starts: Tensor, longest: int) -> Iterator[None]:
    """Attend within texts: starts, (B + 1,) int32, of each and the end; longest in tokens."""
    _bounds.now = starts, longest
    try:
        yield
    finally:
        _bounds.now = None


def _mask(*arguments: Any, **named: Any) -> Tensor | None:
    return None if getattr(_bounds, "now", None) else sdpa_mask(*arguments, **named)


def attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    **more: Any,
) -> tuple[Tensor, None]:
    """Attention as transformers calls it; within each text while texts are packed.

    query, key, value: (1, heads, N, d) of N tokens; keys and values may have fewer heads. Returns
    (1, N, heads, d).
    """
    now: tuple[Tensor, int] | None = getattr(_bounds, "now", None)
    if now is None:
        return sdpa_attention_forward(  # type: ignore[no-any-return]
            module, query, key, value, attention_mask, dropout, scaling, is_causal, **more
        )
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    usual = query.shape[-1] ** -0.5
    if scaling not in (None, usual):
        query = query * (scaling / usual)
    key, value = (repeat_kv(x, query.shape[1] // x.shape[1]) for x in (key, value))
    parts = [x[0].transpose(0, 1) for x in (query, key, value)]
    return _within(parts, *now, causal)[None], None


def _within(parts: list[Tensor], starts: Tensor, longest: int, causal: bool) -> Tensor:
    """(N, heads, d): attention of (N, heads, d) queries, keys and values within each text."""
    from torch.nn.attention import varlen  # of torch 2.10, or later

    attention: Any = varlen.varlen_attn
    by_window = "window_size" in inspect.signature(attention).parameters
    ahead: dict[str, Any] = {"window_size": (-1, 0)} if by_window else {"is_causal": True}
    found: Tensor = attention(*parts, starts, starts, longest, longest, **(ahead if causal else {}))
    return found
