"""From a torch model to a graph of OpenVINO: traced once, by example."""

import warnings
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutput

from searchengine.trainer.model.modules import Batch, SentenceModule
from searchengine.trainer.model.network import quiet
from searchengine.trainer.model.pairs import PairModule
from searchengine.trainer.model.tokens import Padded
from searchengine.trainer.runtimes.openvino_runtime import graph_inputs, import_openvino


class Traced(nn.Module):
    """The module with plain tensors for a Batch: ids, mask, both (B, T), and a third one.

    That is prompt_tokens, (), and gives unit rows (B, dim); of pairs types, (B, T), and gives
    scores (B, 1).
    """

    def __init__(self, module: SentenceModule | PairModule):
        super().__init__()
        self.module = module

    def forward(self, ids: Tensor, mask: Tensor, third: Tensor) -> Tensor:
        if isinstance(self.module, PairModule):
            return self.module.output(Batch(ids, mask, types=third))
        return self.module.output(Batch(ids, mask, third))


class PackedTransformer(nn.Module):
    """A transformer that computes several texts in a row, each seeing itself alone.

    Inputs and outputs are padded as for the transformer itself; slots (P, W) and places (B, T), set
    before each pass, map tokens to their packed positions: Padded.packing. Krell et al., arXiv
    2107.02027.
    """

    def __init__(self, transformer: nn.Module):
        """Raises ValueError for a network with layers that have a mask of their own."""
        super().__init__()
        config: Any = transformer.config
        if "sliding_attention" in (getattr(config, "layer_types", None) or ()):
            raise ValueError("some layers see a token's neighbours alone")
        self.transformer = transformer
        # RoBERTa and its kin count from here, and leave out its own tokens.
        self.padding = getattr(getattr(transformer, "embeddings", None), "padding_idx", None)
        self.slots, self.places = torch.empty(0), torch.empty(0)

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, output_hidden_states: bool
    ) -> BaseModelOutput:
        width = input_ids.shape[1]
        if self.padding is None:
            positions = torch.arange(width).expand_as(input_ids)
        else:
            counted = (input_ids != self.padding).long()
            positions = counted.cumsum(dim=1) * counted + self.padding
        texts = torch.div(self.slots, width, rounding_mode="floor")  # (P, W), B where there is none
        other_texts = (texts[:, :, None] != texts[:, None, :])[:, None]
        output = self.transformer(
            input_ids=self._packed(input_ids),
            # Added to the scores: what every implementation of attention can do.
            attention_mask=other_texts.float() * torch.finfo(torch.float32).min,
            position_ids=self._packed(positions),
            output_hidden_states=output_hidden_states,
        )
        states = output.hidden_states if output_hidden_states else output[:1]
        unpacked = tuple(state.flatten(0, 1)[self.places] for state in states)  # each (B, T, H)
        return BaseModelOutput(unpacked[-1], unpacked)

    def _packed(self, padded: Tensor) -> Tensor:
        return nn.functional.pad(padded.flatten(), (0, 1))[self.slots]  # (B, T) to (P, W)


class TracedPacked(nn.Module):
    """The same by way of a PackedTransformer, with its slots and places."""

    def __init__(self, module: SentenceModule):
        super().__init__()
        self.packed = PackedTransformer(module.transformer)
        self.traced = Traced(module.changed(transformer=self.packed))

    def forward(
        self, ids: Tensor, mask: Tensor, prompt_tokens: Tensor, slots: Tensor, places: Tensor
    ) -> Tensor:
        self.packed.slots, self.packed.places = slots, places
        return cast(Tensor, self.traced(ids, mask, prompt_tokens))


def trace(module: SentenceModule | PairModule, *, packed: bool) -> Any:
    """An openvino.Model with float32 weights, for batches of any shape.

    packed: computes little padding; for networks whose layers mix tokens by attention under a mask,
    and by nothing else. Not for pairs.
    Raises whatever torch or openvino raise for a network that cannot be traced. The caller must
    measure whether the graph computes the same: a branch that the example takes is always taken.
    """
    openvino = import_openvino()
    ids = np.ones((3, 8), np.int64)
    mask = ids.copy()
    mask[1, 6:] = 0  # padding, so that nothing concludes that there is none
    wrapped: nn.Module
    if isinstance(module, PairModule):
        types = np.tile(np.arange(8) // 4, (3, 1)) * mask
        example, wrapped = graph_inputs(Padded(ids, mask, types=types), False), Traced(module)
    else:
        example = graph_inputs(Padded(ids, mask), packed)
        wrapped = TracedPacked(module) if packed else Traced(module)
    with warnings.catch_warnings(), quiet(), torch.inference_mode():
        warnings.simplefilter("ignore")  # on branches, which is checked, and on deprecated names
        tensors = tuple(map(torch.from_numpy, example))
        return openvino.convert_model(wrapped.eval(), example_input=tensors)
