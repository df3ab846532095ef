"""Matryoshka training from the starter, beside the starter cut and beside maps of its vectors.

    pip install umap-learn zuko                 # for the maps flow and umap
    python benchmarks/matryoshka_finetune.py

Trains on English NLI triplets and picture captions, without any sentence of an STS or SICK test
set or of STS-B dev, which chooses the step; 2-D Matryoshka (arXiv 2402.14776) is also judged by its
first layers. The maps are fitted on the starter's vectors of NLI pairs: PCA, uncentred, is the
rotation of the index; whitening is that of Su et al., arXiv 2103.15316; the flow is BERT-flow,
arXiv 2011.05864; UMAP is arXiv 1802.03426, by cosine. Ten minutes a training on two cores.
"""

import json
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray
from record import DATA, record
from texts import captions
from trainings import ONLY, RETRIEVAL, SEEDS, TEST, Judge, compare, judge, sts_files

from searchengine.trainer.encoder import Encoder
from searchengine.trainer.evaluation.sts import StsTask, sentences, sts_tasks
from searchengine.trainer.training.examples import read_examples, read_sts
from searchengine.trainer.training.train_config import TrainConfig, preset

DIMS, LAYERS = (384, 256, 128, 64), (4, 3, 2)
Rows = NDArray[np.float32]
Reduction = Callable[[Rows, int], Rows]
"""Vectors (n, D) to rows (n, width)."""

# ---------------------------------------------------------------------------------------- maps


def linear(axes: NDArray[Any], mean: NDArray[Any] | float = 0.0) -> Reduction:
    """The first axes (D, D), as rows, of vectors less their mean."""
    return lambda rows, width: np.asarray((rows - mean) @ axes[:width].T, np.float32)


def principal(x: NDArray[Any]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean squares along the principal axes (D,), falling, and the axes as rows (D, D)."""
    energy, axes = np.linalg.eigh(x.T.astype(np.float64) @ x / len(x))
    return energy[::-1], axes[:, ::-1].T


def whitening(x: Rows) -> Reduction:
    """Mean 0 and covariance 1."""
    mean = x.mean(axis=0, dtype=np.float64)
    energy, axes = (found[: DIMS[1]] for found in principal(x - mean))
    return linear(axes / np.sqrt(energy[:, None]), mean)


def flow(x: Rows) -> Reduction:
    """Vectors moved to where they look like a Gaussian, by maximum likelihood; cut by PCA there.

    Couplings are additive, each sees the numbers in another random order; a standardisation at the
    start stands for the paper's actnorm.
    """
    import torch
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
    for _ in range(300):
        optimizer.zero_grad()
        (-model().log_prob(standard[torch.randint(len(x), (256,))]).mean()).backward()
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
    layouts = {width: UMAP(n_components=width, **settings).fit(x) for width in DIMS[1:]}

    def reduce(rows: Rows, width: int) -> Rows:
        layout = layouts[width]
        return np.asarray(layout.transform(rows) - layout.embedding_.mean(axis=0), np.float32)

    return reduce


MAPS: dict[str, Callable[[Rows], Reduction]] = {
    "cut": lambda x: linear(np.eye(x.shape[1], dtype=np.float32)),
    "pca": lambda x: linear(principal(x)[1]),
    "whitening": whitening,
    "flow": flow,
    "umap": umap,
}
"""What fits each map on vectors (n, D)."""


class Mapped:
    """Vectors that are there already, as an encoder."""

    def __init__(self, places: dict[str, int], rows: Rows) -> None:
        self._places, self._rows = places, rows

    def encode(self, texts: list[str], **_: Any) -> Rows:
        return self._rows[[self._places[text] for text in texts]]


def maps(data: Path, count: int, only: tuple[str, ...]) -> dict[str, Any]:
    """Spearman × 100 on STS-B dev by map and width, and seconds to fit on `count` NLI texts."""
    config = TrainConfig(
        train=(data / "nli/nli_triplets_en.tsv.gz",), exclude=tuple(sts_files(data)), out=Path("-")
    )
    sampled = random.Random("maps").sample(read_examples(config).train, count // 2)
    encoder = Encoder.load("starter")
    x = encoder.encode([text for row in sampled for text in row.matching])
    tasks = [StsTask("stsb_dev", read_sts(sts_files(data, ["stsb_dev"])))]
    texts = sentences(tasks)
    vectors, places = encoder.encode(texts), {text: i for i, text in enumerate(texts)}
    figures: dict[str, Any] = {}
    for name in [name for name in MAPS if not only or name in only]:
        start = time.perf_counter()
        reduce = MAPS[name](x)
        figures[name] = {"seconds": round(time.perf_counter() - start, 1)}
        for width in DIMS[1:]:
            (row,) = sts_tasks(Mapped(places, reduce(vectors, width)), tasks)
            figures[name][width] = round(100 * row.spearman, 2)
        click.echo(f"{name:40} {figures[name]}")
    return figures


# ------------------------------------------------------------------------------------ training


def caption_pairs(data: Path, path: Path) -> Path:
    """Two pairs of captions of each picture."""
    with path.open("w") as file:
        for picture in captions(data):
            for anchor, positive in (picture[:2], picture[2:4]):
                file.write(json.dumps({"anchor": anchor, "positive": positive}) + "\n")
    return path


def with_layers(judge_all: Judge, judge_layers: Judge) -> Judge:
    """The same figures by the first layers alone."""

    def figures(encoder: Encoder) -> dict[str, float]:
        found = judge_all(encoder)
        for layers in LAYERS:
            by_layer = judge_layers(Encoder.load(encoder.source, layers=layers))
            found |= {f"{layers} layers, {name}": value for name, value in by_layer.items()}
        return found

    return figures


@click.command()
@DATA
@click.option("--steps", default=100, show_default=True, help="Updates of 128 examples.")
@click.option("--texts", default=5000, show_default=True, help="Texts to fit the maps on.")
@SEEDS
@ONLY
@TEST
@RETRIEVAL
def main(
    data: Path,
    steps: int,
    texts: int,
    seeds: int,
    only: tuple[str, ...],
    test: bool,
    retrieval: bool,
) -> None:
    """Fit every map, and train with each seed."""
    judged = with_layers(judge(data, DIMS, test, retrieval), judge(data, DIMS[:1], False, False))
    record("maps", maps(data, texts, only))
    with tempfile.TemporaryDirectory() as scratch:
        pairs = caption_pairs(data, Path(scratch) / "captions.jsonl")
        common = {
            "train": [data / "nli/nli_triplets_en.tsv.gz", pairs],
            "exclude": sts_files(data),
            "dev": sts_files(data, ["stsb_dev"]),
            "prefixes": DIMS,
            "learning_rate": 3e-5,
            "max_steps": steps,
            "max_tokens": 64,
            "eval_every": 25,
        }
        rows = {name: {**preset(name), **common} for name in ("matryoshka", "matryoshka-2d")}
        compare("matryoshka_finetune", rows, judged, seeds, only)


if __name__ == "__main__":
    main()
