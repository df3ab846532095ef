"""tune, info, exact search and the recipes of index, from the command line."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import run, run_json
from tiny_model import WORDS, write_sentence_transformer

from searchengine.cli.measure import _bytes

# Which config is chosen does not matter here: test_tune.py has the whole grid.
pytestmark = pytest.mark.usefixtures("small_grid")


def sentences(count: int, seed: int) -> list[str]:
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(WORDS, 8)) for _ in range(count)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small encoder, 480 documents, 120 questions, and the collection of the documents."""
    folder = tmp_path_factory.mktemp("tune")
    write_sentence_transformer(folder / "model", matryoshka_dims=[32, 16, 8])
    lines = [
        json.dumps({"_id": str(i), "text": text, "n": i})
        for i, text in enumerate(sentences(480, 1))
    ]
    (folder / "corpus.jsonl").write_text("\n".join(lines))
    (folder / "questions.txt").write_text("\n".join(sentences(120, 2)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FORCE_COLOR", "1")  # bars, as on a terminal
        done = run("index", folder / "corpus.jsonl", folder / "c", "--encoder", folder / "model")
    assert done.returncode == 0, done.stderr
    assert "Indexing" in done.stderr and "Building" in done.stderr
    return folder


def test_tune_and_info(folder: Path) -> None:
    untuned = run("info", folder / "c")
    assert "tuning       none; searchengine tune" in untuned.stdout
    goal = ("--target-recall", "0.8", "-k", "5")
    done = run("tune", folder / "c", *goal, "--max-ram", "1GiB")
    assert done.returncode == 0, done.stderr
    assert "exact search of 100 queries over 480 rows" in done.stderr
    assert "effort" in done.stdout and "recall@5" in done.stdout
    sentence = done.stdout.splitlines()[-1]
    assert sentence.startswith(
        f"{folder / 'c'}: recall@5 above 0.8 with 95 % confidence on 50 held-out documents"
    )
    info = run("info", folder / "c").stdout
    assert "on 50 held-out documents taken as queries" in info
    assert "tuned on 480 rows\n" in info
    assert f"index config {sentence.split(' rows: ')[1].split(';')[0]}\n" in info
    stats = run_json("info", folder / "c")
    assert stats["tuning"]["goal"]["recall"] == 0.8
    assert len(stats["tuning"]["curve"]) == stats["tuning"]["tried"] > 1
    assert stats["index_config"]["prefix"] == 32


def test_tune_with_questions_as_json(folder: Path) -> None:
    found = run_json(
        *("tune", folder / "c", "--target-recall", "0.8"),
        *("--queries", folder / "questions.txt", "--encoder", folder / "model"),
    )
    assert found.keys() == {"collection", "operating_point", "fusion"} and found["fusion"] is None
    found = found["operating_point"]
    assert (found["source"], found["queries"], found["held_out"]) == ("given", 120, 60)
    assert found["config"] == run_json("info", folder / "c")["index_config"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--target-recall", "2"), "recall must lie between 0 and 1, at least 0.0001 from both"),
        (("--max-ram", "lots"), "expected bytes, such as 500MB or 2GiB, got 'lots'"),
        (
            ("--target-recall", "0.8", "--max-ram", "1kB"),
            "max_ram must be larger than 1000 bytes: no config for 480 rows fits",
        ),
        (("--queries", "gone.txt"), "gone.txt"),
        ((), "to show recall@10 above 0.95"),
        (("--target-recall", "0.9999"), "needs 323688 passages"),
    ],
)
def test_tune_refuses(folder: Path, arguments: tuple[str, ...], message: str) -> None:
    before = run_json("info", folder / "c")
    done = run("tune", folder / "c", *arguments)
    assert done.returncode == 2 and done.stdout == ""
    assert message in done.stderr and "Traceback" not in done.stderr
    assert run_json("info", folder / "c") == before


def test_exact(folder: Path) -> None:
    question = sentences(1, 3)[0]
    done = run("search", folder / "c", question, "-k", "3", "--exact")
    assert done.returncode == 0, done.stderr
    hits = run_json("search", folder / "c", question, "-k", "3", "--exact", "--where", "n < 50")[
        "hits"
    ]
    assert all(hit["metadata"]["n"] < 50 for hit in hits) and len(hits) == 3
    both = run("search", folder / "c", question, "--exact", "--shortlist", "5")
    assert both.returncode == 2
    assert "takes no shortlist; leave one of them out" in both.stderr


@pytest.mark.parametrize(
    ("options", "recipe"),
    [
        ("--set structure=hnsw --set effort=8", {"structure": "hnsw", "effort": 8}),
        ("--set code=int8 --set rotation=identity", {"code": "int8", "rotation": "identity"}),
        ("--prefix 8 --set stages=[[16,40],[24,20]]", {"stages": [[16, 40], [24, 20]]}),
    ],
)
def test_recipes_of_index(
    folder: Path, tmp_path: Path, options: str, recipe: dict[str, Any]
) -> None:
    """Every option reaches the collection, which is added to by the same or by no option."""
    corpus, encoder = folder / "corpus.jsonl", ("--encoder", folder / "model")
    report = run_json("index", corpus, tmp_path / "c", *encoder, *options.split())
    assert report["added"] == 480
    info = run_json("info", tmp_path / "c")
    assert {name: info["index_config"][name] for name in recipe} == recipe
    question = sentences(1, 3)[0]
    near = run_json("search", tmp_path / "c", question, "-k", "3", "--mode", "vector")["hits"]
    assert [hit["key"] for hit in near] == [
        hit["key"]
        for hit in run_json("search", folder / "c", question, "-k", "3", "--exact")["hits"]
    ]
    (tmp_path / "more.jsonl").write_text('{"_id": "new", "text": "a dog runs"}\n')
    more = run_json("index", tmp_path / "more.jsonl", tmp_path / "c", *options.split())
    assert more["documents"] == 481
    assert run("verify", tmp_path / "c").returncode == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--set code=pq", "code must be one of fp16, int8, got 'pq'"),
        ("--set stages=[[16,50]]", "stages must be wider than the prefix of 32"),
        ("--set stages=16:50", "stages must be (width, rows to keep) pairs, got '16:50'"),
        ("--set stages=[[64,50]]", "stages 64 is wider than the vectors (32); set it to 32"),
        ("--set structure=tree", "structure must be one of flat, ivf, hnsw, got 'tree'"),
        ("--set links=8", "'links' is no field of an index config; they are prefix, structure"),
    ],
)
def test_recipes_refused(folder: Path, tmp_path: Path, options: str, message: str) -> None:
    corpus, encoder = folder / "corpus.jsonl", ("--encoder", folder / "model")
    done = run("index", corpus, tmp_path / "c", *encoder, *options.split())
    assert done.returncode == 2 and message in done.stderr, done.stderr
    assert not (tmp_path / "c").exists()


def test_an_existing_collection_keeps_its_recipe(folder: Path) -> None:
    for options, message in (
        ("--set stages=[[16,40]]", "has stages [], got [[16, 40]]"),
        ("--set structure=hnsw", "has structure flat, got hnsw"),
    ):
        done = run("index", folder / "corpus.jsonl", folder / "c", *options.split())
        assert done.returncode == 2
        assert f"{message}; leave the option out, or index into a new folder" in done.stderr


def test_bytes() -> None:
    sizes = {"500000": 500_000, "500MB": 500_000_000, "2GiB": 2 << 30, "1.5 kb": 1500}
    assert {text: _bytes(text) for text in sizes} == sizes
