"""Maps fitted on frozen vectors, against cutting them (STS-B dev): what training has to beat.

    python benchmarks/posthoc.py

The widened starter encodes English NLI pairs without any sentence of an STS or SICK test set or of
STS-B dev; each map is fitted on their vectors and measured at every width. The settings are the
library's defaults: nothing is chosen on STS-B dev. A few minutes on two cores.
"""

import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import manifold
import numpy as np
from matryoshka_finetune import TESTS
from record import DATA, record

from searchengine.trainer.encoder import Encoder
from searchengine.trainer.evaluation.sts import read_sts, sts
from searchengine.trainer.training import posthoc
from searchengine.trainer.training.examples import read_examples

ENCODER = "starter-768"
WIDTHS = (256, 128, 64)
Reduction = Callable[[posthoc.Rows], posthoc.Rows]  # to fewer dimensions
METHODS = ("plain", "pca", "centred pca", "whitening", "flow", "umap", "adapter")


class Mapped:
    """Vectors that are there already, as an encoder that applies a map to them."""

    def __init__(self, places: dict[str, int], vectors: posthoc.Rows, reduce: Reduction):
        self._places, self._rows = places, reduce(vectors)

    def encode(self, texts: list[str], **_: Any) -> posthoc.Rows:
        return self._rows[[self._places[text] for text in texts]]


def fits(a: posthoc.Rows, p: posthoc.Rows, chosen: tuple[str, ...]) -> dict[str, Callable[[], Any]]:
    """Method → what fits it and gives the map of each width, by width."""
    x, widest = np.concatenate([a, p]), max(WIDTHS)

    def cut(fitted: Any) -> dict[int, Reduction]:
        return {width: fitted.first(width) for width in WIDTHS}

    plain = posthoc.LinearMap("plain", np.eye(widest, x.shape[1], dtype=np.float32))
    known: dict[str, Callable[[], Any]] = {
        "plain": lambda: cut(plain),
        "pca": lambda: cut(posthoc.pca(x, widest)),
        "centred pca": lambda: cut(posthoc.pca(x, widest, centred=True)),
        "whitening": lambda: cut(posthoc.whitening(x, widest)),
        "flow": lambda: cut(manifold.flow(x, widest)),
        # A layout of its own for every width: its numbers are not in order of weight.
        "umap": lambda: {width: manifold.umap(x, width) for width in WIDTHS},
        "adapter": lambda: cut(posthoc.adapter(a, p, (x.shape[1], *WIDTHS))),
    }
    return {name: known[name] for name in METHODS if name in chosen}


@click.command()
@DATA
@click.option("--texts", default=5000, show_default=True, help="Texts to fit on, half of pairs.")
@click.option("--method", "methods", multiple=True, type=click.Choice(METHODS), default=METHODS)
def main(data: Path, texts: int, methods: tuple[str, ...]) -> None:
    """Fit every map, and report Spearman by width and seconds to fit."""
    tests = [data / f"sts/{name}.tsv" for name in TESTS]
    examples = read_examples([data / "nli/nli_triplets_en.tsv.gz"], exclude=tests)
    sampled = random.Random("posthoc").sample([both for _, both in examples], texts // 2)
    encoder = Encoder.load(ENCODER)
    a, p = (encoder.encode([both[i] for both in sampled]) for i in (0, 1))
    pairs = read_sts([data / "sts/stsb_dev.tsv"])
    sentences = list(dict.fromkeys(text for _, *both in pairs for text in both))
    places = {text: i for i, text in enumerate(sentences)}
    vectors = encoder.encode(sentences)
    full = 100 * sts(Mapped(places, vectors, posthoc.unit), pairs)[0].spearman
    figures: dict[str, Any] = {"texts": len(a) + len(p), "full width": round(full, 2)}
    click.echo(f"full width {full:.2f}; Spearman × 100 on STS-B dev, {len(a) + len(p)} texts")
    click.echo(f"{'':12}" + "".join(f"{width:>8}" for width in WIDTHS) + " seconds to fit")
    for name, fit in fits(a, p, methods).items():
        start = time.perf_counter()
        by_width = fit()
        seconds = round(time.perf_counter() - start, 1)
        found = {
            width: round(100 * sts(Mapped(places, vectors, reduce), pairs)[0].spearman, 2)
            for width, reduce in by_width.items()
        }
        figures[name] = {**found, "seconds": seconds}
        click.echo(f"{name:12}" + "".join(f"{s:8.2f}" for s in found.values()) + f"{seconds:10.1f}")
    record("posthoc", figures)


if __name__ == "__main__":
    main()
