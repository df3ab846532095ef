"""The gradients of one batch, as the training loop computes them."""

from collections.abc import Callable, Sequence

from torch import Tensor

from searchengine.trainer.training.passes import Passes, View


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
