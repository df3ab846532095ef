"""evaluate retrieval, bench and tune as their users run them."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from command_line import run, run_json
from tiny_model import WORDS, write_sentence_transformer

from searchengine import SearchEngine
from searchengine.measure.results import Results

# Which config is chosen does not matter here: test_tune.py has the whole grid.
pytestmark = pytest.mark.usefixtures("few_timings")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BEIR folder with its collection, made by a small network that knows nothing.

    480 documents, questions by three words of 120 of them, and the rows of 1,200 vectors.
    """
    folder, rng = tmp_path_factory.mktemp("measure"), np.random.default_rng(1)
    write_sentence_transformer(folder / "model", matryoshka_dims=[32, 16, 8])
    texts = [" ".join(rng.choice(WORDS, 8)) for _ in range(480)]
    lines = [json.dumps({"_id": f"d{i}", "text": text, "n": i}) for i, text in enumerate(texts)]
    (folder / "corpus.jsonl").write_text("\n".join(lines))
    asked = [(f"q{i}", " ".join(text.split()[:3])) for i, text in enumerate(texts[:120])]
    lines = [json.dumps({"_id": key, "text": text}) for key, text in asked]
    (folder / "queries.jsonl").write_text("\n".join(lines))
    (folder / "qrels").mkdir()
    judged = "".join(f"q{i}\td{i}\t1\n" for i in range(120))
    (folder / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\n" + judged)
    (folder / "few.tsv").write_text("q1\td1\t1\n")
    rows = rng.standard_normal((1200, 32)).astype(np.float32)
    np.save(folder / "rows.npy", rows / np.arange(1, 33))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FORCE_COLOR", "1")  # bars, as on a terminal
        done = run("index", folder / "corpus.jsonl", folder / "c", "--encoder", folder / "model")
    assert done.returncode == 0, done.stderr
    assert "Indexing" in done.stderr and "Building" in done.stderr
    return folder


@pytest.fixture
def collection(folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(folder / "c", tmp_path / "c"))


def judged(folder: Path) -> tuple[str | Path, ...]:
    return "--queries", folder / "queries.jsonl", "--qrels", folder / "qrels" / "test.tsv"


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("tune c --target-recall 2", "recall must lie between 0 and 1, at least 0.0001 from both"),
        ("tune c --max-ram inf", "'inf' is not a valid integer"),
        ("tune c --max-ram 0", "0 is not in the range x>=1"),
        ("tune c", "to show recall@10 above 0.95"),
        ("tune c --queries queries.jsonl --query-vectors rows.npy", "--queries does not go with"),
        ("tune c --qrels few.tsv", "questions and judgements are needed: --queries and --qrels"),
        ("tune c --queries queries.jsonl --qrels few.tsv", "at least 20 questions must have"),
        (
            "tune c --queries queries.jsonl --qrels few.tsv --target-recall 0.9",
            "--target-recall does not go with --qrels",
        ),
        ("tune c --apply gone.json#exact", "gone.json: no such file; searchengine bench --out DIR"),
        ("tune c --apply x --target-recall 0.9", "--target-recall does not go with --apply"),
        ("bench", "name either a collection, or a file of rows"),
        ("bench c", "needs a file of questions"),
        ("bench c --queries queries.jsonl --qrels queries.jsonl", "expected query-id, corpus-id"),
        ("bench --vectors queries.jsonl", "cannot be read as a .npy file"),
        ("bench --vectors rows.npy --queries queries.jsonl", "--queries does not go with"),
        ("bench c --queries queries.jsonl --query-vectors rows.npy", "--query-vectors does not go"),
        ("bench c --queries queries.jsonl --qrels few.tsv -k 5", "--qrels needs -k 10 or more"),
        ("evaluate retrieval c --queries q.jsonl", "are needed: --queries and --qrels"),
        ("evaluate retrieval c --mode vector,words", "'words' is not one of 'auto', 'vector', "),
        (
            "evaluate retrieval c --queries queries.jsonl --qrels few.tsv --mode text --baseline 1",
            "no row is called '1'",
        ),
        ("learn c", "questions and judgements are needed: --queries and --qrels"),
        ("learn c --queries queries.jsonl --qrels few.tsv", "1 judged questions are too few"),
        ("index corpus.jsonl new --set links=8", "'links' is no field of an index config"),
        ("index corpus.jsonl c --set stages=[[16,40]]", "has stages [], got [[16, 40]]"),
        ("index corpus.jsonl c --set structure=hnsw", "has structure flat, got hnsw; leave"),
    ],
)
def test_what_is_refused(folder: Path, command: str, message: str) -> None:
    done = run(*command.split(), cwd=folder)
    assert done.returncode == 2 and done.stdout == "" and "Traceback" not in done.stderr
    assert message in done.stderr.strip().splitlines()[-1]
    assert run_json("info", folder / "c")["tuning"] is None
    assert not (folder / "new").exists()


# --------------------------------------------------------------------------------------------- tune


def test_tune_and_info(collection: Path) -> None:
    done = run("tune", collection, "--target-recall", "0.8", "-k", "5", "--max-ram", "1024")
    assert done.returncode == 0, done.stderr
    assert "exact search of 100 queries over 480 rows" in done.stderr
    sentence = done.stdout.splitlines()[-1]
    shown = "recall@5 above 0.8 with 95 % confidence on 50 held-out documents taken as queries"
    assert sentence.startswith(f"{collection}: {shown}")
    stats = run_json("info", collection)
    assert stats["tuning"]["goal"]["recall"] == 0.8 and stats["index_config"]["prefix"] == 32
    assert len(stats["tuning"]["curve"]) == stats["tuning"]["tried"] > 1


def test_tune_with_questions_as_json(folder: Path, collection: Path) -> None:
    found = run_json(
        *("tune", collection, "--target-recall", "0.8"),
        *("--queries", folder / "queries.jsonl", "--encoder", folder / "model"),
    )
    assert found.keys() == {"collection", "operating_point", "fusion"} and found["fusion"] is None
    found = found["operating_point"]
    assert (found["source"], found["queries"], found["held_out"]) == ("given", 120, 60)
    assert found["config"] == run_json("info", collection)["index_config"]


def set_mode(collection: Path, mode: str) -> None:
    with SearchEngine.open(collection) as engine:
        engine.set_default(mode)


def test_tune_by_judgements(folder: Path, collection: Path) -> None:
    set_mode(collection, "vector")
    report = run_json("tune", collection, *judged(folder))
    assert report["operating_point"] is None
    chosen = report["fusion"]
    assert chosen["stored"] and chosen["held_out"] == 60
    assert (chosen["before_mode"], chosen["before_weight"]) == ("vector", 1)
    assert chosen["ndcg_10"]["chosen"] > chosen["ndcg_10"]["default"]
    assert chosen["comparison"]["difference"] > 0
    assert run_json("info", collection)["mode"] == chosen["mode"] != "vector"
    again = run("tune", collection, *judged(folder)).stdout
    assert "chosen" in again and "stays as it is" in again.splitlines()[-1]
    set_mode(collection, "vector")
    last = run("tune", collection, *judged(folder)).stdout.splitlines()[-1]
    assert "from now on; nDCG@10 of 60 held-out questions: difference +0." in last


# -------------------------------------------------------------------------------------------- bench


@pytest.fixture(scope="module")
def reported(folder: Path) -> Path:
    """A report of the collection, which has so few documents that it searches exactly."""
    done = run(
        *("bench", folder / "c", *judged(folder), "--target-recall", "0.8"),
        *("--out", folder / "report"),
    )
    assert done.returncode == 0, done.stderr
    assert "report.html" in done.stderr and "exact" in done.stdout
    return folder / "report"


def test_a_report_of_a_collection(reported: Path) -> None:
    results = json.loads((reported / "results.json").read_text())
    assert results["complete"] and results["subject"]["name"] == "c"
    assert results["subject"]["judged"] == 120 and results["encoding_ms"] > 0
    rows = {row["name"]: row for row in results["rows"]}
    assert rows["exact"]["recall"] == 1 and results["recommended"] in rows
    page = (reported / "report.html").read_text()
    assert "image/svg+xml" in page and results["recommended"] in page and "nDCG@10, hybrid" in page
    assert results["subject"]["mode"] == "hybrid"


def test_a_page_of_evil_names_loads_and_runs_nothing(folder: Path, tmp_path: Path) -> None:
    evil = shutil.copytree(folder / "c", tmp_path / "<script src=x>&")
    done = run("bench", evil, *judged(folder), "--target-recall", "0.8", "--out", tmp_path / "r")
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "r" / "report.html").read_text()
    assert "&lt;script src=x&gt;&amp;" in page and "<script" not in page
    assert not re.search(r"""<link|@import|\son\w+=|(src|href)="(?!data:image/svg)""", page)


def test_a_point_of_the_report_is_applied(folder: Path, collection: Path, reported: Path) -> None:
    recommended = Results.read(reported).recommended
    for name in ("recommended", "exact"):
        done = run("tune", collection, "--apply", f"{reported / 'results.json'}#{name}")
        assert done.returncode == 0, done.stderr
        name = str(recommended) if name == "recommended" else name
        (row,) = [row for row in Results.read(reported).rows if row.name == name]
        assert f"searches by {name}: flat" in " ".join(done.stdout.split())
        assert run_json("info", collection)["index_config"] == row.config.as_dict()
    asked = ("--queries", folder / "queries.jsonl", "--target-recall", "0.8")
    assert run_json("bench", collection, *asked)["now"] == "exact"
    assert "shortlist all rows" in run("info", collection).stdout
    name = str(recommended).replace("→", "->")  # as a keyboard has it
    found = run_json("tune", collection, "--apply", f"{reported}#{name}")["operating_point"]
    assert found["name"] == recommended
    other = run("tune", collection, "--apply", f"{reported}#nobody")
    assert "the bench has no point 'nobody'; its points are recommended, exact" in other.stderr
    results = json.loads((reported / "results.json").read_text())
    results["subject"]["dim"] = 16
    (collection / "narrow.json").write_text(json.dumps(results))
    other = run("tune", collection, "--apply", collection / "narrow.json")
    assert "was measured on vectors of 16 dimensions, and" in other.stderr
    assert f"{collection} has 32; bench this collection" in other.stderr


def test_a_bench_of_vectors_as_json(folder: Path) -> None:
    vectors = ("bench", "--vectors", folder / "rows.npy", "-k", "5", "--target-recall", "0.8")
    results = run_json(*vectors)
    names = [row["name"] for row in results["rows"]]
    assert names[:2] == ["exact", "flat fp16 32 → 100"] and results["now"] == names[1]
    assert results["recommended"] in names and len(results["curve"]) >= len(names) - 2
    assert results["subject"]["rows"] == 1080 and results["subject"]["queries"] == 120
    assert results["settings"]["recall"] == 0.8 and results["machine"]["cores"] >= 1


# ------------------------------------------------------------------------------ evaluate retrieval


def test_retrieval_and_its_runs(folder: Path, tmp_path: Path) -> None:
    rows = run_json(
        *("evaluate", "retrieval", folder / "c", *judged(folder), "--run-out", tmp_path / "runs"),
        *("--mode", "vector, text, hybrid", "--prefixes", "32,16"),
    )
    names = ["exact", "16", "configured", "text", "hybrid"]
    assert [row["setting"] for row in rows] == names
    assert [(row["dim"], row["shortlist"]) for row in rows[:2]] == [(32, None), (16, 100)]
    assert [row["baseline"] for row in rows] == [None] + ["exact"] * 4
    assert [row["default"] for row in rows] == [False] * 4 + [True]
    assert sorted(path.stem for path in (tmp_path / "runs").iterdir()) == sorted(names)


# --------------------------------------------------------------------------- the index config


@pytest.mark.parametrize(
    ("options", "recipe"),
    [
        ("--set structure=hnsw --set effort=8", {"structure": "hnsw", "effort": 8}),
        ("--set code=int8 --set rotation=identity", {"code": "int8", "rotation": "identity"}),
        ("--set prefix=8 --set stages=[[16,40],[24,20]]", {"stages": [[16, 40], [24, 20]]}),
    ],
)
def test_recipes_of_index(folder: Path, tmp_path: Path, options: str, recipe: object) -> None:
    """Every option reaches the collection, which is added to by the same or by no option."""
    index = ("index", folder / "corpus.jsonl", tmp_path / "c", *options.split())
    assert run_json(*index, "--encoder", folder / "model")["added"] == 480
    assert recipe.items() <= run_json("info", tmp_path / "c")["index_config"].items()  # type: ignore[attr-defined]
    asked = ("the dog sleeps near a house", "-k", "3")
    near, exact = (
        [hit["key"] for hit in run_json("search", *more, *asked)["hits"]]
        for more in ((tmp_path / "c", "--mode", "vector"), (folder / "c", "--exact"))
    )
    assert near == exact
    assert run_json(*index)["unchanged"] == 480
