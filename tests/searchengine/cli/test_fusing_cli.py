"""tune --qrels: mode and weight by judged questions, from the command line."""

import json
from pathlib import Path

import numpy as np
import pytest
from command_line import run, run_json
from tiny_model import WORDS, write_sentence_transformer


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A network that knows nothing, 120 documents, and a question for each by some words of it."""
    folder = tmp_path_factory.mktemp("fusing")
    write_sentence_transformer(folder / "model")
    rng = np.random.default_rng(1)
    texts = [" ".join(rng.choice(WORDS, 8)) for _ in range(120)]
    lines = [json.dumps({"_id": f"d{i}", "text": text}) for i, text in enumerate(texts)]
    (folder / "corpus.jsonl").write_text("\n".join(lines))
    questions = [
        json.dumps({"_id": f"q{i}", "text": " ".join(text.split()[:3])})
        for i, text in enumerate(texts)
    ]
    (folder / "questions.jsonl").write_text("\n".join(questions))
    rows = "".join(f"q{i}\td{i}\t1\n" for i in range(120))
    (folder / "qrels.tsv").write_text("query-id\tcorpus-id\tscore\n" + rows)
    done = run("index", folder / "corpus.jsonl", folder / "c", "--encoder", folder / "model")
    assert done.returncode == 0, done.stderr
    return folder


def arguments(folder: Path) -> list[str | Path]:
    judged = ("--queries", folder / "questions.jsonl", "--qrels", folder / "qrels.tsv")
    return ["tune", folder / "c", *judged]


def test_tune_by_judgements(folder: Path) -> None:
    run_json("index", folder / "corpus.jsonl", folder / "c", "--mode", "vector")
    report = run_json(*arguments(folder))
    assert report.keys() == {"collection", "operating_point", "fusion"}
    chosen = report["fusion"]
    assert report["operating_point"] is None
    assert chosen["stored"] and (chosen["fitted"], chosen["held_out"]) == (60, 60)
    assert (chosen["before_mode"], chosen["before_weight"]) == ("vector", 1)
    assert chosen["ndcg_10"]["chosen"] > chosen["ndcg_10"]["default"]
    assert len(chosen["curve"]) == 21 and chosen["comparison"]["difference"] > 0
    shown = run_json("info", folder / "c")
    assert shown["mode"] == chosen["mode"] != "vector"
    again = run(*arguments(folder))
    assert again.returncode == 0, again.stderr
    assert "stays as it is" in again.stdout.splitlines()[-1]
    run_json("index", folder / "corpus.jsonl", folder / "c", "--mode", "vector")
    last = run(*arguments(folder)).stdout.splitlines()[-1]
    assert "from now on; nDCG@10 of 60 held-out questions: difference +0." in last


def test_tune_by_judgements_refuses(folder: Path) -> None:
    alone = run("tune", folder / "c", "--qrels", folder / "qrels.tsv")
    assert alone.returncode == 2 and "are needed: --queries and --qrels" in alone.stderr
    both = run(*arguments(folder), "--target-recall", "0.9")
    assert both.returncode == 2 and "--target-recall does not go with --qrels" in both.stderr
    (folder / "few.tsv").write_text("q1\td1\t1\n")
    queries = ("--queries", folder / "questions.jsonl")
    few = run("tune", folder / "c", *queries, "--qrels", folder / "few.tsv")
    assert few.returncode == 2 and "at least 20 questions must have judgements" in few.stderr
