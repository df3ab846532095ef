"""Hard negatives by an encoder a human can compute: every text says its angle."""

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from click.testing import CliRunner, Result
from command_line import run
from hypothesis import given
from hypothesis import strategies as st
from tiny_model import write_sentence_transformer

from searchengine.cli import cli
from searchengine.errors import QueryError, SearchEngineError
from searchengine.measure.mining import Mined, Miner, Pair
from searchengine.trainer.training.examples import read_examples
from searchengine.trainer.training.hard_negatives import MiningConfig, choose
from searchengine.trainer.training.rows import Kind


class Angles:
    """ "at 30" lies at 30 degrees of the plane: cosines of 10, 20, 30, 40 and 50 degrees are .985,
    .940, .866, .766 and .643."""

    dim = 2
    fingerprint = "angles"

    def __init__(self) -> None:
        self.roles: dict[str, str | None] = {}

    def encode(self, texts: Sequence[str], *, role: str | None = None) -> npt.NDArray[np.float32]:
        self.roles.update(dict.fromkeys(texts, role))
        angles = np.radians([float(text.strip("!").split()[-1]) for text in texts])
        return np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)


PAIRS = [Pair("q 0", "p 30"), Pair("q 90", "p 60")]
# From q 0: c 10, (p 30), c 32, c 40, c 50, p 60. From q 90: (p 60), c 50, c 40, c 32, p 30, c 10.
CORPUS = ["c 10", "c 32", "c 40", "c 50"]


def mined(pairs: Sequence[Pair], corpus: Sequence[str] = (), **config: object) -> list[Mined]:
    return list(Miner(Angles(), pairs, corpus, MiningConfig(**config)).mine())  # type: ignore[arg-type]


def negatives(*args: object, **config: object) -> list[list[str]]:
    return [list(each.negatives) for each in mined(*args, **config)]  # type: ignore[arg-type]


@pytest.mark.parametrize("exact", [False, True])
def test_the_nearest_within_the_margin(exact: bool) -> None:
    # 0.95 · 0.866 = 0.823: for q 0, c 10 (0.985) and c 32 (0.848) are too near.
    first, second = mined(PAIRS, CORPUS, negatives=2, exact=exact)
    assert first.negatives == ("c 40", "c 50") and first.dropped == 2
    assert second.negatives == ("c 50", "c 40") and second.dropped == 0
    assert first.positive_score == pytest.approx(np.cos(np.radians(30)), abs=1e-3)
    assert first.scores == pytest.approx(np.cos(np.radians([40, 50])), abs=1e-3)


@pytest.mark.parametrize(
    ("config", "expected", "dropped"),
    [
        ({"relative_margin": 1.0}, ["c 32", "c 40"], 1),
        ({"relative_margin": 2.0}, ["c 10", "c 32"], 0),  # the limit is above every cosine
        ({"margin": 0.15}, ["c 50", "p 60"], 3),  # at most 0.716
        ({"margin": 0.01}, ["c 40", "c 50"], 2),  # the stricter of the two holds
        ({"margin": 0.01, "relative_margin": 1.0}, ["c 32", "c 40"], 1),
        ({"skip": 1}, ["c 40", "c 50"], 1),  # c 10 is not looked at
        ({"skip": 3}, ["c 50", "p 60"], 0),
        ({"depth": 3}, ["c 40"], 2),
        ({"depth": 2}, [], 2),
    ],
)
def test_margins_and_ranks(config: dict[str, float], expected: list[str], dropped: int) -> None:
    found = mined(PAIRS, CORPUS, negatives=2, **config)[0]
    assert (list(found.negatives), found.dropped) == (expected, dropped)


def test_positives_and_texts_equal_to_them_are_never_mined() -> None:
    pairs = [Pair("q 0", "p 50"), Pair("Q  0!", "p 60"), Pair("x 90", "y 80", ("z 70",))]
    corpus = ["P 50!", "p  60", "q 0", "c 75", "Y 80", "X 90"]
    miner = Miner(Angles(), pairs, corpus, MiningConfig(negatives=9, relative_margin=5.0))
    # Each text once, as it was first written.
    assert miner.candidates == ["p 50", "p 60", "y 80", "z 70", "q 0", "c 75", "X 90"]
    found = [list(each.negatives) for each in miner.mine()]
    # Neither positive of q 0 nor itself, whichever row it stands in.
    assert found == [
        ["z 70", "c 75", "y 80", "X 90"],
        ["z 70", "c 75", "y 80", "X 90"],
        ["c 75", "p 60", "p 50", "q 0"],
    ]


def test_an_anchor_is_a_positive_of_its_positive() -> None:
    pairs = [Pair("a 0", "b 10"), Pair("b 10", "c 40"), Pair("z 90", "a 0")]
    # Of b 10, c 40 and a 0: b 10 is paired with both others. z 90's positive scores 0.
    assert negatives(pairs) == [["c 40"], [], []]


def test_a_negative_positive_score_keeps_its_margin() -> None:
    # cos 100° = −0.174: what may stand beside it is at most 1.05 times as low, −0.182, cos 100.5°.
    assert negatives([Pair("q 0", "p 100")], ["c 95", "c 100.2", "c 102"]) == [["c 102"]]
    config = MiningConfig()
    assert config.limit(0.8) == pytest.approx(0.76)
    assert config.limit(-0.2) == pytest.approx(-0.21)
    assert MiningConfig(margin=0.1).limit(0.8) == pytest.approx(0.7)
    assert MiningConfig(margin=0.1).limit(4.0) == pytest.approx(3.8)


def test_agrees_with_a_scan_by_numpy() -> None:
    class Random:
        dim, fingerprint = 24, "random"

        def encode(self, texts: Sequence[str], *, role: str | None = None) -> object:
            rows = [np.random.default_rng(abs(hash_of(t))).normal(size=24) for t in texts]
            return np.stack([r / np.linalg.norm(r) for r in rows]).astype(np.float32)

    def hash_of(text: str) -> int:
        return int.from_bytes(text.encode(), "big") % 2**31

    pairs = [Pair(f"anchor {i}", f"positive {i // 2}") for i in range(300)]
    config = MiningConfig(negatives=5, relative_margin=0.9, skip=2, depth=30)
    encoder = Random()
    texts = [f"positive {i}" for i in range(150)]
    scores = encoder.encode([p.anchor for p in pairs]) @ encoder.encode(texts).T  # type: ignore[attr-defined]
    for exact in (True, False):
        miner = Miner(encoder, pairs, config=replace(config, exact=exact))  # type: ignore[arg-type]
        for i, each in enumerate(miner.mine()):
            own = scores[i, i // 2]
            others = [j for j in np.argsort(-scores[i]) if j != i // 2][2:30]
            limit = own - 0.1 * abs(own)
            expected = [texts[j] for j in others if scores[i, j] <= limit][:5]
            assert list(each.negatives) == expected


def test_queries_and_documents_are_encoded_as_such() -> None:
    encoder = Angles()
    list(Miner(encoder, PAIRS, CORPUS).mine())
    assert {t for t, role in encoder.roles.items() if role == "query"} == {"q 0", "q 90"}
    assert {t for t, role in encoder.roles.items() if role == "document"} == {
        *("p 30", "p 60"),
        *CORPUS,
    }


@given(
    scores=st.lists(st.floats(-1, 1), max_size=30),
    positive=st.floats(-1, 1),
    count=st.integers(1, 5),
    skip=st.integers(0, 5),
    ranks=st.integers(5, 20),
    sample=st.booleans(),
    seed=st.integers(0, 3),
)
def test_what_is_chosen_fits(
    scores: list[float],
    positive: float,
    count: int,
    skip: int,
    ranks: int,
    sample: bool,
    seed: int,
) -> None:
    ranked = list(enumerate(sorted(scores, reverse=True)))
    config = MiningConfig(negatives=count, skip=skip, depth=skip + ranks, sample=sample, seed=seed)
    chosen, dropped = choose(ranked, positive, config, 4)
    rows = [row for row, _ in chosen]
    assert rows == sorted(set(rows)) and all(skip <= row < skip + ranks for row in rows)
    fitting = [row for row, s in ranked[skip : skip + ranks] if s <= config.limit(positive)]
    assert len(rows) == min(count, len(fitting)) and set(rows) <= set(fitting)
    assert dropped == len(ranked[skip : skip + ranks]) - len(fitting)
    assert sample or rows == fitting[:count]
    assert choose(ranked, positive, config, 4) == (chosen, dropped)


def test_a_draw_follows_from_its_seed_and_reaches_beyond_the_first() -> None:
    ranked = [(row, 0.5 - row / 100) for row in range(30)]
    config = MiningConfig(negatives=3, sample=True)
    draws = [choose(ranked, 0.9, config, number)[0] for number in range(50)]
    assert len({tuple(draw) for draw in draws}) > 40
    assert {row for draw in draws for row, _ in draw} == set(range(30))
    other = [choose(ranked, 0.9, replace(config, seed=1), number)[0] for number in range(50)]
    assert draws != other


@pytest.mark.parametrize(
    ("name", "count", "expected"),
    [
        ("t.tsv", 1, "anchor\tpositive\tnegative\nq 0\tp 30\tc 40\nq 90\tp 60\tc 50\n"),
        (
            "t.tsv",
            4,
            "anchor\tpositive\tnegative_1\tnegative_2\tnegative_3\tnegative_4\n"
            "q 0\tp 30\tc 40\tc 50\tp 60\t\nq 90\tp 60\tc 50\tc 40\tc 32\tp 30\n",
        ),
        (
            "t.jsonl",
            1,
            '{"anchor": "q 0", "positive": "p 30", "negatives": ["c 40"]}\n'
            '{"anchor": "q 90", "positive": "p 60", "negatives": ["c 50"]}\n',
        ),
    ],
)
def test_files(name: str, count: int, expected: str, tmp_path: Path) -> None:
    out = tmp_path / name
    summary = Miner(Angles(), PAIRS, CORPUS, MiningConfig(negatives=count)).write(out)
    assert out.read_bytes().decode() == expected
    assert [file.name for file in tmp_path.iterdir()] == [name]  # nothing is left beside it
    assert asdict(summary) == {
        **{"pairs": 2, "candidates": 6, "dropped_by_margin": 2, "none": 0},
        **({"complete": 2, "fewer": 0} if count == 1 else {"complete": 1, "fewer": 1}),
    }
    # The trainer reads it, rows with fewer negatives too.
    read = read_examples([out])
    assert [kind for kind, _ in read] == [Kind.TRIPLET] * 2
    assert read[0][1] == ("q 0", "p 30", "c 40", "c 50", "p 60")[: 2 + count]


@pytest.mark.parametrize("name", ["t.tsv", "t.jsonl"])
def test_a_pair_without_a_negative_stays_a_pair(name: str, tmp_path: Path) -> None:
    pairs = [Pair("z 90", "a 0"), Pair("a 0", "b 10"), Pair("y 10", "c 40")]
    summary = Miner(Angles(), pairs).write(tmp_path / name)
    assert (summary.complete, summary.fewer, summary.none) == (1, 0, 2)
    assert list(read_examples([tmp_path / name])) == [
        (Kind.PAIR, ("z 90", "a 0")),
        (Kind.TRIPLET, ("a 0", "b 10", "c 40")),
        (Kind.PAIR, ("y 10", "c 40")),
    ]


def test_what_tsv_cannot_hold_goes_to_jsonl(tmp_path: Path) -> None:
    pairs = [Pair("q\n0", "p 30"), Pair("\ud800é 90", "p 60")]
    for corpus, some in ((CORPUS, pairs), (CORPUS, pairs[1:]), ([*CORPUS, "c\t45"], PAIRS)):
        miner = Miner(Angles(), some, corpus)
        with pytest.raises(SearchEngineError, match=r"TSV cannot contain .* name a \.jsonl file"):
            miner.write(tmp_path / "t.tsv")
        assert list(tmp_path.iterdir()) == []
    Miner(Angles(), pairs, CORPUS).write(tmp_path / "t.jsonl")
    assert [texts for _, texts in read_examples([tmp_path / "t.jsonl"])] == [
        ("q\n0", "p 30", "c 40"),
        ("\ud800é 90", "p 60", "c 50"),
    ]


def test_nothing_is_left_of_a_failure(tmp_path: Path) -> None:
    class Breaks(Angles):
        def encode(
            self, texts: Sequence[str], *, role: str | None = None
        ) -> npt.NDArray[np.float32]:
            if role == "query":
                raise RuntimeError("broken")
            return super().encode(texts, role=role)

    with pytest.raises(RuntimeError, match="broken"):
        Miner(Breaks(), PAIRS, CORPUS).write(tmp_path / "t.tsv")
    with pytest.raises(SearchEngineError, match=r"none of 1 pairs has a negative .* 1 candidates"):
        Miner(Angles(), PAIRS[:1]).write(tmp_path / "t.tsv")
    assert list(tmp_path.iterdir()) == []


def test_an_older_file_stays(tmp_path: Path) -> None:
    out = tmp_path / "t.tsv"

    class Slow(Angles):
        def encode(
            self, texts: Sequence[str], *, role: str | None = None
        ) -> npt.NDArray[np.float32]:
            out.write_text("mine")  # somebody else is quicker
            return super().encode(texts, role=role)

    for encoder in (Slow(), Angles()):
        with pytest.raises(SearchEngineError, match=r"t\.tsv exists; name a new file"):
            Miner(encoder, PAIRS, CORPUS).write(out)
        assert out.read_text() == "mine"
        assert list(tmp_path.iterdir()) == [out]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"negatives": 0}, "negatives must be at least 1 .* got 0 and 0"),
        ({"skip": -1}, "skip at least 0, got 1 and -1"),
        (
            {"negatives": 5, "skip": 3, "depth": 7},
            "depth must be at least 8 for 5 negatives after 3 skipped ranks, got 7",
        ),
        ({"relative_margin": 0.0}, "relative margin must be above 0, got 0.0"),
        ({"relative_margin": float("nan")}, "relative margin must be above 0, got nan"),
    ],
)
def test_settings_are_checked(config: dict[str, float], message: str) -> None:
    with pytest.raises(QueryError, match=message):
        MiningConfig(**config)  # type: ignore[arg-type]


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
    out = folder / "triplets.tsv"
    options = ("--encoder", folder / "model", "--relative-margin", "1", "--negatives", "2")
    more = ("--corpus", folder / "corpus.jsonl", "--skip", "1", "--depth", "16", "--json")
    done = run("mine", folder / "pairs.tsv", "--out", out, *options, *more)
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert (summary["out"], summary["pairs"], summary["candidates"]) == (str(out), 16, 17)
    assert summary["complete"] + summary["fewer"] + summary["none"] == 16
    assert out.read_text().splitlines()[0] == "anchor\tpositive\tnegative_1\tnegative_2"
    read = read_examples([out])
    assert [texts[:2] for _, texts in read] == [
        tuple(line.split("\t")) for line in (folder / "pairs.tsv").read_text().splitlines()[1:]
    ]
    assert sum(kind is Kind.TRIPLET for kind, _ in read) == 16 - summary["none"] > 0
    texts = {line.split("\t")[1] for line in (folder / "pairs.tsv").read_text().splitlines()[1:]}
    for _, (_, positive, *found) in read:
        assert positive not in found and set(found) <= texts | {"red a red car"}
    again = run("mine", folder / "pairs.tsv", "--out", out, *options)
    assert again.returncode == 2
    assert again.stderr.strip() == f"Error: {out} exists; name a new file, or remove this one"


def test_command_for_people_and_its_errors(folder: Path) -> None:
    def run_here(*arguments: str | Path) -> Result:
        every = ("mine", folder / "pairs.tsv", *arguments)
        return CliRunner().invoke(cli, [*map(str, every)])

    options = ("--encoder", folder / "model", "--relative-margin", "2")
    done = run_here("--out", folder / "t.jsonl", *options)
    assert done.exit_code == 0, done.output
    assert done.stdout == ""
    assert "16 pairs and 16 candidates in" in done.stderr
    assert "16 pairs with 1 negative, 0 with fewer, 0 with none; 0 cand" in done.stderr
    assert len(read_examples([folder / "t.jsonl"])) == 16
    for arguments, message in (
        (("--out", folder / "t.csv"), "the name must end in .tsv or .jsonl"),
        (("--out", folder / "no" / "t.tsv"), "does not exist; create it first"),
        (("--out", folder / "u.tsv", "--depth", "0"), "depth must be at least 1 "),
    ):
        done = run_here(*arguments)
        assert done.exit_code == 2
        assert message in done.stderr and len(done.stderr.strip().splitlines()) == 1
    (folder / "notes.jsonl").write_text('{"_id": "1", "body": "a red car"}\n')
    corpus = ("--corpus", folder / "notes.jsonl", "--text-field", "body")
    done = run_here("--out", folder / "v.jsonl", *options, *corpus)
    assert done.exit_code == 0 and "16 pairs and 17 candidates in" in done.stderr, done.output
