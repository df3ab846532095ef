"""What each preset gains: a tiny random network, trained for seconds on sentences of 38 words."""

import csv
from collections.abc import Sequence
from itertools import permutations, product
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from scipy.stats import spearmanr

from public.conftest import RECORDS, Figures
from searchengine import Encoder
from tests.tiny_model import WORDS, write_sentence_transformer

NOUNS, VERBS, PLACES = WORDS[2:8], WORDS[8:13], ["sea", "house", "tree", "car"]
SENTENCES = [f"the {n} {v} near the {p}" for n, v, p in product(NOUNS, VERBS, PLACES)]
"""120 sentences. The same words in another order mean the same, another place is another text."""
SETTINGS = "batch_size=16 max_steps=60 learning_rate=0.003 precision=fp32"
"""Of every run; no dropout but where it makes the positive: so small a network bears little."""


def write(path: Path, rows: Sequence[Sequence[str]]) -> Path:
    """A TSV file; the first row has the names of the columns."""
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, "excel-tab", quoting=csv.QUOTE_NONE).writerows(rows)
    return path


def turned(sentence: str) -> str:
    """The same words, the place first: "near the sea sleeps the dog"."""
    _, noun, verb, *place = sentence.split()
    return " ".join([*place, verb, "the", noun])


def reworded(sentence: str) -> str:
    return sentence.replace("near the", "near a")


def other_place(sentence: str) -> str:
    place = sentence.split()[-1]
    return sentence.replace(place, PLACES[PLACES.index(place) - 1])


def overlap(pair: tuple[str, str]) -> str:
    """How many of noun, verb and place two sentences share."""
    return str(len({*pair[0].split()} & {*pair[1].split()}) - 2)


PAIRS = list(zip(SENTENCES, [*SENTENCES[7:], *SENTENCES[:7]], strict=True))
PAIRS += list(zip(SENTENCES, [*SENTENCES[4:], *SENTENCES[:4]], strict=True))
LABELLED = [
    [(f"the {a} {v} near the {b}", a) for a, b in permutations(NOUNS, 2) for v in verbs]
    for verbs in (VERBS[:3], VERBS[3:])
]
"""Texts to learn and others to judge by; the label is the first animal, whatever the second."""
EXAMPLES: dict[str, list[tuple[str, ...]]] = {
    "sentences": [("sentence",), *((s,) for s in SENTENCES)],
    "pairs": [("anchor", "positive"), *((s, turned(s)) for s in SENTENCES)],
    "triplets": [
        ("anchor", "positive", "negative"),
        *((s, turned(s), other_place(s)) for s in SENTENCES),
    ],
    "labels": [("text", "label"), *LABELLED[0]],
    "judging labels": [("text", "label"), *LABELLED[1]],
    "scored": [("sentence1", "sentence2", "score"), *((*pair, overlap(pair)) for pair in PAIRS)],
}
# Preset → its examples, settings of its own, and how the result is judged.
PRESETS: dict[str, tuple[str, str, str]] = {
    "simcse-unsup": ("sentences", "dropout=0.02", "reworded"),
    "simcse-sup": ("triplets", "dropout=0", "turned"),
    "matryoshka": ("pairs", "dropout=0 prefixes=[32,8]", "turned at 8"),
    "matryoshka-2d": ("pairs", "dropout=0 prefixes=[32,8]", "turned in 1 layer"),
    "labels": ("labels", "dropout=0", "labels"),
    "pairs": ("pairs", "dropout=0 prefixes=[32,8]", "turned"),
    "scored-pairs": ("scored", "dropout=0", "scored"),
    "longlora": ("pairs", "prefixes=[32] window=96 max_tokens=96 attention_group=24", "turned"),
}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_sentence_transformer(tmp_path_factory.mktemp("base") / "model")


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_gains(preset: str, base: Path, tmp_path: Path, figures: Figures) -> None:
    before = score(base, PRESETS[preset][2])
    gains = []
    for seed in range(3 if RECORDS else 1):
        run_training(preset, base, tmp_path / f"{seed}", seed)
        gains.append(score(tmp_path / f"{seed}", PRESETS[preset][2]) - before)
    print(preset, "gains", gains)
    figures.check("training", preset, float(np.mean(gains)))


def run_training(preset: str, base: Path, out: Path, seed: int) -> None:
    from searchengine.cli import cli

    kind, own, _ = PRESETS[preset]
    data = write(out.with_suffix(".tsv"), EXAMPLES[kind])
    words: list[object] = ["train", data, "--preset", preset, "--base", base, "--out", out]
    for setting in f"{SETTINGS} {own} seed={seed}".split():
        words += ["--set", setting]
    if kind == "labels":
        words += ["--dev", write(out.with_suffix(".dev"), EXAMPLES["judging labels"])]
    result = CliRunner().invoke(cli, [*map(str, words)], prog_name="searchengine")
    assert result.exit_code == 0, result.output


def score(folder: Path, judge: str) -> float:
    """How well a model does what the examples teach: a share of right answers, or Spearman."""
    encoder = Encoder.load(folder, runtime="torch", precision="fp32")
    if judge == "labels":  # the nearest text that was learnt has the same label
        learnt, asked = (encoder.encode([text for text, _ in part]) for part in LABELLED)
        nearest = (asked @ learnt.T).argmax(axis=1)
        right = [
            LABELLED[0][n][1] == label for n, (_, label) in zip(nearest, LABELLED[1], strict=True)
        ]
        return float(np.mean(right))
    if judge == "scored":
        first, second = (encoder.encode(texts) for texts in zip(*PAIRS, strict=True))
        cosines = (first * second).sum(axis=1)
        return float(spearmanr(cosines, [int(overlap(pair)) for pair in PAIRS])[0])
    if judge == "turned in 1 layer":
        encoder = Encoder.load(folder, runtime="torch", precision="fp32", layers=1)
    other = reworded if judge == "reworded" else turned
    vectors = encoder.encode(SENTENCES)
    others = encoder.encode([other(sentence) for sentence in SENTENCES])
    if judge == "turned at 8":
        others = others[:, :8] / np.linalg.norm(others[:, :8], axis=1, keepdims=True)
        vectors = vectors[:, :8]
    return float(np.mean((vectors @ others.T).argmax(axis=1) == np.arange(len(vectors))))
