"""A cross-encoder orders the best hits again."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tiny_model import write_cross_encoder, write_model2vec, write_plain

from searchengine import SearchEngine
from searchengine.cli import cli
from searchengine.errors import QueryError
from searchengine.trainer.cross_encoder import CrossEncoder
from searchengine.trainer.runtimes.runtime_config import RuntimeConfig

QUESTION = "the dog sleeps"
WORDS = ("dog", "cat", "whale", "bird", "house", "sea")
DOCUMENTS = [
    {
        "_id": f"d{i}",
        "title": f"the {WORDS[i % 6]}",
        "text": f"a {WORDS[i % 5]} sleeps near the {WORDS[i % 4]} " + "far " * (i % 7),
        "group": i % 8,
        "year": 2000 + i % 11,
    }
    for i in range(40)
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_cross_encoder(tmp_path_factory.mktemp("models") / "cross"))


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SearchEngine]:
    folder = tmp_path_factory.mktemp("cross")
    runtime = RuntimeConfig("torch", "fp32", "cpu")
    encoder = write_model2vec(folder / "encoder")
    with SearchEngine.create(folder / "c", encoder, runtime=runtime) as engine:
        engine.add(DOCUMENTS)
        yield engine


def expected(
    engine: SearchEngine, model: str, most: int, **options: Any
) -> list[tuple[str, float]]:
    """Keys and scores of the candidates, each scored alone."""
    scorer = CrossEncoder.load(model, RuntimeConfig("torch", "fp32", "cpu"))
    found = engine.search(QUESTION, most, **options)
    scored = [
        (hit.key, scorer.score([QUESTION], [f"{hit.title}\n{hit.passage}"])[0]) for hit in found
    ]
    return sorted(scored, key=lambda pair: -pair[1])


@pytest.mark.parametrize("mode", ["vector", "text", "hybrid"])
@pytest.mark.parametrize("candidates", [7, 25])
def test_the_best_candidates_by_its_score(
    engine: SearchEngine, model: str, mode: str, candidates: int
) -> None:
    right = expected(engine, model, candidates, mode=mode)
    options: Any = {"mode": mode, "cross_encoder": model, "candidates": candidates}
    hits = engine.search(QUESTION, 5, **options)
    assert [hit.key for hit in hits] == [key for key, _ in right[:5]]
    assert [hit.score for hit in hits] == pytest.approx([s for _, s in right[:5]], abs=0.02)
    before = {hit.key: hit for hit in engine.search(QUESTION, candidates, mode=mode)}
    assert [hit.key for hit in hits] != list(before)[:5]  # else the test shows nothing
    for hit in hits:
        scores = dict(hit.scores)
        assert scores.pop("cross_encoder") == hit.score
        assert scores.pop(mode) == before[hit.key].score
        assert scores.items() <= dict(before[hit.key].scores).items()
    assert hits.timing is not None and hits.timing.cross_encode > 0
    plain = engine.search(QUESTION, 5, mode=mode)
    assert plain.timing is not None and plain.timing.cross_encode == 0
    assert all("cross_encoder" not in hit.scores for hit in plain)


def test_pages_and_thresholds(engine: SearchEngine, model: str) -> None:
    options: Any = {"cross_encoder": model, "candidates": 30}
    whole = engine.search(QUESTION, 20, **options)
    pages = [engine.search(QUESTION, 7, offset=start, **options) for start in (0, 7, 14)]
    assert [hit.key for page in pages for hit in page][:20] == [hit.key for hit in whole]
    least = whole[9].score
    above = engine.search(QUESTION, 20, min_score=least, **options)
    assert [hit.key for hit in above] == [hit.key for hit in whole[:10]]
    deep = engine.search(QUESTION, 35, cross_encoder=model, candidates=1)
    assert len(deep) == 35  # never fewer hits than were asked for
    filtered = engine.search(QUESTION, 40, where="group = 3", facets=["group"], **options)
    assert {hit.metadata["group"] for hit in filtered} == {3} and filtered.facets["group"] == {3: 5}
    groups = engine.search(QUESTION, 8, group_by="group", **options)
    assert len({hit.metadata["group"] for hit in groups}) == len(groups) == 8


def test_a_batch_answers_each_question(engine: SearchEngine, model: str) -> None:
    questions = [QUESTION, "a whale in the sea", QUESTION]
    batch = engine.search_batch(questions, 4, cross_encoder=model, candidates=12)
    for question, hits in zip(questions, batch, strict=True):
        alone = engine.search(question, 4, cross_encoder=model, candidates=12)
        assert [hit.key for hit in hits] == [hit.key for hit in alone]
    assert engine.search_batch([QUESTION], 3, where="group = 99", cross_encoder=model) == [[]]


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_runtime_and_precision_are_those_of_the_engine(
    engine: SearchEngine, model: str, precision: str
) -> None:
    runtime = RuntimeConfig("torch", precision)
    with SearchEngine.open(engine.collection.path, runtime=runtime) as other:
        hits = other.search(QUESTION, 3, mode="text", cross_encoder=model)
        scorer = other.cross_encoders.get(model)
    assert scorer is not None and scorer.runs_on == f"torch {precision}"
    assert all("cross_encoder" in hit.scores for hit in hits)


def test_questions_that_cannot_be_answered(
    engine: SearchEngine, model: str, tmp_path: Path
) -> None:
    encoder = write_plain(tmp_path / "plain")
    vector = engine.encode_questions([QUESTION])[0]
    for message, options in {
        "no model at": {"cross_encoder": tmp_path / "missing"},
        "which scores no pairs": {"cross_encoder": encoder},
        "must be a folder or a name": {"cross_encoder": 3},
        "candidates must be": {"cross_encoder": model, "candidates": 0},
    }.items():
        with pytest.raises(QueryError, match=message):
            engine.search(QUESTION, **options)  # type: ignore[arg-type]
    with pytest.raises(QueryError, match="questions as texts"):
        engine.search(vector, cross_encoder=model)
    with pytest.raises(QueryError, match="leave cross_encoder out"):
        engine.similar("d1", cross_encoder=model)


def test_on_the_command_line(engine: SearchEngine, model: str) -> None:
    place = str(engine.collection.path)
    arguments = ["search", place, QUESTION, "-k", "3", "--json", "--precision", "fp32"]
    result = CliRunner().invoke(cli, [*arguments, "--cross-encoder", model, "--candidates", "9"])
    assert result.exit_code == 0, result.output
    hits = json.loads(result.stdout)["hits"]
    wanted = engine.search(QUESTION, 3, cross_encoder=model, candidates=9)
    assert [hit["key"] for hit in hits] == [hit.key for hit in wanted]
    assert hits[0]["scores"]["cross_encoder"] == pytest.approx(hits[0]["score"])
    result = CliRunner().invoke(cli, [*arguments, "--cross-encoder", "/nowhere"])
    assert result.exit_code == 2 and "no model at /nowhere" in result.output
