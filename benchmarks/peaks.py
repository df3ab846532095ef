"""A side of encoding.py and gpu.py: how fast large matrix products of torch are here."""

import time
from collections.abc import Callable
from typing import Any

Turn = list[float]
"""What a turn took, or did per second: by the clock, and by processor time."""
SIZES = {True: (1024, 2048), False: (8192, 16384)}
"""Widths of the matrices that a processor, or a GPU, multiplies."""


def matmul(device: str) -> tuple[Callable[[], dict[str, Turn]], dict[str, Any]]:
    """Matrix products of torch: FLOP/s of the better of two sizes, best of five, by precision."""
    import torch

    def synchronised() -> list[float]:
        if device != "cpu":
            torch.cuda.synchronize()
        return [time.perf_counter(), time.process_time()]

    def product(multiply: Callable[..., Any], square: Any) -> Turn:
        before = synchronised()
        multiply(square, square)
        return [after - start for after, start in zip(synchronised(), before, strict=True)]

    squares = [torch.randn(n, n, device=device) for n in SIZES[device == "cpu"]]
    products: dict[str, tuple[Callable[..., Any], list[Any]]] = {
        "bf16": (torch.mm, [square.bfloat16() for square in squares])
    }
    if device == "cpu":
        products["fp32"] = (torch.mm, squares)
        products["int8"] = (torch._int_mm, [(square * 32).to(torch.int8) for square in squares])

    def answer() -> dict[str, Turn]:
        rates: dict[str, Turn] = {}
        for precision, (multiply, each) in products.items():
            best = [
                [2 * len(square) ** 3 / min(clock) for clock in zip(*took, strict=True)]
                for square in each
                for took in [[product(multiply, square) for _ in range(5)]]
            ]
            rates[precision] = [max(clock) for clock in zip(*best, strict=True)]
        return rates

    answer()
    return answer, {"engine": "torch", "precision": "bf16"}
