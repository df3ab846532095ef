"""The gradients of one batch, as the training loop computes them."""

from collections.abc import Callable, Sequence

from torch import Tensor

from searchengine.trainer.training.passes import Passes, View


def backward(
    passes: Passes,
    views: Sequence[View],
    layers: Sequence[int],
    seed: int,
    loss: Callable[[list[Tensor]], Tensor],
    share: float = 1.0,
) -> float:
    """Add the gradients of share · `loss` of the views' vectors; returns its value."""
    vectors, cached = passes.encode(views, layers, seed)
    value = share * loss(vectors)
    value.backward()  # type: ignore[no-untyped-call]
    total = value.item()
    del value, vectors
    if cached is not None:
        passes.repeat(cached)
    return total
