"""searchengine bench as its users run it."""

import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from command_line import run

from searchengine.measure.results import Results


def sentence(done: subprocess.CompletedProcess[str]) -> str:
    """The last line on stderr of a command that was refused."""
    assert done.returncode == 2, done
    assert "Traceback" not in done.stderr
    return done.stderr.strip().splitlines()[-1]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A collection of thirty documents with questions, and the rows of 1,200 vectors."""
    folder = tmp_path_factory.mktemp("bench-cli")
    subjects = ["whales", "bread", "volcanoes", "tables", "rivers", "clocks"]
    documents = [
        {"_id": f"{name}{i}", "text": f"{name} number {i} in the long list of {name}"}
        for name in subjects
        for i in range(5)
    ]
    lines = "\n".join(map(json.dumps, documents))
    (folder / "corpus.jsonl").write_text(lines)
    questions = [{"_id": name, "text": f"what are {name}"} for name in subjects]
    (folder / "queries.jsonl").write_text("\n".join(map(json.dumps, questions)))
    judged = [f"{name}\t{name}{i}\t1" for name in subjects for i in range(5)]
    (folder / "qrels.tsv").write_text("query-id\tcorpus-id\tscore\n" + "\n".join(judged))
    done = run("index", folder / "corpus.jsonl", folder / "c.index")
    assert done.returncode == 0, done.stderr
    rows = np.random.default_rng(0).standard_normal((1200, 32)).astype(np.float32)
    np.save(folder / "rows.npy", rows / np.arange(1, 33))
    return folder


@pytest.fixture(scope="module")
def reported(folder: Path) -> Path:
    """A report of the collection, which has so few documents that it searches exactly."""
    done = run(
        *("bench", folder / "c.index", "--queries", folder / "queries.jsonl"),
        *("--qrels", folder / "qrels.tsv", "--out", folder / "report"),
    )
    assert done.returncode == 0, done.stderr
    assert "flat fp16 64 → 20" in done.stdout and "No point is recommended" in done.stdout
    assert "report.html" in done.stderr
    return folder / "report"


def test_a_report_of_a_collection(reported: Path) -> None:
    results = json.loads((reported / "results.json").read_text())
    assert results["complete"] and results["subject"]["name"] == "c.index"
    assert results["subject"]["judged"] == 6 and results["encoding_ms"] > 0
    rows = {row["name"]: row for row in results["rows"]}
    assert {"exact", "flat fp16 64 → 20", "flat fp16 128 → 20"} <= rows.keys()
    assert rows["exact"]["ndcg"] > 0.9 and rows["exact"]["recall"] == 1
    page = (reported / "report.html").read_text()
    assert "image/svg+xml" in page and "flat fp16 64 → 20" in page and "c.index" in page
    assert results["subject"]["mode"] == "hybrid"
    assert "nDCG@10, hybrid" in page
    assert results["now"] == "exact" and results["recommended"] is None


def test_a_point_of_the_report_is_applied(folder: Path, reported: Path, tmp_path: Path) -> None:
    collection = tmp_path / "c.index"
    shutil.copytree(folder / "c.index", collection)
    for name in ("flat fp16 64 -> 20", "exact"):
        done = run("tune", collection, "--apply", f"{reported / 'results.json'}#{name}")
        assert done.returncode == 0, done.stderr
        name = name.replace("->", "→")
        (row,) = [row for row in Results.read(reported).rows if row.name == name]
        assert f"searches by {name}: flat fp16 over" in " ".join(done.stdout.split())
        stats = json.loads(run("info", collection, "--json").stdout)
        assert stats["index_config"] == row.config.as_dict() and stats["exact"] is (name == "exact")
        done = run(
            *("bench", collection, "--queries", folder / "queries.jsonl"),
            "--json",
        )
        assert json.loads(done.stdout)["now"] == name
    assert "shortlist all rows" in run("info", collection).stdout
    applied = ("tune", collection, "--apply", f"{reported}#exact", "--json")
    found = json.loads(run(*applied).stdout)["operating_point"]
    assert (found["name"], found["config"]) == ("exact", stats["index_config"])
    done = run("tune", collection, "--apply", f"{reported}#recommended")
    assert "recommends nothing" in sentence(done) and "got 6" in sentence(done)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("gone.json#recommended",), "gone.json: no such file; searchengine bench --out DIR"),
        (("REPORT#nobody",), "the bench has no point 'nobody'; its points are recommended, exact"),
        (("REPORT", "--target-recall", "0.9"), "--target-recall does not go with --apply"),
        (("REPORT", "--queries", "q.txt"), "--queries does not go with --apply; leave one out"),
    ],
)
def test_a_point_that_cannot_be_applied(
    folder: Path, reported: Path, arguments: tuple[str, ...], message: str
) -> None:
    point, *others = (argument.replace("REPORT", str(reported)) for argument in arguments)
    assert message in sentence(run("tune", folder / "c.index", "--apply", point, *others))


def test_json_is_what_the_report_holds(folder: Path) -> None:
    done = run(
        *("bench", "--vectors", folder / "rows.npy", "--json", "-k", "5"),
        *("--target-recall", "0.8"),
    )
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout)
    names = [row["name"] for row in results["rows"]]
    assert names[:2] == ["exact", "flat fp16 32 → 100"] and results["now"] == names[1]
    assert results["recommended"] in names and len(results["curve"]) >= len(names) - 2
    assert results["subject"]["rows"] == 1080 and results["subject"]["queries"] == 120
    assert results["settings"]["recall"] == 0.8 and results["machine"]["cores"] >= 1


def test_bad_input_is_reported_in_one_sentence(folder: Path, tmp_path: Path) -> None:
    queries, index = folder / "queries.jsonl", folder / "c.index"
    bench = ("bench", index, "--queries", queries)
    cases: list[tuple[tuple[str | Path, ...], str]] = [
        (("bench",), "name either a collection, or a file of rows"),
        (("bench", index), "needs a file of questions"),
        (("bench", index, "--vectors", folder / "rows.npy"), "name either a collection"),
        (("bench", tmp_path / "none", "--queries", queries), "none"),
        ((*bench, "--target-recall", "1.5"), "recall must lie between 0 and 1"),
        ((*bench, "--qrels", queries), "expected query-id, corpus-id"),
        (("bench", "--vectors", queries), "cannot be read as a .npy file"),
        (
            ("bench", "--vectors", folder / "rows.npy", "--queries", queries),
            "--queries does not go",
        ),
        ((*bench, "--query-vectors", folder / "rows.npy"), "--query-vectors does not go"),
        ((*bench, "--qrels", folder / "qrels.tsv", "-k", "5"), "--qrels needs -k 10 or more"),
        ((*bench, "--out", queries / "report"), "ot a directory"),
    ]
    for arguments, message in cases:
        assert message in sentence(run(*arguments)), arguments


def test_a_point_of_other_vectors_is_refused(reported: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "rows.npy", np.eye(8, dtype=np.float32))
    run("index", tmp_path / "rows.npy", tmp_path / "rows.index")
    done = run("tune", tmp_path / "rows.index", "--apply", f"{reported}#exact")
    assert "dimensions, and" in sentence(done) and "has 8; bench this" in sentence(done)
