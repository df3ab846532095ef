"""Maps fitted on frozen vectors, against cutting them (STS-B dev): what training has to beat.

    pip install umap-learn zuko
    python benchmarks/posthoc.py

The widened starter encodes English NLI pairs without any sentence of an STS or SICK test set or of
STS-B dev; each map is fitted on their vectors and measured at every width. Nothing is chosen on
STS-B dev. PCA, uncentred, is the rotation of the index; whitening is that of Su et al., arXiv
2103.15316; the flow is BERT-flow, arXiv 2011.05864; UMAP is arXiv 1802.03426, by cosine; the
adapter learns a linear map with the nested loss, after Yoon et al., arXiv 2407.20243. Ten minutes
on two cores.
"""

import random
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch
from matryoshka_finetune import TESTS
from numpy.typing import NDArray
from record import DATA, record

from searchengine.trainer.encoder import Encoder
from searchengine.trainer.evaluation.sts import read_sts, sts
from searchengine.trainer.training.examples import read_examples
from searchengine.trainer.training.losses import info_nce, matryoshka
from searchengine.trainer.training.train_config import TrainConfig

ENCODER = "starter-768"
WIDTHS = (256, 128, 64)
Rows = NDArray[np.float32]
Reduction = Callable[[Rows, int], Rows]
"""Vectors (n, D) to unit rows (n, width) of one of WIDTHS."""


class Mapped:
    """Vectors that are there already, as an encoder."""

    def __init__(self, places: dict[str, int], rows: Rows) -> None:
        self._places, self._rows = places, rows

    def encode(self, texts: list[str], **_: Any) -> Rows:
        return self._rows[[self._places[text] for text in texts]]


def unit(rows: NDArray[Any]) -> Rows:
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.asarray(rows / np.maximum(lengths, 1e-12), np.float32)


def linear(axes: NDArray[Any], mean: NDArray[Any] | float = 0.0) -> Reduction:
    """The first axes (D, D), as rows, of vectors less their mean."""
    return lambda rows, width: unit((rows - mean) @ axes[:width].T)


def principal(x: NDArray[Any]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean squares along the principal axes (D,), falling, and the axes as rows (D, D)."""
    energy, axes = np.linalg.eigh(x.T.astype(np.float64) @ x / len(x))
    return energy[::-1], axes[:, ::-1].T


def whitening(x: Rows) -> Reduction:
    """Mean 0 and covariance 1."""
    mean = x.mean(axis=0, dtype=np.float64)
    energy, axes = (found[: max(WIDTHS)] for found in principal(x - mean))
    return linear(axes / np.sqrt(energy[:, None]), mean)


def batches(rows: int, size: int, steps: int) -> Iterator[torch.Tensor]:
    """`steps` batches of row numbers: shuffled epochs, whose last, smaller batch is dropped."""
    generator = torch.Generator().manual_seed(0)
    order = torch.empty(0, dtype=torch.long)
    for _ in range(steps):
        if len(order) < size:
            order = torch.randperm(rows, generator=generator)
        yield order[:size]
        order = order[size:]


def flow(x: Rows) -> Reduction:
    """Vectors moved to where they look like a Gaussian, by maximum likelihood; cut by PCA there.

    Couplings are additive, each sees the numbers in another random order; a standardisation at the
    start stands for the paper's actnorm.
    """
    import zuko

    mean, scale = x.mean(axis=0), np.maximum(x.std(axis=0), 1e-6)
    torch.manual_seed(0)
    model = zuko.flows.NICE(
        x.shape[1],
        transforms=4,
        randmask=True,
        univariate=zuko.transforms.AdditiveTransform,
        shapes=[()],
        hidden_features=(512, 512),
    )
    standard = torch.from_numpy((x - mean) / scale)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for batch in batches(len(x), 256, 300):
        optimizer.zero_grad()
        (-model().log_prob(standard[batch]).mean()).backward()
        optimizer.step()

    def latents(rows: Rows) -> Rows:
        with torch.inference_mode():
            found: Rows = model().transform(torch.from_numpy((rows - mean) / scale)).numpy()
        return found

    _, axes = principal(latents(x))
    return lambda rows, width: linear(axes)(latents(rows), width)


def umap(x: Rows) -> Reduction:
    """A layout of its own for every width; cosines are taken around its middle."""
    from umap import UMAP

    settings = {"n_neighbors": 15, "metric": "cosine", "random_state": 0, "n_jobs": 1}
    fitted = {width: UMAP(n_components=width, **settings).fit(x) for width in WIDTHS}

    def reduce(rows: Rows, width: int) -> Rows:
        layout = fitted[width]
        return unit(layout.transform(rows) - layout.embedding_.mean(axis=0))

    return reduce


def adapter(a: Rows, p: Rows) -> Reduction:
    """Begins as the PCA; 200 updates of Adam with a learning rate that falls to 0."""
    _, axes = principal(np.concatenate([a, p]))
    weight = torch.nn.Parameter(torch.from_numpy(axes.astype(np.float32)))
    x, y = torch.from_numpy(a), torch.from_numpy(p)
    loss = matryoshka(partial(info_nce, temperature=0.05), (a.shape[1], *WIDTHS))
    optimizer = torch.optim.Adam([weight], lr=1e-4)
    decay = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=200)
    for batch in batches(len(a), 128, 200):
        optimizer.zero_grad()
        loss(x[batch] @ weight.T, y[batch] @ weight.T).backward()
        optimizer.step()
        decay.step()
    return linear(weight.detach().numpy())


METHODS: dict[str, Callable[[Rows, Rows], Reduction]] = {
    "plain": lambda a, p: linear(np.eye(a.shape[1], dtype=np.float32)),
    "pca": lambda a, p: linear(principal(np.concatenate([a, p]))[1]),
    "whitening": lambda a, p: whitening(np.concatenate([a, p])),
    "flow": lambda a, p: flow(np.concatenate([a, p])),
    "umap": lambda a, p: umap(np.concatenate([a, p])),
    "adapter": adapter,
}
"""What fits each map on the vectors of pairs (n, D)."""


@click.command()
@DATA
@click.option("--texts", default=5000, show_default=True, help="Texts to fit on, half of pairs.")
@click.option("--method", "methods", multiple=True, type=click.Choice(list(METHODS)))
def main(data: Path, texts: int, methods: tuple[str, ...]) -> None:
    """Fit every map, and report Spearman by width and seconds to fit."""
    tests = [data / f"sts/{name}.tsv" for name in TESTS]
    triplets = data / "nli/nli_triplets_en.tsv.gz"
    examples = read_examples(TrainConfig(train=(triplets,), exclude=tuple(tests), out="model"))
    sampled = random.Random("posthoc").sample([both for _, both in examples], texts // 2)
    encoder = Encoder.load(ENCODER)
    a, p = (encoder.encode([both[i] for both in sampled]) for i in (0, 1))
    pairs = read_sts([data / "sts/stsb_dev.tsv"])
    sentences = list(dict.fromkeys(text for _, *both in pairs for text in both))
    places = {text: i for i, text in enumerate(sentences)}
    vectors = encoder.encode(sentences)

    def spearman(rows: Rows) -> float:
        return round(100 * sts(Mapped(places, rows), pairs)[0].spearman, 2)

    figures: dict[str, Any] = {"texts": len(a) + len(p), "full width": spearman(vectors)}
    click.echo(f"Spearman × 100 on STS-B dev, fitted on {figures['texts']} texts")
    click.echo(f"full width {figures['full width']:.2f}; by width, and seconds to fit:")
    for name in methods or METHODS:
        start = time.perf_counter()
        reduce = METHODS[name](a, p)
        seconds = round(time.perf_counter() - start, 1)
        found = {width: spearman(reduce(vectors, width)) for width in WIDTHS}
        figures[name] = {**found, "seconds": seconds}
        click.echo(f"{name:12}" + "".join(f"{s:8.2f}" for s in found.values()) + f"{seconds:10.1f}")
    record("posthoc", figures)


if __name__ == "__main__":
    main()
