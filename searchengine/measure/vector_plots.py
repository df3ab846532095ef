"""Plots of vectors: quality by prefix length, a map of sentences, the singular spectrum."""

from collections import Counter
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from searchengine.measure.plotting import (
    COLOURS,
    MARKERS,
    check_finite,
    label_ends,
    new_figure,
    styled,
)
from searchengine.trainer.errors import ConfigError, DataError, install_line

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAX_LABELS = len(COLOURS)


class Projection(StrEnum):
    """Projections to two dimensions."""

    PCA = "pca"
    TSNE = "tsne"
    UMAP = "umap"


@styled
def prefix_scores(
    methods: Mapping[str, Mapping[int, float]],
    measure: str = "Spearman correlation",
    title: str = "Score by prefix length",
) -> "Figure":
    """The score of every method by prefix length, on a binary logarithmic axis.

    methods: scores by prefix length, by name; measure: name of the scores. A single length is a
    mark. Raises DataError for no method, more than ten, or a method without scores.
    """
    from matplotlib.ticker import NullLocator

    if not 1 <= len(methods) <= len(COLOURS):
        raise DataError(f"a plot must have 1 to {len(COLOURS)} methods, got {len(methods)}")
    figure, (axes,) = new_figure(4.2)
    axes.set_xscale("log", base=2)
    ends = []
    for (name, scores), colour, marker in zip(methods.items(), COLOURS, MARKERS, strict=False):
        if not scores or min(scores) < 1:
            raise DataError(f"{name}: expected scores by prefix length, got {dict(scores)}")
        check_finite(f"scores of {name}", scores.values())
        points = sorted(scores.items())
        axes.plot(*zip(*points, strict=True), marker=marker, color=colour, label=name)
        ends.append((name, *points[-1], colour))
    lengths = sorted({length for scores in methods.values() for length in scores})
    axes.set_xticks(lengths, [str(length) for length in lengths])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("prefix length (dimensions)")
    axes.set_ylabel(measure)
    axes.set_title(title)
    label_ends(axes, ends)
    return figure


@styled
def sentence_map(
    vectors: ArrayLike,
    labels: Sequence[str],
    projection: str = Projection.PCA,
    seed: int = 0,
    title: str = "",
) -> "Figure":
    """Vectors as points in the plane, one colour and mark per label.

    vectors: (n, D), n ≥ 3; labels: n, at most ten different. projection: "pca", "tsne"
    (scikit-learn) or "umap" (umap-learn); the latter two keep neighbourhoods, not large distances.
    seed: their random seed. Raises DataError for vectors and labels that do not fit, ConfigError
    for an unknown projection or a missing package.
    """
    rows = np.asarray(vectors, np.float64)
    counts = Counter(labels)
    if rows.ndim != 2 or len(rows) != len(labels) or len(rows) < 3 or rows.shape[1] < 2:
        raise DataError(
            f"vectors of shape {rows.shape} with {len(labels)} labels: expected at least 3 rows "
            "of at least 2 dimensions, and a label for each"
        )
    if len(counts) > MAX_LABELS:
        raise DataError(f"a plot must have at most {MAX_LABELS} labels, got {len(counts)}")
    check_finite("vectors", rows.ravel())
    places, names = project(rows, projection, seed)
    figure, (axes,) = new_figure(4.8)
    size = float(np.clip(8000 / len(rows), 6, 40))
    kinds = list(counts)  # in order of occurrence
    for label, colour, marker in zip(kinds, COLOURS, MARKERS, strict=False):
        at = places[[other == label for other in labels]]
        named = f"{label} ({len(at)})"
        look: dict[str, Any] = {"s": size, "alpha": 0.75, "linewidths": 0.3, "edgecolors": "white"}
        axes.scatter(*at.T, color=colour, marker=marker, label=named, **look)
    axes.set_xlabel(names[0])
    axes.set_ylabel(names[1])
    axes.set_xticks([])
    axes.set_yticks([])
    axes.set_aspect("equal", adjustable="datalim")
    axes.set_title(title or f"{len(rows)} sentences, {len(counts)} labels")
    figure.legend(loc="outside right upper", markerscale=float(np.sqrt(40 / size)))
    return figure


def project(
    rows: NDArray[np.float64], projection: str, seed: int
) -> tuple[NDArray[np.float64], tuple[str, str]]:
    """Positions (n, 2) in the plane, and the names of the axes.

    The sign of each principal axis makes its furthest row positive: equal rows give equal plots on
    every machine.
    """
    match projection:
        case Projection.PCA:
            left, values, _ = np.linalg.svd(rows - rows.mean(axis=0), full_matrices=False)
            places = left[:, :2] * values[:2]
            furthest = np.abs(places).argmax(axis=0)
            places = places * np.where(places[furthest, [0, 1]] < 0, -1, 1)
            total = float((values**2).sum())
            shares = [100 * value**2 / total if total else 0.0 for value in values[:2]]
            first, second = (f"{share:.1f} % of the variance" for share in shares)
            return places, (f"1st principal axis ({first})", f"2nd principal axis ({second})")
        case Projection.TSNE:
            return _tsne(rows, seed), ("t-SNE, 1st axis (no unit)", "t-SNE, 2nd axis (no unit)")
        case Projection.UMAP:
            return _umap(rows, seed), ("UMAP, 1st axis (no unit)", "UMAP, 2nd axis (no unit)")
    raise ConfigError(f"projection {projection!r}: expected one of {', '.join(Projection)}")


def _tsne(rows: NDArray[np.float64], seed: int) -> NDArray[np.float64]:
    """van der Maaten and Hinton 2008; by cosine, the similarity of sentences."""
    from sklearn.manifold import TSNE

    perplexity = min(30.0, (len(rows) - 1) / 3)
    model = TSNE(metric="cosine", perplexity=perplexity, init="random", random_state=seed)
    return np.asarray(model.fit_transform(rows), np.float64)


def _umap(rows: NDArray[np.float64], seed: int) -> NDArray[np.float64]:
    """McInnes, Healy and Melville, arXiv 1802.03426; by cosine."""
    try:
        from umap import UMAP
    except ImportError:
        raise ConfigError(f"UMAP needs umap-learn: {install_line('posthoc')}") from None
    neighbours = min(15, len(rows) - 1)
    model = UMAP(metric="cosine", n_neighbors=neighbours, random_state=seed, n_jobs=1)
    return np.asarray(model.fit_transform(rows), np.float64)


@styled
def spectra(values: Mapping[str, ArrayLike], title: str = "") -> "Figure":
    """Singular values from the largest down, relative to it, on a logarithmic axis.

    values: singular values (r,) of each matrix of row vectors, by name, such as "before" and
    "after". The legend shows the effective rank, exp of the entropy of the values' shares (Roy and
    Vetterli 2007). A flat spectrum uses all directions. Values below a millionth of the largest are
    left out. Raises DataError for no values, a negative one, or only zeros.
    """
    if not 1 <= len(values) <= len(COLOURS):
        raise DataError(f"a plot must have 1 to {len(COLOURS)} spectra, got {len(values)}")
    figure, (axes,) = new_figure(4.0)
    for (name, array), colour in zip(values.items(), COLOURS, strict=False):
        check_finite(f"singular values of {name}", np.ravel(array))
        spectrum = np.sort(np.asarray(array, np.float64).ravel())[::-1]
        if not len(spectrum) or spectrum[0] <= 0 or spectrum[-1] < 0:
            raise DataError(f"{name}: singular values must not be negative, nor all 0")
        relative = spectrum / spectrum[0]
        shown = relative[relative > 1e-6]
        named = f"{name}: effective rank {_effective_rank(spectrum):.1f} of {len(spectrum)}"
        marker = "o" if len(shown) == 1 else ""
        axes.plot(np.arange(1, len(shown) + 1), shown, marker=marker, color=colour, label=named)
    axes.set_yscale("log")
    axes.set_xlabel("singular value, by rank")
    axes.set_ylabel("relative to the largest")
    axes.set_title(title or "Singular values: a flatter line uses more directions")
    axes.legend(loc="best")
    return figure


def _effective_rank(spectrum: NDArray[np.float64]) -> float:
    """exp of the entropy of the singular values' shares, from 1 to their number."""
    shares = spectrum[spectrum > 0] / spectrum.sum()
    return float(np.exp(-(shares * np.log(shares)).sum()))
