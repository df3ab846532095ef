"""Retrieval quality of a collection, against hand-computed values and a plain oracle."""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from statistics import mean

import numpy as np
import pytest
from conftest import WordLengths
from cut_documents import Words

from searchengine import SearchEngine
from searchengine.backends.entries import ids_of
from searchengine.errors import CorpusError, QueryError
from searchengine.indexer.arrays import prefix
from searchengine.indexer.segment import SegmentConfig
from searchengine.ingest.passages import PassageConfig
from searchengine.measure.metrics import METRICS
from searchengine.measure.retrieval import measure, names, task
from searchengine.measure.significance import Setting, cells, compare, holm, intervals, table

MODES = ("text", "hybrid", "vector")


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[SearchEngine]:
    """Two segments; for the question "a" the ranking is one, both, other, none."""
    with SearchEngine.create(tmp_path / "c", WordLengths(), SegmentConfig(prefix=4)) as engine:
        engine.add([{"_id": "none", "text": "three"}, {"_id": "both", "text": "a a bb"}])
        engine.add([{"_id": "one", "text": "a"}, {"_id": "other", "text": "a bb bb"}])
        yield engine


def test_metrics_by_hand(engine: SearchEngine) -> None:
    qrels = {"q": {"one": 1, "other": 2, "absent": 1}}
    judged = task(engine, {"q": "a", "unjudged": "bb"}, qrels)
    rows = list(measure(engine, judged, [16, 4], modes=["vector"]))
    gain = 1 / math.log2(2) + 2 / math.log2(4)
    ideal = 2 / math.log2(2) + 1 / math.log2(3) + 1 / math.log2(4)
    for row in rows:
        assert row.ndcg_10 == pytest.approx(gain / ideal)
        assert row.scores["recall@100"] == pytest.approx([2 / 3])
        assert row.scores["mrr@10"] == row.scores["success@1"] == [1]
        assert row.scores["map"] == pytest.approx([(1 / 1 + 2 / 3) / 3])
    assert [(row.name, row.dim, row.shortlist) for row in rows] == [
        ("exact", 16, None),
        ("4", 4, 100),
        ("configured", None, 100),
    ]
    fields = json.loads(json.dumps(table(rows, "4")[0]))
    assert fields["ndcg@10"] == pytest.approx(gain / ideal, rel=1e-5)
    assert (fields["baseline"], fields["difference"], fields["p"]) == ("4", 0, 1)


def test_shortlist_and_prefix_against_a_plain_oracle(tmp_path: Path) -> None:
    """The exact top 10, and the shortlist of a prefix, as numpy finds them on the same rows."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 17, (300, 5))
    texts = [" ".join("x" * n for n in row) for row in lengths]
    encoder = WordLengths()
    questions = {f"{i:03}": texts[i] for i in range(0, 300, 30)}
    qrels = {key: {key: 1} for key in questions}
    config = SegmentConfig(prefix=8, rotation="identity", storage="float32")
    with SearchEngine.create(tmp_path / "c", encoder, config) as engine:
        engine.add([{"_id": f"{i:03}", "text": text} for i, text in enumerate(texts)])
        judged = task(engine, questions, qrels)
        exact, cut, _ = measure(engine, judged, [16, 3], 20, ["vector"])
    queries, rows = encoder.encode(list(questions.values())), encoder.encode(texts)
    shares = []
    for key, query in zip(questions, queries, strict=True):
        full, short = rows @ query, prefix(rows, 3) @ query[:3]
        best = {f"{i:03}" for i in np.lexsort((np.arange(300), -full))[:10]}
        shortlist = {f"{i:03}" for i in np.lexsort((np.arange(300), -short))[:20]}
        assert {*list(exact.run[key])[:10]} == best and cut.run[key].keys() == shortlist
        # The top 10 of the shortlist at full width holds whatever of the exact top 10 is in it.
        assert {*list(cut.run[key])[:10]} >= best & shortlist
        shares.append(len(best & shortlist) / 10)
    assert [row["exact_recall@10"] for row in table([exact, cut])] == [
        1,
        pytest.approx(mean(shares)),
    ]
    assert cut.ndcg_10 <= exact.ndcg_10


def test_a_prefix_row_does_not_tell_the_number_of_segments(tmp_path: Path) -> None:
    """The shortlist is cut once: two segments give the row of one, with a deleted document too."""
    rng = np.random.default_rng(0)
    texts = [" ".join("x" * n for n in row) for row in rng.integers(1, 17, (300, 5))]
    documents = [{"_id": str(i), "text": text} for i, text in enumerate(texts)]
    config = SegmentConfig(prefix=8, rotation="identity", storage="float32")
    found = []
    with SearchEngine.create(tmp_path / "c", WordLengths(), config) as engine:
        engine.add(documents[:100])
        engine.add(documents[100:])
        engine.delete(["150"])
        questions = {f"q{i}": texts[i] for i in range(0, 300, 30)}
        judged = task(engine, questions, {key: {key[1:]: 1} for key in questions})
        for segments in (2, 1):
            with engine.collection.reading() as snapshot:
                assert len(snapshot.segments) == segments
            found.append(next(row for row in measure(engine, judged, [3], 20) if row.name == "3"))
            engine.optimize()
    two, one = found
    assert all(len(ranking) == 20 for ranking in two.run.values())
    assert two.run == one.run


def test_prefix_outside_the_width_and_unjudged_questions(engine: SearchEngine) -> None:
    with pytest.raises(QueryError, match="between 1 and 16, got 17"):
        list(measure(engine, task(engine, {"q": "a"}, {"q": {"one": 1}}), [17]))
    with pytest.raises(CorpusError, match="no question has a judgement"):
        task(engine, {"q": "a"}, {"other": {"one": 1}})


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SearchEngine]:
    """400 documents of one to four passages, found by a short prefix; the keys are numbers."""
    rng = np.random.default_rng(0)
    documents = [
        {"_id": str(i), "text": " ".join("x" * n for n in rng.integers(1, 17, rng.integers(4, 40)))}
        for i in range(400)
    ]
    config = SegmentConfig(prefix=3, shortlist=15, rotation="identity", storage="float32")
    path = tmp_path_factory.mktemp("many") / "c"
    cut = PassageConfig(10)
    with SearchEngine.create(path, Words(), config, passages=cut) as engine:
        engine.add(documents[:300])
        engine.add(documents[300:])
        yield engine


QUESTIONS = {f"q{n}": " ".join("x" * i for i in range(n, n + 5)) for n in range(1, 9)}
JUDGED = {key: {str(40 * i + j): 1 + j % 2 for j in range(20)} for i, key in enumerate(QUESTIONS)}


def test_modes_are_the_engines_own_rankings(many: SearchEngine) -> None:
    """And the configured row has the ten that a search for ten finds, and no better ones."""
    found = {
        each.name: each for each in measure(many, task(many, QUESTIONS, JUDGED), [4], 20, MODES)
    }
    assert list(found) == names(many, [4], MODES) == ["text", "hybrid", "exact", "4", "configured"]
    texts = list(QUESTIONS.values())
    for name, options in (
        ("text", {"mode": "text"}),
        ("hybrid", {"mode": "hybrid"}),
        ("exact", {"exact": True}),
    ):
        for key, hits in zip(QUESTIONS, many.search_batch(texts, 100, **options), strict=True):  # type: ignore[arg-type]
            assert list(found[name].run[key]) == [hit.key for hit in hits]
    configured = found["configured"]
    short = many.search_batch(texts, 10, mode="vector")
    for key, hits in zip(QUESTIONS, short, strict=True):
        assert list(configured.run[key])[:10] == [hit.key for hit in hits]
        assert len(configured.run[key]) == len(found["exact"].run[key]) == 100


def test_the_default_search_comes_first(many: SearchEngine, tmp_path: Path) -> None:
    """It is the search that names no mode, once in the table; by default with mode vector."""
    judged = task(many, QUESTIONS, JUDGED)
    rows = list(measure(many, judged))
    assert [row.name for row in rows] == names(many) == ["hybrid", "exact", "configured"]
    assert [row.default for row in rows] == [True, False, False]
    assert [row.mode for row in rows] == ["hybrid", "vector", "vector"]
    texts = list(QUESTIONS.values())
    for key, hits in zip(QUESTIONS, many.search_batch(texts, 100), strict=True):
        assert list(rows[0].run[key]) == [hit.key for hit in hits]
    assert names(many, modes=["hybrid", "auto"]) == names(many, modes=["auto"]) == ["hybrid"]
    with pytest.raises(QueryError, match="mode must be one of auto, vector, text, hybrid, got 'x'"):
        names(many, modes=["x"])
    with SearchEngine.create(tmp_path / "c", WordLengths(), tokenizer="none") as engine:
        engine.add([{"_id": "one", "text": "a"}, {"_id": "two", "text": "bb"}])
        judged = task(engine, {"q": "a"}, {"q": {"one": 1}})
        rows = list(measure(engine, judged, [4]))
        assert [row.name for row in rows] == ["configured", "exact", "4"]
        assert [row.default for row in rows] == [True, False, False]
        (alone,) = measure(engine, judged, modes=["auto"])
        assert alone.name == "configured"
    with SearchEngine.create(tmp_path / "d", None, dim=4) as engine:  # words alone
        engine.add([{"_id": "one", "text": "whales"}], np.ones((1, 4)))
        (row,) = measure(engine, task(engine, {"q": "whales"}, {"q": {"one": 1}}))
        assert [row.name] == names(engine) == ["text"] and row.default and row.ndcg_10 == 1


@pytest.mark.parametrize("exclude", [True, False])
def test_a_questions_own_document_is_left_out(many: SearchEngine, exclude: bool) -> None:
    """The ranks after it move up, and a hundred are left."""
    texts = _texts(many, ["7", "8", "350"])
    judged = task(many, texts, {key: {"1": 1} | ({} if exclude else {key: 1}) for key in texts})
    for row in measure(many, judged, [4], 240, ["vector", "text", "hybrid"]):
        for key, found in row.run.items():
            assert (key in found) != exclude, row.name
            assert len(found) == 100
    exact = next(measure(many, judged, modes=["vector"]))
    expected = [hit.key for hit in many.search(texts["7"], 101, exact=True)]
    assert list(exact.run["7"]) == [key for key in expected if not exclude or key != "7"][:100]


def test_questions_that_are_documents_are_found_out(many: SearchEngine) -> None:
    """By key and text; keys alone are shared by any two files that number their lines."""
    texts = _texts(many, [str(i) for i in range(10)])
    other = {key: {"99": 1} for key in texts}
    found = task(many, texts, other)
    assert found.documents == texts.keys()
    assert found.notes == ("questions that are documents, left out of their own results: 10",)
    numbered = {key: "yy yyy" for key in texts} | {"7": texts["7"]}
    assert task(many, numbered, other).documents == {"7"}
    assert "3" not in task(many, texts, other | {"3": {"3": 1}}).documents


def test_rows_are_compared_with_the_baseline() -> None:
    """By pairs of questions, corrected for the number of rows."""
    rng = np.random.default_rng(0)
    base = rng.random(80) / 2
    gains = {"exact": base, "worse": base - 0.02 * rng.random(80), "noise": rng.random(80) / 2}
    settings = [Setting(name, {}, dict.fromkeys(METRICS, gain)) for name, gain in gains.items()]
    exact, worse, noise = table(settings)
    assert (exact["baseline"], exact["difference"], exact["p"]) == (None, None, None)
    for row, name in ((worse, "worse"), (noise, "noise")):
        gain = compare(gains[name], base)
        assert row["baseline"] == "exact" and row["p_uncorrected"] == gain.p
        assert row["difference_interval"] == [gain.low, gain.high]
        assert row["intervals"]["map"] == pytest.approx(intervals([gains[name]])[0])
    ps = [row["p_uncorrected"] for row in (worse, noise)]
    assert [worse["p"], noise["p"]] == holm(ps)
    assert ps[0] < 0.001 < 0.05 < ps[1]
    (base_line, line, _), one = cells([exact, worse, noise]), cells([exact])[0]
    assert line["p"] == worse["p"] and base_line["p"] is None
    assert list(one) == ["setting", "ndcg@10", "interval", *METRICS[1:]]
    assert table(settings, "noise")[0]["baseline"] == "noise"
    assert table(settings[1:])[1]["baseline"] == "worse"  # the first where nothing is exact
    with pytest.raises(QueryError, match="no row is called 'x'; rows: exact, worse, noise"):
        table(settings, "x")


def _texts(engine: SearchEngine, keys: list[str]) -> dict[str, str]:
    with engine.collection.reading() as snapshot:
        found = snapshot.documents(ids_of(snapshot, keys).values())
        return {document.key: document.text for document in found}
