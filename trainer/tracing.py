"""From a torch model to a graph of OpenVINO: traced once, by example."""

import warnings
from typing import Any

import torch
from torch import Tensor, nn

from trainer.modules import Batch, SentenceModule
from trainer.network import quiet
from trainer.openvino_runtime import import_openvino
from trainer.torch_runtime import unit_rows


class Traced(nn.Module):
    """The module with plain tensors for a Batch: (B, T), (B, T), () to (B, dim), unit rows."""

    def __init__(self, module: SentenceModule):
        super().__init__()
        self.module = module

    def forward(self, ids: Tensor, mask: Tensor, prompt_tokens: Tensor) -> Tensor:
        return unit_rows(self.module, Batch(ids, mask, prompt_tokens))


def traced(module: SentenceModule) -> Any:
    """An openvino.Model with float32 weights, for batches of any shape.

    Raises whatever torch or openvino raise for a network that cannot be traced. Whether the graph
    computes the same must be seen: a branch that was taken by example is taken always.
    """
    openvino = import_openvino()
    ids = torch.ones(2, 8, dtype=torch.int64)
    mask = ids.clone()
    mask[1, 6:] = 0  # padding, so that nothing concludes that there is none
    example = (ids, mask, torch.tensor(0))
    with warnings.catch_warnings(), quiet(), torch.inference_mode():
        warnings.simplefilter("ignore")  # on branches, which is checked, and on deprecated names
        return openvino.convert_model(Traced(module).eval(), example_input=example)
