"""TREC run files are measured as the reference tool measures them."""

from pathlib import Path

import numpy as np
import pytest
import pytrec_eval

from searchengine.errors import CorpusError
from searchengine.measure.judgements import Run, ranked, write_run
from searchengine.measure.metrics import per_question


def made(questions: int = 12, seed: int = 0) -> tuple[Run, dict[str, dict[str, int]]]:
    """Rankings of 120 documents with many equal scores, and grades from −1 to 3."""
    rng = np.random.default_rng(seed)
    run, qrels = {}, {}
    for question in range(questions):
        order = rng.permutation(300)[:120]
        scores = np.sort(rng.integers(0, 30, 120) / 10)[::-1]
        key = f"q{question}"
        run[key] = ranked((f"d{d}", s) for d, s in zip(order, scores, strict=True))
        graded = rng.choice(300, 100, replace=False)
        qrels[key] = {f"d{d}": int(rng.integers(-1, 4)) for d in graded}
    qrels["q0"] = {"d1": 0}  # nothing is relevant
    qrels["unanswered"] = {"d1": 1}
    qrels["q2"] = {list(run["q2"])[14]: 2}  # found late
    return run, qrels


def test_scores_fall_strictly_in_the_given_order() -> None:
    """Also where only single precision makes them equal, and where they rise."""
    found = ranked([("a", 0.5), ("b", 0.5), ("c", 0.5 - 1e-12), ("a", 0.4), ("d", 0.75)])
    assert list(found) == ["a", "b", "c", "d"]
    singles = np.array(list(found.values()), np.float32)
    assert singles[0] == 0.5 and (np.diff(singles) < 0).all()
    assert singles[3] > 0.4999998


def test_a_line(tmp_path: Path) -> None:
    path = tmp_path / "new" / "a.run"
    write_run(path, {"q1": ranked([("d2", 0.25), ("d1", 0.1)])}, "tag")
    assert path.read_text() == "q1 Q0 d2 1 0.25 tag\nq1 Q0 d1 2 0.100000001 tag\n"


def test_metrics_of_a_written_run_are_the_reference_tools(tmp_path: Path) -> None:
    run, qrels = made()
    path = tmp_path / "a.run"
    write_run(path, run, "tag")
    measures = {"ndcg_cut_10", "recall_100", "recip_rank", "success_1", "map"}
    with open(path) as file:
        reference = pytrec_eval.RelevanceEvaluator(qrels, measures).evaluate(
            pytrec_eval.parse_run(file)
        )
    values = per_question(run, list(qrels), qrels)
    for metric, name in zip(
        ("ndcg@10", "recall@100", "mrr@10", "success@1", "map"),
        ("ndcg_cut_10", "recall_100", "recip_rank", "success_1", "map"),
        strict=True,
    ):
        theirs = [reference[key][name] if key in reference else 0 for key in qrels]
        if metric == "mrr@10":  # the tool looks further down
            theirs = [each if each >= 0.1 else 0 for each in theirs]
        assert values[metric] == pytest.approx(theirs, abs=1e-9)
    assert 0.05 < values["ndcg@10"].mean() < 0.5  # neither nothing nor all
    assert values["map"][list(qrels).index("unanswered")] == 0


def test_names_that_no_run_file_holds(tmp_path: Path) -> None:
    for run, tag in (({"q": {"a b": 1.0}}, "x"), ({"q\t1": {"a": 1.0}}, "x"), ({}, "my tag")):
        with pytest.raises(CorpusError, match="must not contain white space"):
            write_run(tmp_path / "a.run", run, tag)
        assert not (tmp_path / "a.run").exists()
