"""What each stage of a search gives and costs."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import run, run_json
from conftest import WordLengths

from searchengine import SearchEngine
from searchengine.errors import QueryError
from searchengine.measure.retrieval import task
from searchengine.measure.stages import StageRow, ladder, measure
from searchengine.trainer.evaluation.significance import compare, holm

TEXTS = {f"d{i}": f"{'x' * (1 + i % 7)} {word}" for i, word in enumerate(
    "whales owls kidneys climbers leopards databases enzymes glaciers rivers mountains".split()
)}  # fmt: skip
QUERIES = {
    f"q{i}": question
    for i, question in enumerate(
        "wahles|owls hunt|kindeys|climbers climb|leopards|databases|enzymes|glaciers|rivres|x"
        "|mountains|whales and owls".split("|")
    )
}
RELEVANT = [0, 1, 2, 3, 4, 5, 6, 7, 8, 7, 9, 0]
QRELS = {f"q{i}": {f"d{n}": 1} for i, n in enumerate(RELEVANT)}


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SearchEngine]:
    path = tmp_path_factory.mktemp("stages") / "c"
    with SearchEngine.create(path, WordLengths(), tokenizer="porter") as engine:
        documents = enumerate(TEXTS.items())
        engine.add({"_id": key, "text": text, "n": float(i)} for i, (key, text) in documents)
        yield engine


def gain(rank: int | None) -> float:
    return 0.0 if rank is None else 1 / np.log2(rank + 1)


def by_hand(engine: SearchEngine, **options: Any) -> list[float]:
    """nDCG@10 of each question, with one relevant document."""
    gains = []
    for key, question in QUERIES.items():
        keys = [hit.key for hit in engine.search(question, 10, **options)]
        (relevant,) = QRELS[key]
        gains.append(gain(keys.index(relevant) + 1 if relevant in keys else None))
    return gains


def test_each_row_is_the_search_that_its_options_make(engine: SearchEngine) -> None:
    stages = ladder(engine, boost="1 + n")
    assert list(stages) == ["words", "vectors", "words and vectors", "typing errors", "boost"]
    asked: list[int] = []
    rows = measure(engine, task(engine, QUERIES, QRELS), stages, asked.append)
    assert sum(asked) == len(QUERIES)
    for row in rows:
        assert row.scores.tolist() == pytest.approx(by_hand(engine, **row.options))
        assert row.milliseconds.shape == (12,) and (row.milliseconds > 0).all()
    words, vectors, both, typos, boost = rows
    assert typos.scores.mean() > both.scores.mean()  # three questions have typing errors
    assert words.before is vectors.before is None and words.comparison is None
    better = max((vectors, words), key=lambda row: row.scores.mean())
    assert (both.before, typos.before, boost.before) == (better.stage, both.stage, typos.stage)
    pairs = ((both, better), (typos, both), (boost, typos))
    comparisons = [compare(row.scores, before.scores) for row, before in pairs]
    assert [row.comparison for row, _ in pairs] == comparisons
    assert [row.p for row, _ in pairs] == holm([each.p for each in comparisons])


class Slow(WordLengths):
    """Takes a second for each text, by a clock that nothing else moves."""

    now = 0.0

    def encode(self, texts: Any, **options: Any) -> Any:
        self.now += len(texts)
        return super().encode(texts, **options)


def test_time_has_one_encoding_where_there_are_vectors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of a question with a typing error, whose replacement is encoded by its search."""
    slow = Slow()
    monkeypatch.setattr("searchengine.measure.stages.perf_counter", lambda: slow.now)
    with SearchEngine.create(tmp_path / "c", slow, tokenizer="porter") as engine:
        engine.add([{"_id": key, "text": text} for key, text in TEXTS.items()])
        queries = {key: QUERIES[key] for key in ("q0", "q1")}
        qrels = {key: QRELS[key] for key in queries}
        rows = measure(engine, task(engine, queries, qrels), ladder(engine))
    times = [row.milliseconds.tolist() for row in rows]
    assert times == [[0, 0], [1000, 1000], [1000, 1000], [1000, 1000]]


def test_rows_as_values_and_as_text() -> None:
    scores, times = np.linspace(0, 1, 11), np.arange(11.0)
    first = StageRow("words", {"mode": "text"}, scores, times)
    values = first.as_dict()
    assert (values["ndcg@10"], values["milliseconds"]) == (0.5, 5.0)
    assert values["milliseconds_quartiles"] == [2.5, 7.5] and values["difference"] is None
    cells = first.as_cells()
    assert cells["ndcg@10"].startswith("0.500 [0.") and cells["ms"] == "5.00 (2.50–7.50)"
    other = StageRow("boost", {}, scores, times, "words", compare(scores, scores), 1.0)
    cells = other.as_cells()
    assert (cells["difference"], cells["p"]) == ("+0.000 [+0.000 to +0.000]", "1.000")
    few = StageRow("words", {}, scores[:3], times[:3])
    assert few.as_dict()["interval"] is None and few.as_cells()["ndcg@10"] == "0.100"


def test_stages_are_those_that_the_collection_has(tmp_path: Path, engine: SearchEngine) -> None:
    with SearchEngine.create(tmp_path / "v", WordLengths(), tokenizer="none") as vectors:
        assert list(ladder(vectors)) == ["vectors"]
    with SearchEngine.create(tmp_path / "w", None, dim=4, tokenizer="porter") as words:
        assert list(ladder(words)) == ["words", "typing errors"]
    with (
        SearchEngine.create(tmp_path / "n", None, dim=4, tokenizer="none") as neither,
        pytest.raises(QueryError, match="neither words nor an encoder"),
    ):
        ladder(neither)
    last = ladder(engine, None, "model", 7)["cross-encoder"]
    assert last["cross_encoder"] == "model" and last["candidates"] == 7
    with pytest.raises(QueryError, match="candidates are those of a cross-encoder"):
        ladder(engine, candidates=7)
    with pytest.raises(QueryError, match=r"which no boost multiplies; measure them in two runs"):
        ladder(engine, "n", "model")
    with SearchEngine.create(tmp_path / "t", None, dim=4, tokenizer="trigram") as trigrams:
        assert list(ladder(trigrams)) == ["words"]


def test_the_question_itself_is_left_out(engine: SearchEngine) -> None:
    questions = {key: TEXTS[key] for key in ("d0", "d1")}
    judged = task(engine, questions, {"d0": {"d1": 1}, "d1": {"d2": 1}}, exclude_self=True)
    (row,) = measure(engine, judged, {"vectors": {"mode": "vector"}})
    for (key, question), score in zip(questions.items(), row.scores.tolist(), strict=True):
        keys = [h.key for h in engine.search(question, 11, mode="vector") if h.key != key]
        assert score == pytest.approx(gain(keys.index(next(iter(judged.qrels[key]))) + 1))


def test_the_command(tmp_path: Path) -> None:
    (tmp_path / "corpus.jsonl").write_text(
        '{"_id": "whale", "text": "Whales sleep with half a brain."}\n'
        '{"_id": "bread", "text": "The crust of bread is brown."}\n'
    )
    (tmp_path / "q.jsonl").write_text('{"_id": "q1", "text": "how do wahles sleep"}\n')
    (tmp_path / "qrels.tsv").write_text("query-id\tcorpus-id\tscore\nq1\twhale\t1\n")
    path = tmp_path / "c.index"
    assert run("index", tmp_path / "corpus.jsonl", path).returncode == 0
    judged = ("--queries", tmp_path / "q.jsonl", "--qrels", tmp_path / "qrels.tsv")
    rows = run_json("evaluate", "stages", path, *judged)
    names = ["words", "vectors", "words and vectors", "typing errors"]
    assert [row["stage"] for row in rows] == names
    assert [row["ndcg@10"] for row in rows] == [1.0] * 4
    table = run("evaluate", "stages", path, *judged)
    shown = " ".join(table.stdout.split())
    assert "typing errors" in shown and "1 question" in shown
    assert "1 question: too few for intervals; at least" in table.stderr
    refused = run("evaluate", "stages", path, *judged, "--candidates", "3")
    assert refused.returncode == 2 and "name one" in refused.stderr
