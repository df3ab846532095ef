"""Shorter vectors by maps that bend: a normalising flow, and UMAP.

What Matryoshka training is held against, beside the linear maps of training.posthoc. Neither can be
a layer of a model folder.
"""

import importlib
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from searchengine.trainer.errors import ConfigError, DataError
from searchengine.trainer.training.posthoc import (
    LinearMap,
    Rows,
    check_width,
    pca,
    row_batches,
    unit,
    vectors_of,
)


@dataclass(frozen=True, slots=True, eq=False)
class FlowMap:
    """Vectors moved to where they look like a Gaussian, then cut by PCA there.

    flow: a zuko flow of standardised vectors. mean, scale: (D,) what standardises them. axes: the
    principal axes of the latents of the fitted vectors, down to the width.
    """

    flow: Any
    mean: Tensor
    scale: Tensor
    axes: LinearMap
    name: str = "flow"

    def __call__(self, vectors: ArrayLike) -> Rows:
        """(n, D) to (n, width) float32 unit rows."""
        return self.axes(self.latents(vectors))

    def latents(self, vectors: ArrayLike) -> Rows:
        """Where the flow puts the vectors (n, D): (n, D) float32, not scaled to unit length."""
        with torch.inference_mode():
            return np.asarray(self.flow().transform(self._standard(vectors)))

    def log_likelihood(self, vectors: ArrayLike) -> NDArray[np.float64]:
        """ln of the density that the flow gives each vector of (n, D), in nats: (n,)."""
        with torch.inference_mode():
            found = self.flow().log_prob(self._standard(vectors)) - self.scale.log().sum()
        return np.asarray(found, np.float64)

    def first(self, width: int) -> "FlowMap":
        """The map to the first `width` of its numbers."""
        return replace(self, axes=self.axes.first(width))

    def _standard(self, vectors: ArrayLike) -> Tensor:
        rows = torch.from_numpy(vectors_of(vectors, len(self.mean)))
        return (rows - self.mean) / self.scale


def flow(
    vectors: ArrayLike,
    width: int,
    *,
    seed: int = 0,
    steps: int = 300,
    batch_size: int = 256,
    couplings: int = 4,
    hidden: int = 512,
    learning_rate: float = 1e-3,
    report: Callable[[int, float], None] | None = None,
) -> FlowMap:
    """BERT-flow: a flow fitted to vectors (n, D) by maximum likelihood (arXiv 2011.05864).

    As there, couplings are additive and each sees the numbers in another random order; a
    standardisation at the start stands for the paper's actnorm. couplings: how many. hidden: width
    of the two layers in each. report: called with each update's number, from 1, and the mean
    negative log likelihood of its batch, in nats. The same seed gives the same map. Raises
    ConfigError without zuko.
    """
    zuko = _extra("zuko", "the flow", "zuko")
    rows = torch.from_numpy(vectors_of(vectors))
    dim = rows.shape[1]
    check_width(width, dim)
    if len(rows) < 2 or dim < 2:
        raise DataError(f"vectors is {tuple(rows.shape)}: a flow needs 2 rows and 2 numbers")
    mean, scale = rows.mean(dim=0), rows.std(dim=0).clamp(min=1e-6)
    standard = (rows - mean) / scale
    with torch.random.fork_rng(devices=[]):  # the masks and first weights; the caller's stay
        torch.manual_seed(seed)
        model = zuko.flows.NICE(
            dim,
            transforms=couplings,
            randmask=True,
            univariate=zuko.transforms.AdditiveTransform,
            shapes=[()],
            hidden_features=(hidden, hidden),
        )
    optimizer = torch.optim.Adam(model.parameters(), lr=learning_rate)
    constant = float(scale.log().sum())
    for step, batch in enumerate(row_batches(len(rows), batch_size, steps, seed), 1):
        loss = -model().log_prob(standard[batch]).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if report is not None:
            report(step, loss.item() + constant)
    model.eval().requires_grad_(False)
    whole = FlowMap(model, mean, scale, LinearMap("identity", np.eye(dim, dtype=np.float32)))
    return replace(whole, axes=pca(whole.latents(rows.numpy()), width))


@dataclass(frozen=True, slots=True, eq=False)
class UmapMap:
    """A fitted UMAP. centre: (width,) mean of the fitted places, from which angles are taken."""

    reducer: Any
    centre: Rows
    dim: int
    name: str = "umap"

    def __call__(self, vectors: ArrayLike) -> Rows:
        """(n, D) to (n, width) float32 unit rows; rows given together move one another a little."""
        return unit(self.reducer.transform(vectors_of(vectors, self.dim)) - self.centre)


def umap(
    vectors: ArrayLike,
    width: int,
    *,
    seed: int = 0,
    neighbours: int = 15,
    epochs: int | None = None,
) -> UmapMap:
    """UMAP of vectors (n, D) by cosine (McInnes et al., arXiv 1802.03426).

    neighbours: of each vector that keep their place beside it. epochs: of its layout; by default
    what the library finds right for n. The same seed gives the same map, on one thread. Raises
    ConfigError without umap-learn, DataError for fewer than width + 2 vectors.
    """
    library = _extra("umap", "UMAP", "umap-learn")
    rows = vectors_of(vectors)
    check_width(width, rows.shape[1])
    if len(rows) < width + 2:
        raise DataError(f"{len(rows)} vectors: UMAP to {width} numbers needs {width + 2} or more")
    reducer = library.UMAP(
        n_components=width,
        n_neighbors=max(2, min(neighbours, len(rows) - 1)),
        n_epochs=epochs,
        metric="cosine",
        random_state=seed,
        n_jobs=1,  # what a seed implies; said here, the library need not warn of it
    ).fit(rows)
    # A layout has no origin of its own: cosines are taken around its middle.
    centre = np.asarray(reducer.embedding_.mean(axis=0), np.float32)
    return UmapMap(reducer, centre, rows.shape[1])


def _extra(module: str, what: str, package: str) -> Any:
    """The module of an optional package; ConfigError says how to get it."""
    try:
        with warnings.catch_warnings():
            # umap says that tensorflow is not there, which only a part of it unused here wants.
            warnings.filterwarnings("ignore", "Tensorflow not installed", ImportWarning)
            return importlib.import_module(module)
    except ImportError:
        raise ConfigError(
            f"{what} needs {package}: install the extra `posthoc` "
            "(pip install 'searchengine[posthoc]')"
        ) from None
