"""Shorter vectors from a network that is left as it is: linear maps, fitted on its vectors.

What Matryoshka training is compared with. PCA is the rotation of the index; whitening is that of Su
et al., arXiv 2103.15316; the adapter learns a linear map with the nested loss on frozen vectors of
pairs, after Yoon et al., arXiv 2407.20243. Maps that are not linear are in benchmarks/manifold.py.

    reduce = whitening(vectors, width=64)                 # vectors (n, D) of training texts
    short = reduce(encoder.encode(["a whale"]))           # (1, 64) unit rows
    baked(encoder, reduce).save("whitened-model")         # the map as a layer of the model
"""

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from searchengine.trainer.encoder import Encoder
from searchengine.trainer.errors import ConfigError, DataError
from searchengine.trainer.model.modules import Dense, Normalize
from searchengine.trainer.runtimes.runtime_config import Precision
from searchengine.trainer.training.head import IDENTITY
from searchengine.trainer.training.losses import info_nce, matryoshka

Rows = NDArray[np.float32]
Batch = TypeVar("Batch")
# Directions in which the vectors vary less than this share of the strongest are rounding.
RELATIVE_RANK = 1e-9
# Frozen vectors with a cosine above this belong to equal texts.
EQUAL_TEXT_COSINE = 1 - 1e-5


@dataclass(frozen=True, slots=True, eq=False)
class LinearMap:
    """x ↦ W x + b, scaled to unit length.

    weight: (width, D) float32. bias: (width,) float32, or None for none. dims: the shorter prefix
    lengths that it was trained for, descending; None: those of the encoder that it is applied to.
    """

    name: str
    weight: Rows
    bias: Rows | None = None
    dims: tuple[int, ...] | None = None

    @property
    def width(self) -> int:
        """Number of dimensions of the result."""
        return len(self.weight)

    def __call__(self, vectors: ArrayLike) -> Rows:
        """(n, D) to (n, width) float32 unit rows; what maps to zero stays zero."""
        rows = vectors_of(vectors, self.weight.shape[1])
        mapped = rows @ self.weight.T
        return unit(mapped if self.bias is None else mapped + self.bias)

    def then(self, following: "LinearMap") -> "LinearMap":
        """This map and then one without bias, which sees no difference between x and x / |x|."""
        if following.bias is not None:
            raise ConfigError(f"the map {following.name} has a bias: expected one without")
        name, weight = f"{self.name}, {following.name}", following.weight @ self.weight
        bias = None if self.bias is None else following.weight @ self.bias
        return LinearMap(name, weight, bias, following.dims)

    def first(self, width: int) -> "LinearMap":
        """The map to the first `width` of its dimensions; fitting to that width gives the same."""
        check_width(width, self.width)
        bias = None if self.bias is None else self.bias[:width]
        return replace(self, weight=self.weight[:width], bias=bias)


def vectors_of(vectors: ArrayLike, dim: int | None = None) -> Rows:
    """The vectors as a checked (n, D) float32 array, n ≥ 1; DataError for anything else."""
    rows = np.asarray(vectors, np.float32)
    if rows.ndim != 2 or not rows.size or (dim is not None and rows.shape[1] != dim):
        raise DataError(
            f"vectors is an array of {rows.shape}: expected (n, {dim or 'D'}), a row for each text"
        )
    if not np.isfinite(rows).all():
        raise DataError("vectors holds NaN or infinity: leave those rows out")
    return rows


def unit(rows: NDArray[np.floating]) -> Rows:
    """Rows scaled to unit length, float32; zero rows stay zero."""
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.asarray(rows / np.maximum(lengths, 1e-12), np.float32)


def check_width(width: int, most: int) -> None:
    """ConfigError unless 1 ≤ width ≤ most."""
    if not 1 <= width <= most:
        raise ConfigError(f"width {width}: expected 1 to {most}, the vectors' width")


def pca(vectors: ArrayLike, width: int, *, centred: bool = False) -> LinearMap:
    """The `width` strongest principal axes of vectors (n, D), the strongest first.

    Uncentred, the axes of Σ x xᵀ: a rotation, so that at full width all cosines stay; what
    `training.head` and the index do. centred: subtracts the mean and takes the axes of the
    covariance.
    """
    rows = vectors_of(vectors).astype(np.float64)
    check_width(width, rows.shape[1])
    mean = rows.mean(axis=0) if centred else np.zeros(rows.shape[1])
    _, axes = _axes(rows - mean)
    weight = axes[:width]
    bias = np.asarray(-weight @ mean, np.float32) if centred else None
    return LinearMap("centred pca" if centred else "pca", weight.astype(np.float32), bias)


def whitening(vectors: ArrayLike, width: int, *, ridge: float = 0.0) -> LinearMap:
    """BERT-whitening: mean 0 and covariance 1 on the fitted vectors (before the unit scale).

    (x − μ) times the first `width` columns of U √(1/Λ), with U Λ Uᵀ the covariance (arXiv
    2103.15316, algorithm 1). ridge: added to Λ, in shares of its mean, so that weak axes are
    enlarged less, and few vectors suffice. Raises DataError where vectors (n, D) vary in fewer than
    `width` directions and there is no ridge, as fewer than width + 1 texts do.
    """
    rows = vectors_of(vectors).astype(np.float64)
    check_width(width, rows.shape[1])
    if ridge < 0:
        raise ConfigError(f"ridge is {ridge}: expected 0 or more")
    mean = rows.mean(axis=0)
    energy, axes = _axes(rows - mean)
    rank = int((energy > RELATIVE_RANK * energy[0]).sum())
    if rank < width and not ridge:
        raise DataError(
            f"{len(rows)} vectors vary in {rank} directions: whitening to {width} needs as many; "
            "fit it on more texts, or to a smaller width"
        )
    energy = np.maximum(energy, 0) + ridge * energy.mean()
    weight = axes[:width] / np.sqrt(energy[:width, None])
    bias = np.asarray(-weight @ mean, np.float32)
    return LinearMap("whitening", weight.astype(np.float32), bias)


def _axes(rows: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean squares along the principal axes (D,), falling, and the axes as rows (D, D)."""
    energy, axes = np.linalg.eigh(rows.T @ rows / len(rows))  # rising; axes in columns
    return energy[::-1], axes[:, ::-1].T


def adapter(
    anchors: ArrayLike,
    positives: ArrayLike,
    dims: Sequence[int],
    *,
    negatives: ArrayLike | None = None,
    seed: int = 0,
    steps: int = 200,
    batch_size: int = 128,
    learning_rate: float = 1e-4,
    temperature: float = 0.05,
    report: Callable[[int, float], None] | None = None,
) -> LinearMap:
    """A linear map trained with the nested contrastive loss on frozen vectors of pairs.

    Row i of anchors (n, D) belongs to row i of positives (n, D); the other positives of a batch
    are its negatives, but for those of equal texts. Begins as the uncentred PCA of both, where
    full-width cosines are the encoder's own, and takes `steps` updates of Adam with a learning
    rate that falls to 0. dims: the prefix lengths summed over; the widest is the map's width.
    negatives: (n, D), a hard negative of each pair, which is one for the whole batch; a row of
    zeros for none. report: called with each update's number, from 1, and its loss. The same seed
    gives the same map.
    """
    a, p = vectors_of(anchors), vectors_of(positives)
    if a.shape != p.shape or len(a) < 2:
        raise DataError(
            f"anchors {a.shape} and positives {p.shape}: expected two equal shapes, 2 rows or more"
        )
    hard = np.zeros_like(a) if negatives is None else vectors_of(negatives, a.shape[1])
    if hard.shape != a.shape:
        raise DataError(f"negatives {hard.shape}: expected the shape of the anchors, {a.shape}")
    check_width(max(dims, default=0), a.shape[1])
    if steps < 0 or batch_size < 2:
        raise ConfigError(f"{steps} steps of {batch_size} pairs: expected 0 or more of 2 or more")
    x, y, z = (torch.from_numpy(unit(rows)) for rows in (a, p, hard))
    weight = nn.Parameter(torch.from_numpy(pca(np.concatenate([a, p]), max(dims)).weight))

    def loss(batch: Tensor) -> Tensor:
        last = z[batch][z[batch].any(dim=1)]
        bias = _no_negatives(x[batch], y[batch], last)
        nce = partial(info_nce, bias=bias, temperature=temperature)
        candidates = torch.cat([y[batch], last])
        return matryoshka(nce, dims)(x[batch] @ weight.T, candidates @ weight.T)

    batches = row_batches(len(x), batch_size, steps, seed)
    descend([weight], batches, loss, steps, learning_rate, report)
    return LinearMap("adapter", weight.detach().numpy())


def _no_negatives(anchors: Tensor, positives: Tensor, negatives: Tensor) -> Tensor:
    """(B, B + N): −inf where candidate j is no negative for anchor i, else 0.

    Candidate j is left out where anchor i or its positive equals that of row j, whose positive is
    then one for anchor i as well; or where negative j equals a positive of anchor i.
    """
    equal = (anchors @ anchors.T > EQUAL_TEXT_COSINE) | (
        positives @ positives.T > EQUAL_TEXT_COSINE
    )  # (B, B)
    known = (positives @ negatives.T > EQUAL_TEXT_COSINE).float()  # (B, N)
    of_anchor = equal.float() @ known > 0  # each anchor's own, and those of equal rows
    equal.fill_diagonal_(False)
    both = torch.cat([equal, of_anchor], dim=1)
    return torch.zeros(both.shape).masked_fill(both, float("-inf"))


def row_batches(rows: int, size: int, steps: int, seed: int) -> Iterator[Tensor]:
    """`steps` batches of row numbers: shuffled epochs, whose last, smaller batch is dropped."""
    generator = torch.Generator().manual_seed(seed)
    size = min(size, rows)
    order = torch.empty(0, dtype=torch.long)
    for _ in range(steps):
        if len(order) < size:
            order = torch.randperm(rows, generator=generator)
        yield order[:size]
        order = order[size:]


def descend(
    parameters: Iterable[nn.Parameter],
    batches: Iterable[Batch],
    loss: Callable[[Batch], Tensor],
    steps: int,
    learning_rate: float,
    report: Callable[[int, float], None] | None,
) -> None:
    """Change parameters by an update of Adam for each of `steps` batches; its rate falls to 0.

    report: called with each update's number, from 1, and its loss.
    """
    optimizer = torch.optim.Adam(parameters, lr=learning_rate)
    for step, batch in enumerate(batches, 1):
        optimizer.param_groups[0]["lr"] = learning_rate * (1 - (step - 1) / steps)
        value = loss(batch)
        optimizer.zero_grad()
        value.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        if report is not None:
            report(step, value.item())


def baked(encoder: Encoder, reduction: LinearMap) -> Encoder:
    """An encoder that gives what the map gives for the vectors of `encoder`; saves as any other.

    A Dense layer and Normalize behind the unit rows of a copy. A classifier, which reads the old
    vectors, is left behind. Raises ConfigError for a map of vectors of another width, and for a
    Router, whose questions another network encodes.
    """
    width, dim = reduction.weight.shape
    if dim != encoder.dim:
        raise ConfigError(
            f"the map takes vectors {dim} wide, but {encoder.source} gives {encoder.dim}: fit it "
            "on the vectors of this encoder"
        )
    if encoder.model.questions is not None:
        raise ConfigError(
            f"{encoder.source} is a Router, and its network for questions would lack the map: give "
            "the encoder of its documents, and train one for questions for the result"
        )
    dense = Dense(dim, width, reduction.bias is not None, IDENTITY)
    with torch.no_grad():
        dense.linear.weight.copy_(torch.from_numpy(reduction.weight))
        if reduction.bias is not None:
            dense.linear.bias.copy_(torch.from_numpy(reduction.bias))
    model, old = encoder.model, copy.deepcopy(encoder.module)
    shorter = encoder.matryoshka_dims if reduction.dims is None else reduction.dims
    layers = list(old.head)
    if not layers or not isinstance(layers[-1], Normalize):
        layers.append(Normalize())  # what encode does with the rows of such a model
    reduced = replace(
        model,
        module=old.changed(head=[*layers, dense, Normalize()]),
        matryoshka_dims=(width, *(d for d in shorter if d < width)),
        recipe={**model.recipe, "posthoc": {"map": reduction.name, "width": width}},
        classifier=None,
    )
    device = str(next(old.parameters()).device)
    source = f"{encoder.source} + {reduction.name}"  # in memory alone until it is saved
    # torch runs what is in memory, and has no int8.
    precision = "auto" if encoder.precision == Precision.INT8 else encoder.precision
    return Encoder(reduced, source, precision=precision, device=device)
