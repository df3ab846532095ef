"""Hard negatives by an encoder a human can compute: every text says its angle."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import run
from tiny_model import write_sentence_transformer

from searchengine.encoders.protocol import TextEncoder
from searchengine.measure.mining import (
    Mined,
    MiningSummary,
    candidates,
    mine,
    read_pairs,
    write_negatives,
)
from searchengine.trainer.training.examples import Texts, read_file


class Angles(TextEncoder):
    """ "at 30" lies at 30 degrees of the plane: cosines of 10, 20, 30, 40 and 50 degrees are .985,
    .940, .866, .766 and .643."""

    dim = 2
    fingerprint = "angles"

    def __init__(self) -> None:
        self.roles: dict[str, str | None] = {}

    def encode(self, texts: Sequence[str], *, role: Any = None, **_: Any) -> Any:
        self.roles.update(dict.fromkeys(texts, role))
        angles = np.radians([float(text.strip("!").split()[-1]) for text in texts])
        return np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)


PAIRS = [("q 0", "p 30"), ("q 90", "p 60")]
# From q 0: c 10, (p 30), c 32, c 40, c 50, p 60. From q 90: (p 60), c 50, c 40, c 32, p 30, c 10.
CORPUS = ["c 10", "c 32", "c 40", "c 50"]


def mined(pairs: Sequence[Texts], corpus: Sequence[str] = (), **config: Any) -> list[Mined]:
    return list(mine(Angles(), pairs, candidates(pairs, corpus), **config))


def write(
    out: Path, pairs: Sequence[Texts], corpus: Sequence[str] = (), **config: Any
) -> MiningSummary:
    texts = candidates(pairs, corpus)
    return write_negatives(out, Angles(), pairs, texts, **config)


@pytest.mark.parametrize(
    ("config", "expected", "dropped"),
    [
        # 0.95 · 0.866 = 0.823: for q 0, c 10 (0.985) and c 32 (0.848) are too near.
        ({}, ["c 40", "c 50"], 2),
        ({"relative_margin": 1.0}, ["c 32", "c 40"], 1),
        ({"relative_margin": 2.0}, ["c 10", "c 32"], 0),  # the limit is above every cosine
    ],
)
def test_margins_and_ranks(config: dict[str, Any], expected: list[str], dropped: int) -> None:
    first, second = mined(PAIRS, CORPUS, negatives=2, **config)
    assert (list(first.negatives), first.dropped) == (expected, dropped)
    assert config or (second.negatives, second.dropped) == (("c 50", "c 40"), 0)


def test_positives_and_texts_equal_to_them_are_never_mined() -> None:
    pairs = [("q 0", "p 50"), ("Q  0!", "p 60"), ("x 90", "y 80", "z 70")]
    corpus = ["P 50!", "p  60", "q 0", "c 75", "Y 80", "X 90", " "]
    # Each text once, as it was first written.
    assert candidates(pairs, corpus) == ["p 50", "p 60", "y 80", "z 70", "q 0", "c 75", "X 90"]
    # Neither positive of q 0 nor itself, whichever row it stands in.
    assert [
        list(each.negatives) for each in mined(pairs, corpus, negatives=9, relative_margin=5.0)
    ] == [
        ["z 70", "c 75", "y 80", "X 90"],
        ["z 70", "c 75", "y 80", "X 90"],
        ["c 75", "p 60", "p 50", "q 0"],
    ]


@pytest.mark.parametrize(
    ("pairs", "corpus", "expected"),
    [
        # Of b 10, c 40 and a 0: b 10 is paired with both others. z 90's positive scores 0.
        ([("a 0", "b 10"), ("b 10", "c 40"), ("z 90", "a 0")], [], [("c 40",), (), ()]),
        # cos 100° = −0.174: what may stand beside it is at most 1.05 times as low, cos 100.5°.
        ([("q 0", "p 100")], ["c 95", "c 100.2", "c 102"], [("c 102",)]),
    ],
)
def test_positives_of_positives_and_below_zero(
    pairs: list[Texts], corpus: list[str], expected: list[Texts]
) -> None:
    assert [each.negatives for each in mined(pairs, corpus)] == expected


def test_agrees_with_a_scan_by_numpy() -> None:
    class Random(TextEncoder):
        dim, fingerprint = 24, "random"

        def encode(self, texts: Sequence[str], *, role: str | None = None, **_: Any) -> Any:
            seeds = [int.from_bytes(text.encode(), "big") % 2**31 for text in texts]
            rows = [np.random.default_rng(seed).normal(size=24) for seed in seeds]
            return np.stack([r / np.linalg.norm(r) for r in rows]).astype(np.float32)

    pairs = [(f"anchor {i}", f"positive {i // 2}") for i in range(300)]
    encoder, texts = Random(), candidates(pairs)
    scores = encoder.encode([anchor for anchor, _ in pairs]) @ encoder.encode(texts).T
    for i, each in enumerate(mine(encoder, pairs, texts, 5, 0.9)):  # type: ignore[arg-type]
        own = scores[i, i // 2]
        others = [j for j in np.argsort(-scores[i]) if j != i // 2][:100]
        limit = own - 0.1 * abs(own)
        assert list(each.negatives) == [texts[j] for j in others if scores[i, j] <= limit][:5]


def test_queries_and_documents_are_encoded_as_such() -> None:
    encoder = Angles()
    list(mine(encoder, PAIRS, candidates(PAIRS, CORPUS)))
    roles = {"q 0": "query", "q 90": "query"} | dict.fromkeys(["p 30", "p 60", *CORPUS], "document")
    assert encoder.roles == roles


@pytest.mark.parametrize("count", [1, 4])
def test_files(count: int, tmp_path: Path) -> None:
    out = tmp_path / "t.jsonl"
    found = [["c 40", "c 50", "p 60"][:count], ["c 50", "c 40", "c 32", "p 30"][:count]]
    summary = write(out, PAIRS, CORPUS, negatives=count)
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert lines == [
        {"anchor": anchor, "positive": positive, "negatives": negatives}
        for (anchor, positive), negatives in zip(PAIRS, found, strict=True)
    ]
    assert [file.name for file in tmp_path.iterdir()] == ["t.jsonl"]  # nothing is left beside it
    assert asdict(summary) == {
        **{"pairs": 2, "candidates": 6, "dropped_by_margin": 2, "none": 0},
        **({"complete": 2, "fewer": 0} if count == 1 else {"complete": 1, "fewer": 1}),
    }
    # The trainer reads it, and mining again leaves out what was mined.
    assert [row.texts for row in read_file(out)] == [
        (*pair, *negatives) for pair, negatives in zip(PAIRS, found, strict=True)
    ]
    assert read_pairs([out]) == PAIRS


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mine")
    write_sentence_transformer(folder / "model")
    animals = ("dog", "cat", "whale", "bird")
    does = ("sleeps", "runs", "eats", "sings")
    rows = [f"the {who} {what}\ta small {who} {what} fast" for who in animals for what in does]
    (folder / "pairs.tsv").write_text("\n".join(["anchor\tpositive", *rows]) + "\n")
    (folder / "corpus.jsonl").write_text('{"_id": "1", "title": "red", "text": "a red car"}\n')
    return folder


def test_command(folder: Path) -> None:
    out = folder / "triplets.jsonl"
    options = ("--encoder", folder / "model", "--relative-margin", "1", "--negatives", "2")
    more = ("--corpus", folder / "corpus.jsonl", "--json")
    done = run("mine", folder / "pairs.tsv", "--out", out, *options, *more)
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert (summary["out"], summary["pairs"], summary["candidates"]) == (str(out), 16, 17)
    assert summary["complete"] + summary["fewer"] + summary["none"] == 16
    read, pairs = list(read_file(out)), read_pairs([folder / "pairs.tsv"])
    assert [row.matching for row in read] == pairs
    assert sum(bool(row.negatives) for row in read) == 16 - summary["none"] > 0
    texts = {positive for _, positive in pairs} | {"red a red car"}
    for row in read:
        assert row.positive not in row.negatives and set(row.negatives) <= texts
    assert run("mine", "x.tsv", "--out", "y.jsonl", "--negatives", "0").returncode == 2
    again = run("mine", folder / "pairs.tsv", "--out", out, *options)
    assert again.returncode == 2
    assert again.stderr.strip() == f"Error: {out} exists; name a new file, or remove this one"
