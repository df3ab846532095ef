"""Compares a loss with that of sentence-transformers: the same value and the same gradients."""

from collections.abc import Callable, Sequence

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from torch import Tensor, nn
from transformers import PreTrainedTokenizerFast

from searchengine.trainer.training.passes import Passes, View

Loss = Callable[[list[Tensor]], Tensor]
WIDTH = 24
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-5}


class Given(nn.Sequential):
    """What stands for a model in a loss of sentence-transformers: its vectors are its input."""

    def __init__(self, name: str = "x"):
        super().__init__(nn.Identity())
        self.name = name
        self.max_seq_length = 8
        words = Tokenizer(WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
        self.tokenizer = PreTrainedTokenizerFast(tokenizer_object=words)

    def forward(self, features: dict[str, Tensor]) -> dict[str, Tensor]:
        return {"sentence_embedding": features[self.name]}

    def get_embedding_dimension(self) -> int:
        return WIDTH


def columns(
    count: int, n: int = 7, seed: int = 0, dtype: torch.dtype = torch.float64
) -> list[Tensor]:
    """count times (n, WIDTH), of lengths that differ."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.rand(count, n, 1, generator=generator, dtype=dtype) + 0.5
    return list(lengths * torch.randn(count, n, WIDTH, generator=generator, dtype=dtype))


def value_and_gradients(loss: Loss, inputs: Sequence[Tensor]) -> list[Tensor]:
    leaves = [x.clone().requires_grad_() for x in inputs]
    value = loss(leaves)
    torch.autograd.backward(value)
    return [value.detach(), *(leaf.grad for leaf in leaves if leaf.grad is not None)]


def assert_same(ours: Loss, theirs: Loss, inputs: Sequence[Tensor]) -> None:
    found, expected = (value_and_gradients(loss, inputs) for loss in (ours, theirs))
    assert len(found) == len(expected) > 1
    assert found[0] > 1e-3  # nothing to compare otherwise
    close = TOLERANCE[inputs[0].dtype]
    torch.testing.assert_close(found, expected, atol=close, rtol=close)


def theirs(loss: nn.Module, labels: Tensor | None = None) -> Loss:
    """A loss of sentence-transformers as a function of the columns' vectors."""
    return lambda inputs: loss([{"x": x} for x in inputs], labels)


def backward(
    passes: Passes,
    views: Sequence[View],
    layers: Sequence[int],
    loss: Callable[[list[Tensor]], Tensor],
) -> float:
    """Add the gradients of `loss` of the views' vectors; returns its value."""
    value = loss(passes.encode(views, layers, seed=7))
    value.backward()  # type: ignore[no-untyped-call]
    return value.item()
