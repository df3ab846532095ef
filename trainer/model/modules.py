"""From token vectors to one vector per text: pooling and the small layers behind it.

The layers compute what the sentence-transformers modules of the same name compute, always in
float32: pooling a bfloat16 hidden state in bfloat16 costs two orders of magnitude in accuracy.
Source of the recipe: Reimers & Gurevych, arXiv 1908.10084.
"""

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from searchengine.trainer.errors import ConfigError
from searchengine.trainer.model import head
from searchengine.trainer.model.tokens import Ids


def pool(hidden: Tensor, mask: Tensor, mode: str) -> Tensor:
    """One vector per row of `hidden`.

    hidden: (B, T, H) float32, padded on the right. mask: (B, T), 1 on real tokens. mode: one of
    layout.POOLING_MODES. Returns (B, H) float32.
    """
    weights = mask.unsqueeze(-1).to(hidden.dtype)  # (B, T, 1)
    match mode:
        case "cls":
            return hidden[:, 0]
        case "lasttoken":
            rows = torch.arange(hidden.shape[0], device=hidden.device)
            return hidden[rows, (mask.sum(dim=1) - 1).clamp(min=0)]
        case "max":
            return hidden.masked_fill(weights == 0, float("-inf")).amax(dim=1)
        case _:
            return (hidden * weights).sum(dim=1) / weights.sum(dim=1).clamp(min=1e-9)


class Pooling(nn.Module):
    """The chosen modes side by side: (B, T, H) to (B, H · modes)."""

    def __init__(self, width: int, modes: tuple[str, ...]):
        super().__init__()
        self.width = width
        self.modes = modes

    @property
    def out_width(self) -> int:
        return self.width * len(self.modes)

    def forward(self, hidden: Tensor, mask: Tensor) -> Tensor:
        pooled = [pool(hidden, mask, mode) for mode in self.modes]
        return pooled[0] if len(pooled) == 1 else torch.cat(pooled, dim=-1)


class Dense(nn.Module):
    """A linear layer and an activation, as head.Dense has them: (B, in) to (B, out)."""

    def __init__(self, in_features: int, out_features: int, bias: bool, activation: str):
        super().__init__()
        self.linear = nn.Linear(in_features, out_features, bias=bias)
        self.activation_name = activation

    @classmethod
    def of(cls, layer: head.Dense) -> Self:
        """With the weights of a layer that numpy has read."""
        outputs, inputs = layer.weight.shape
        dense = cls(inputs, outputs, layer.bias is not None, layer.activation)
        with torch.no_grad():
            dense.linear.weight.copy_(torch.tensor(layer.weight))
            if layer.bias is not None:
                dense.linear.bias.copy_(torch.tensor(layer.bias))
        return dense

    @property
    def out_width(self) -> int:
        return self.linear.out_features

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.linear(x)
        return outputs.tanh() if self.activation_name == head.TANH else outputs


class Normalize(nn.Module):
    """Unit rows."""

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.normalize(x, dim=-1)


HeadLayer = Dense | Normalize


@dataclass(frozen=True, slots=True)
class Batch:
    """Padded token ids ready for a forward pass.

    ids, mask: (B, T) int64.
    """

    ids: Tensor
    mask: Tensor

    @classmethod
    def of(cls, rows: Sequence[Ids], pad_id: int, device: torch.device) -> Self:
        """Rows of ids, padded on the right."""
        ids = np.full((len(rows), max(1, *map(len, rows))), pad_id, np.int64)
        mask = np.zeros_like(ids)
        for i, row in enumerate(rows):
            ids[i, : len(row)], mask[i, : len(row)] = row, 1
        return cls(torch.from_numpy(ids).to(device), torch.from_numpy(mask).to(device))


class SentenceModule(nn.Module):
    """Transformer, pooling and head as one torch module: a Batch to (B, dim) float32.

    The rows are as the head leaves them: unit rows where the model ends in Normalize.
    """

    def __init__(self, transformer: nn.Module, pooling: Pooling, head: list[HeadLayer]):
        super().__init__()
        self.transformer = transformer
        self.pooling = pooling
        self.head = nn.ModuleList(head)

    @property
    def dim(self) -> int:
        width = self.pooling.out_width
        for layer in self.head:
            width = getattr(layer, "out_width", width)
        return width

    @property
    def layers(self) -> int:
        """Number of layers of the transformer."""
        return int(cast(Any, self.transformer).config.num_hidden_layers)

    def pooled(self, batch: Batch, layers: Sequence[int] = ()) -> list[Tensor]:
        """Pooled vectors: (B, width) float32, after all layers or after each of `layers`."""
        output = self.transformer(
            input_ids=batch.ids, attention_mask=batch.mask, output_hidden_states=bool(layers)
        )
        # Under autocast too: pooling and head stay in float32.
        with torch.autocast(batch.ids.device.type, enabled=False):
            hidden = [output.hidden_states[layer] for layer in layers] if layers else [output[0]]
            return [cast(Tensor, self.pooling(h.float(), batch.mask)) for h in hidden]

    def headed(self, pooled: Tensor, *, unit: bool = True) -> Tensor:
        """The head's vectors: (B, width) to (B, dim). unit: with a Normalize at the end."""
        layers = list(self.head)
        if not unit and layers and isinstance(layers[-1], Normalize):
            layers.pop()  # for losses, which compare by cosine and scale themselves
        with torch.autocast(pooled.device.type, enabled=False):
            for layer in layers:
                pooled = layer(pooled)
        return pooled

    def forward(self, batch: Batch) -> Tensor:
        return self.headed(self.pooled(batch)[0])  # (B, dim)

    def output(self, batch: Batch) -> Tensor:
        """(B, dim) float32, of length 1 also where the model does not end in Normalize."""
        return nn.functional.normalize(self(batch).float(), dim=-1)

    def changed(self, **parts: Any) -> "SentenceModule":
        """The same with other parts, for inference: `transformer`, `pooling`, `head`."""
        same = {"transformer": self.transformer, "pooling": self.pooling}
        return SentenceModule(**{**same, "head": list(self.head), **parts}).eval()


class Classifier(nn.Module):
    """A linear layer for each prefix length of the vectors, which are scaled to the length √dim.

    labels: the names of the classes, in the order of the logits.
    """

    def __init__(self, dims: Sequence[int], labels: Sequence[str]):
        super().__init__()
        self.labels, self.dims = tuple(labels), tuple(dims)
        self.layers = nn.ModuleDict({str(dim): nn.Linear(dim, len(labels)) for dim in dims})

    def set_regression(
        self, dim: int, weights: NDArray[np.float64], intercepts: NDArray[np.float64]
    ) -> None:
        """Give a layer the weights (labels, dim) and intercepts (labels,) for unit prefixes."""
        layer: Any = self.layers[str(dim)]
        with torch.no_grad():
            layer.weight.copy_(torch.from_numpy(weights / math.sqrt(dim)))
            layer.bias.copy_(torch.from_numpy(intercepts))

    def forward(self, vectors: Tensor, dim: int | None = None) -> Tensor:
        """Logits (n, labels) of the first `dim` dimensions of vectors (n, D), of all by default.

        Raises ConfigError for a prefix length without a layer.
        """
        dim = vectors.shape[-1] if dim is None else dim
        if dim not in self.dims:
            raise ConfigError(
                f"labels of {dim} dimensions: the classifier was trained for "
                f"{', '.join(map(str, self.dims))}"
            )
        prefixes = nn.functional.normalize(vectors[..., :dim], dim=-1)
        return cast(Tensor, self.layers[str(dim)](prefixes * math.sqrt(dim)))

    @torch.inference_mode()
    def predict(self, vectors: NDArray[np.float32], dim: int) -> list[str]:
        """The likeliest label of each of vectors (n, D), by their first `dim` dimensions."""
        rows = torch.as_tensor(vectors, device=next(self.parameters()).device)
        return [self.labels[place] for place in self(rows, dim).argmax(dim=1).tolist()]


def lowered(module: SentenceModule, dtype: torch.dtype, device: torch.device) -> SentenceModule:
    """A copy for inference on a device, whose `transformer` computes in this type.

    No weight of the transformer is copied in float32 on the way. What is no weight, such as the
    frequencies of rotary positions, stays in float32: rounded, they would move far positions.
    """
    copies: dict[int, Any] = {  # by the weight's id: weights that layers share are copied once
        id(weight): nn.Parameter(weight.detach().to(device, dtype, copy=True), requires_grad=False)
        for weight in module.transformer.parameters()
    }
    return copy.deepcopy(module, copies).eval().to(device)
