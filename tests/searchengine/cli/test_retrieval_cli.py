"""searchengine evaluate retrieval: what it measures, and what it refuses."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytrec_eval
from command_line import run, run_json

from tests.searchengine.cli.test_cli import CORPUS


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BEIR folder, and the collection made from it by words and the starter encoder."""
    folder = tmp_path_factory.mktemp("retrieval")
    (folder / "corpus.jsonl").write_text(CORPUS)
    (folder / "queries.jsonl").write_text(
        '{"_id": "q1", "text": "how do whales sleep"}\n'
        '{"_id": "q2", "text": "why does the crust of dough rise"}\n'
        '{"_id": "q3", "text": "not judged"}\n'
    )
    (folder / "qrels").mkdir()
    (folder / "qrels" / "dev.tsv").write_text(
        "query-id\tcorpus-id\tscore\nq1\twhale\t2\nq2\tbread\t1\nq2\tgone\t1\n"
    )
    done = run("index", folder / "corpus.jsonl", folder / "c.index")
    assert done.returncode == 0, done.stderr
    return folder


def refused(*arguments: str | Path) -> str:
    done = run("evaluate", *arguments)
    assert done.returncode == 2 and done.stdout == "", done.stdout
    return done.stderr.splitlines()[-1]


def test_retrieval_and_its_runs(folder: Path, tmp_path: Path) -> None:
    """Every mode in one table; and trec_eval measures its run files alike."""
    runs = tmp_path / "runs"
    rows = run_json(
        *("evaluate", "retrieval", folder / "c.index", "--beir", folder, "--split", "dev"),
        *("--mode", "vector, text, hybrid", "--prefixes", "384,64", "--run-out", runs),
    )
    names = ["exact", "64", "configured", "text", "hybrid"]
    assert [row["setting"] for row in rows] == names
    assert [(row["dim"], row["shortlist"]) for row in rows[:3]] == [
        (384, None),
        (64, 100),
        (None, 3),
    ]
    assert [row["baseline"] for row in rows] == [None] + ["exact"] * 4
    for row in rows:
        assert row["questions"] == 2 and row["mrr@10"] == row["recall@100"] + 0.25
    assert sorted(path.stem for path in runs.iterdir()) == sorted(names)
    measures = {"ndcg_cut_10": "ndcg@10", "recall_100": "recall@100", "map": "map"}
    evaluator = pytrec_eval.RelevanceEvaluator(
        {"q1": {"whale": 2}, "q2": {"bread": 1, "gone": 1}}, set(measures)
    )
    for row in rows:
        with open(runs / f"{row['setting']}.run") as file:
            found = evaluator.evaluate(pytrec_eval.parse_run(file)).values()
        for theirs, ours in measures.items():
            assert row[ours] == pytest.approx(np.mean([each[theirs] for each in found]), abs=1e-5)


def test_the_first_row_is_what_users_get(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A search without --mode; the table fits in 80 columns, and progress counts questions."""
    beir = ("--beir", folder, "--split", "dev")
    command = ("evaluate", "retrieval", folder / "c.index", *beir)
    done = run(*command, "--prefixes", "64")
    assert done.returncode == 0, done.stderr
    table = [line.split()[1:3] for line in done.stdout.splitlines() if line.startswith("│")]
    assert table == [["hybrid", "(default)"], ["exact", "│"], ["64", "│"], ["configured", "│"]]
    assert max(len(line.rstrip()) for line in done.stdout.splitlines()) <= 80
    monkeypatch.setenv("FORCE_COLOR", "1")  # bars, as on a terminal
    shown = run(*command, "--prefixes", "64").stderr
    for step in ("Evaluating hybrid", "Encoding", "Evaluating exact", "Evaluating 64"):
        assert step in shown
    monkeypatch.delenv("FORCE_COLOR")
    (alone,) = run_json(*command, "--mode", "auto")
    assert (alone["setting"], alone["mode"], alone["default"]) == ("hybrid", "hybrid", True)
    text, hybrid = run_json(*command, "--mode", "text,hybrid", "--run-out", folder / "default")
    assert (text["default"], hybrid["default"]) == (False, True)
    first = (folder / "default" / "hybrid.run").read_text().split()[2]
    (hit,) = run_json("search", folder / "c.index", "how do whales sleep", "-k", "1")["hits"]
    assert hit["key"] == first


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"--queries": "q.jsonl"}, "are needed: --queries and --qrels"),
        (
            {"--beir": ".", "--qrels": "t"},
            "--qrels does not go with --beir; leave one out",
        ),
        ({"--beir": "gone"}, "gone: the folder has no queries.jsonl"),
        (
            {"--mode": "vector,words"},
            "one or more of auto, vector, text, hybrid separated by commas, got 'vector,words'",
        ),
        ({"--baseline": "128"}, "no row is called '128'; rows: text"),
    ],
)
def test_what_is_refused(folder: Path, options: dict[str, Any], message: str) -> None:
    if not {"--queries", "--beir"} & options.keys():
        options = {"--beir": folder, "--split": "dev", "--mode": "text"} | options
    pairs = [part for option in options.items() for part in option]
    assert message in refused("retrieval", folder / "c.index", *pairs)
