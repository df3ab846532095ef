"""One vector for a long text: the preset longlora beside the base as shipped.

    python benchmarks/long_documents.py

Trains the starter's network with a window of 2,048 tokens (arXiv 2309.12307) on pairs of a question
and a long text, and asks about a caption put into filler at a depth of 0 to 1, texts of 512 to
2,048 tokens; candidates are the texts of the same length and depth; nDCG@10. Filler is the
abstracts of papers, one after another. A needle is a caption of a picture, put between two of its
sentences; the question is another caption of the same picture. Papers and pictures of training are
in no test. The base cuts off after 256 tokens, or has a vector for each of the product's own
passages, of which the best counts. Short texts are judged by STS-B and SciFact. An hour a training
on two cores.
"""

import json
import random
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray
from record import DATA, over_seeds, record
from texts import captions, papers
from trainings import SEEDS, judge

from searchengine.corpus.languages import sentence_ends
from searchengine.ingest.passages import PassageConfig, cut
from searchengine.trainer.encoder import Encoder
from searchengine.trainer.training.examples import read_sts
from searchengine.trainer.training.loop import train
from searchengine.trainer.training.train_config import TrainConfig, preset

BASE, WINDOW, SHORTEST = "starter", 2048, 192  # tokens of a training text, at least
LENGTHS, DEPTHS = (512, 1024, 2048), (0.0, 0.25, 0.5, 0.75, 1.0)
# Of papers and pictures, the last ones of a shuffled list are in tests.
TEST_PAPERS, TEST_PICTURES = 6000, 2000
Rows = NDArray[np.float32]
# Vectors of texts, and the text that each is of.
Embed = Callable[[Sequence[str]], tuple[Rows, NDArray[np.int64]]]


def sources(data: Path) -> tuple[list[str], list[list[str]]]:
    """Abstracts, and captions by picture, without those that are in an STS or SICK test."""
    abstracts = [paper["text"] for paper in papers(data)]
    random.Random("papers").shuffle(abstracts)
    tests = [data / "sts" / name for name in ("stsb_test.tsv", "stsb_dev.tsv", "sickr_test.tsv")]
    tests += sorted((data / "sts").glob("sts1*.tsv"))
    known = {plain(s) for _, a, b in read_sts(tests) for s in (a, b)}
    pictures = [each for each in captions(data) if not known & {*map(plain, each)}]
    random.Random("pictures").shuffle(pictures)
    return abstracts, pictures


def plain(text: str) -> str:
    return re.sub("[^a-z0-9]", "", text.lower())


class Writer:
    """Puts long texts together, counting tokens as the encoder does."""

    def __init__(self, encoder: Encoder, papers: Sequence[str], seed: str) -> None:
        self._encoder, self._papers, self.rng = encoder, papers, random.Random(seed)

    def tokens(self, texts: Sequence[str]) -> list[int]:
        return [len(spans) for spans in self._encoder.token_spans(texts)]

    def filler(self) -> Iterator[tuple[str, int]]:
        """Sentences of random papers and their tokens, without an end."""
        while True:
            text = self.rng.choice(self._papers)
            ends = sorted({*sentence_ends(text), len(text)})
            parts = [text[a:b].strip() for a, b in zip([0, *ends], ends, strict=False)]
            parts = [part for part in parts if part]
            yield from zip(parts, self.tokens(parts), strict=True)

    def with_needle(self, needle: str, tokens: int, depth: float) -> str:
        """Sentences of the filler, at most `tokens` with the needle; depth: 0 is the beginning."""
        room = tokens - self.tokens([needle])[0]
        chosen: list[str] = []
        before = [0]
        for sentence, count in self.filler():
            if before[-1] + count > room:
                break
            chosen.append(sentence)
            before.append(before[-1] + count)
        nearest = min(range(len(before)), key=lambda i: abs(before[i] - depth * before[-1]))
        chosen.insert(nearest, needle)
        return " ".join(chosen)


def write_pairs(writer: Writer, pictures: Sequence[Sequence[str]], path: Path, count: int) -> Path:
    with path.open("w", encoding="utf-8") as file:
        for _ in range(count):
            tokens = round((WINDOW - 2) * (SHORTEST / WINDOW) ** writer.rng.random())
            question, needle = writer.rng.sample(writer.rng.choice(pictures), 2)
            text = writer.with_needle(needle, tokens, writer.rng.random())
            file.write(json.dumps({"anchor": question, "positive": text}) + "\n")
    return path


def whole(encoder: Encoder) -> Embed:
    """One vector a text."""
    return lambda texts: (encoder.encode(texts, role="document"), np.arange(len(texts)))


def passages(encoder: Encoder) -> Embed:
    """A vector for each of the product's passages."""

    def embed(texts: Sequence[str]) -> tuple[Rows, NDArray[np.int64]]:
        sizes = PassageConfig().sizes(encoder.room("document"))
        spans = [cut(text, encoder.token_spans([text])[0], *sizes) for text in texts]
        parts = [text[a:b] for text, each in zip(texts, spans, strict=True) for a, b in each]
        owners = np.repeat(np.arange(len(texts)), [len(each) for each in spans])
        return encoder.encode(parts, role="document"), owners

    return embed


def passkey(
    encoder: Encoder, embed: Embed, texts: dict[str, list[str]], questions: Iterable[str]
) -> dict[str, float]:
    """nDCG@10 × 100 by cell; a text's score is its best vector's."""
    asked = encoder.encode(list(questions), role="query")
    found = {}
    for cell, documents in texts.items():
        rows, owners = embed(documents)
        best = np.full((len(asked), len(documents)), -np.inf, np.float32)
        np.maximum.at(best.T, owners, (asked @ rows.T).T)
        ranks = (best > np.diagonal(best)[:, None]).sum(axis=1)
        gains = np.where(ranks < 10, 1 / np.log2(ranks + 2.0), 0.0)
        found[cell] = round(100 * float(gains.mean()), 2)
    return found


@click.command()
@DATA
@click.option("--steps", default=130, show_default=True, help="Updates of 16 pairs.")
@click.option("--questions", default=60, show_default=True, help="Needles of each cell.")
@SEEDS
def main(data: Path, steps: int, questions: int, seeds: int) -> None:
    """Train with each seed, and ask."""
    base = Encoder.load(BASE, runtime="torch")
    abstracts, pictures = sources(data)
    writer = Writer(base, abstracts[-TEST_PAPERS:], "passkey")
    needles = [writer.rng.sample(each, 2) for each in pictures[-TEST_PICTURES:][:questions]]
    texts = {
        f"{tokens} tokens, depth {depth:g}": [
            writer.with_needle(needle, tokens - 2, depth) for _, needle in needles
        ]
        for tokens in LENGTHS
        for depth in DEPTHS
    }
    asked = [question for question, _ in needles]
    short = judge(data, (base.dim,), test=True, retrieval=True)
    figures: dict[str, Any] = {
        "base as shipped, cut off": passkey(base, whole(base), texts, asked) | short(base),
        "base as shipped, passages": passkey(base, passages(base), texts, asked),
    }
    results = []
    for seed in range(seeds):
        with tempfile.TemporaryDirectory() as scratch:
            pairs = Path(scratch) / "pairs.jsonl"
            learnt = Writer(base, abstracts[:-TEST_PAPERS], f"pairs {seed}")
            write_pairs(learnt, pictures[:-TEST_PICTURES], pairs, (steps + 1) * 16)
            settings = {**preset("longlora"), "base": BASE, "train": [pairs], "max_steps": steps}
            config = TrainConfig.from_dict(settings | {"out": f"{scratch}/model", "seed": seed})
            train(config)
            model = Encoder.load(config.out, runtime="torch")
            results.append(passkey(model, whole(model), texts, asked) | short(model))
    figures["trained, one vector"] = {
        name: over_seeds([row[name] for row in results]) for name in results[0]
    }
    for name, row in figures.items():
        click.echo(f"{name}: {row}")
    record("long documents", figures)


if __name__ == "__main__":
    main()
