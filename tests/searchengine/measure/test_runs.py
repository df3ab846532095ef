"""TREC run files are measured as the reference tool measures them."""

import math
from pathlib import Path

import numpy as np
import pytest
import pytrec_eval
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import ndcg_score

from searchengine.errors import CorpusError
from searchengine.measure.judgements import METRICS, Run, per_question, ranked, write_run

name = st.text(st.characters(codec="utf-8", exclude_characters="\ufeff"), min_size=1, max_size=6)
names = name.filter(lambda text: text.split() == [text])
entries = st.lists(st.tuples(names, st.floats(-1e30, 1e30)), min_size=1, max_size=8).map(ranked)


def written(path: Path, run: Run) -> Path:
    write_run(path, run, "tag")
    return path


def measured(path: Path, qrels: dict[str, dict[str, int]]) -> dict[str, list[float]]:
    """The metrics from their definitions, of the lines of a file as trec_eval would sort them."""
    found: dict[str, list[tuple[np.float32, bytes, str]]] = {}
    for line in path.read_text().splitlines():
        question, _, document, _, score, _ = line.split()
        scored = np.float32(score), document.encode(), document
        found.setdefault(question, []).append(scored)
    values: dict[str, list[float]] = {metric: [] for metric in METRICS}
    for question, grades in qrels.items():
        order = [document for *_, document in sorted(found.get(question, []), reverse=True)]
        gains = [max(0, grades.get(document, 0)) for document in order]
        hits = [gain > 0 for gain in gains]
        relevant = sum(grade > 0 for grade in grades.values())
        ideal = sorted((max(0, grade) for grade in grades.values()), reverse=True)[:10]
        best = sum(gain / math.log2(rank + 1) for rank, gain in enumerate(ideal, 1))
        dcg = sum(gain / math.log2(rank + 1) for rank, gain in enumerate(gains[:10], 1))
        values["ndcg@10"].append(dcg / best if best else 0)
        values["recall@100"].append(sum(hits[:100]) / relevant if relevant else 0)
        first = next((rank for rank, hit in enumerate(hits[:10], 1) if hit), math.inf)
        values["mrr@10"].append(1 / first)
        values["success@1"].append(float(first == 1))
        precisions = [sum(hits[:rank]) / rank for rank, hit in enumerate(hits, 1) if hit]
        values["map"].append(sum(precisions) / relevant if relevant else 0)
    return values


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


@given(st.dictionaries(names, entries, min_size=1, max_size=4))
def test_what_is_written_is_read(tmp_path_factory: pytest.TempPathFactory, run: Run) -> None:
    """Each line splits into its six columns, in order; scores fall as single precision has them."""
    path = written(tmp_path_factory.mktemp("runs") / "a.run", run)
    read: dict[str, dict[str, float]] = {}
    for line in path.read_text().removesuffix("\n").split("\n"):
        question, _, document, rank, score, tag = line.split()
        found = read.setdefault(question, {})
        found[document] = float(np.float32(score))
        assert (int(rank), tag) == (len(found), "tag")
    assert read == run
    assert [list(found) for found in read.values()] == [list(found) for found in run.values()]


def test_a_line(tmp_path: Path) -> None:
    path = written(tmp_path / "new" / "a.run", {"q1": ranked([("d2", 0.25), ("d1", 0.1)])})
    assert path.read_text() == "q1 Q0 d2 1 0.25 tag\nq1 Q0 d1 2 0.100000001 tag\n"


def test_metrics_of_a_written_run_are_the_reference_tools(tmp_path: Path) -> None:
    run, qrels = made()
    path = written(tmp_path / "a.run", run)
    with open(path) as file:
        reference = pytrec_eval.RelevanceEvaluator(
            qrels, {"ndcg_cut_10", "recall_100", "map"}
        ).evaluate(pytrec_eval.parse_run(file))
    oracle = measured(path, qrels)
    values = per_question(run, list(qrels), qrels)
    for metric in METRICS:
        assert values[metric] == pytest.approx(oracle[metric], abs=1e-9)
    for metric, known in (("ndcg@10", "ndcg_cut_10"), ("recall@100", "recall_100"), ("map",) * 2):
        theirs = [reference[key][known] if key in reference else 0 for key in qrels]
        assert values[metric] == pytest.approx(theirs, abs=1e-9)
    assert 0.05 < values["ndcg@10"].mean() < 0.5  # neither nothing nor all
    assert values["map"][list(qrels).index("unanswered")] == 0


def test_ndcg_is_scikit_learns(tmp_path: Path) -> None:
    run, qrels = made(4, seed=1)
    values = per_question(run, ["q1", "q2"], qrels)["ndcg@10"]
    for key, value in zip(("q1", "q2"), values, strict=True):
        documents = sorted(run[key].keys() | qrels[key].keys())
        true = [[max(0, qrels[key].get(document, 0)) for document in documents]]
        score = [[run[key].get(document, -1000) for document in documents]]
        assert value == pytest.approx(ndcg_score(true, score, k=10))


@given(st.integers(0, 99), st.randoms(use_true_random=False))
def test_names_and_order_of_questions_do_not_matter(seed: int, random: object) -> None:
    run, qrels = made(4, seed)
    documents = [f"d{i}" for i in range(300)]
    others = documents.copy()
    random.shuffle(others)  # type: ignore[attr-defined]
    called = dict(zip(documents, others, strict=True))
    again = {key: {called[d]: s for d, s in found.items()} for key, found in run.items()}
    judged = {key: {called[d]: g for d, g in found.items()} for key, found in qrels.items()}
    keys = list(qrels)
    before, after = per_question(run, keys, qrels), per_question(again, keys[::-1], judged)
    for metric in METRICS:
        assert after[metric][::-1] == pytest.approx(before[metric])


@pytest.mark.parametrize(
    ("run", "tag", "message"),
    [
        ({"q": {"a b": 1.0}}, "x", "the document must not contain white space, .* got 'a b'"),
        ({"q\t1": {"a": 1.0}}, "x", r"the question must not contain white space, .* got 'q\\t1'"),
        ({"q": {"a": 1.0}}, "my tag", "the tag must not contain white space, .* got 'my tag'"),
    ],
)
def test_names_that_no_run_file_holds(tmp_path: Path, run: Run, tag: str, message: str) -> None:
    with pytest.raises(CorpusError, match=message):
        write_run(tmp_path / "a.run", run, tag)
    assert not (tmp_path / "a.run").exists()
