"""Cosines of every prefix of two sets of vectors: (B, N) for each length, or (n,) of given pairs.

What all nested losses begin with (Kusupati et al., arXiv 2205.13147). The dot products over a
prefix are those over the next shorter one plus those over the block between them, and so are the
squared lengths: all prefixes together cost the multiplications of the longest, forward and back.
"""

import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from searchengine.trainer.model.modules import check_lengths, prefix

# A row shorter than this is taken for this long: a zero row stays zero, and its gradient finite.
EPSILON = 1e-12


def cosines(a: Tensor, c: Tensor) -> Tensor:
    """Cosines of every row of a (B, D) with every row of c (N, D): (B, N)."""
    return prefix(a, a.shape[-1]) @ prefix(c, c.shape[-1]).T


def plain_cosines(a: Tensor, c: Tensor, dims: Sequence[int]) -> list[Tensor]:
    """The cosines (B, N) over each prefix in turn: cut, scaled, multiplied."""
    return [prefix(a, dim) @ prefix(c, dim).T for dim in dims]


def nested_cosines(a: Tensor, c: Tensor, dims: Sequence[int]) -> list[Tensor]:
    """As `plain_cosines`, each number multiplied once: (B, N) for each of dims, in their order."""
    check_lengths(dims, a.shape[-1])
    ends = sorted(set(dims))
    scores = _Nested.apply(a, c, *ends)  # type: ignore[no-untyped-call]
    by_length = dict(zip(ends, scores, strict=True))
    return [by_length[dim] for dim in dims]


def paired_cosines(a: Tensor, c: Tensor, dims: Sequence[int]) -> list[Tensor]:
    """The cosine of row i of a (n, D) with row i of c (n, D): (n,) for each of dims."""
    check_lengths(dims, a.shape[-1])
    ends = sorted(set(dims))
    blocks = list(itertools.pairwise([0, *ends]))

    def sums(products: Tensor) -> Tensor:
        """(len(ends), n): over each prefix."""
        parts = [products[:, start:end].sum(dim=1) for start, end in blocks]
        return torch.stack(parts).cumsum(dim=0)

    scales = (sums(x.square()).clamp(min=EPSILON**2).rsqrt() for x in (a, c))
    by_length = dict(zip(ends, sums(a * c) * next(scales) * next(scales), strict=True))
    return [by_length[dim] for dim in dims]


def paired_angles(a: Tensor, c: Tensor, dims: Sequence[int]) -> list[Tensor]:
    """AnglE's similarity of row i of a with row i of c: (n,) for each of dims (arXiv 2309.12871).

    The dimensions i and i + dim/2 of a prefix are a complex number; a prefix of odd length gets a
    zero. The similarity is |cosine + sine| between two vectors of such numbers, as in the authors'
    code, whose sign their equation 3 has the other way round.
    """
    found = []
    for dim in dims:
        x, y = (functional.pad(prefix(rows, dim), (0, dim % 2)) for rows in (a, c))
        (real_x, imaginary_x), (real_y, imaginary_y) = x.chunk(2, dim=1), y.chunk(2, dim=1)
        sine = (imaginary_x * real_y - real_x * imaginary_y).sum(dim=1)
        found.append(((x * y).sum(dim=1) + sine).abs())
    return found


class _Nested(torch.autograd.Function):
    """The cosines of ascending prefixes. Only they and the scales are kept for the way back."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, c: Tensor, *ends: int) -> tuple[Tensor, ...]:
        found: list[Tensor] = []
        scales: list[Tensor] = []
        start, dots = 0, a.new_zeros(len(a), len(c))
        squares_a, squares_c = a.new_zeros(len(a)), c.new_zeros(len(c))
        for end in ends:
            x, y = a[:, start:end], c[:, start:end]
            dots = torch.addmm(dots, x, y.T)
            squares_a = squares_a + x.square().sum(-1)
            squares_c = squares_c + y.square().sum(-1)
            scale_a, scale_c = (s.clamp(min=EPSILON**2).rsqrt() for s in (squares_a, squares_c))
            found.append((dots * scale_a.unsqueeze(1)).mul_(scale_c))
            scales += [scale_a, scale_c]
            start = end
        ctx.save_for_backward(a, c, *found, *scales)
        ctx.ends = ends
        return tuple(found)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """From the longest prefix down: a block is part of its own prefix and all longer ones.

        With s = x·y / (|x||y|): ds/dx = y / (|x||y|) − s · x / |x|².
        """
        ends = ctx.ends
        a, c, *saved = ctx.saved_tensors
        found, scales = saved[: len(ends)], saved[len(ends) :]
        grad_a, grad_c = torch.zeros_like(a), torch.zeros_like(c)
        dots = torch.zeros_like(found[0])
        pull_a, pull_c = a.new_zeros(len(a)), c.new_zeros(len(c))
        for k in reversed(range(len(ends))):
            start, end = (ends[k - 1] if k else 0), ends[k]
            scale_a, scale_c = scales[2 * k], scales[2 * k + 1]
            pulled = gradients[k] * found[k]
            # The length of a row taken for EPSILON does not change with the row.
            free_a, free_c = scale_a < 1 / EPSILON, scale_c < 1 / EPSILON
            pull_a = pull_a - pulled.sum(1) * scale_a.square() * free_a
            pull_c = pull_c - pulled.sum(0) * scale_c.square() * free_c
            dots.add_(torch.mul(gradients[k], scale_a.unsqueeze(1), out=pulled).mul_(scale_c))
            x, y = a[:, start:end], c[:, start:end]
            grad_a[:, start:end] = torch.addmm(x * pull_a.unsqueeze(1), dots, y)
            grad_c[:, start:end] = torch.addmm(y * pull_c.unsqueeze(1), dots.T, x)
        return grad_a, grad_c, *(None for _ in ends)
