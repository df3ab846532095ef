"""The judgement by the collection's default mode, and what costs nothing beside it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from adapting import documents, write_bag_of_words
from conftest import WordLengths

from searchengine import SearchEngine
from searchengine.adapt import adapting
from searchengine.adapt.adapting import adapt
from searchengine.adapt.material import Sample
from searchengine.adapt.sampled_questions import Kind, Part, Question
from searchengine.adapt.searched import BY_VECTOR, Search, by_multilingual, searched
from searchengine.backends.mode import WEIGHT, Mode
from searchengine.corpus.documents import Document
from searchengine.trainer.training.posthoc import LinearMap

TEXTS = [
    " ".join("x" * n for n in row) for row in np.random.default_rng(0).integers(1, 17, (300, 5))
]
CONFIG = {"prefix": 8, "shortlist": 20, "rotation": "identity", "storage": "float32"}


def asked(text: str, *documents: int) -> Question:
    return Question(Kind.TITLE, text, documents, Part.HELD_OUT)


@pytest.mark.parametrize(
    ("mode", "weight"), [("hybrid", 0.3), ("text", WEIGHT), ("vector", WEIGHT)]
)
def test_it_is_what_the_collections_users_find(tmp_path: Path, mode: str, weight: float) -> None:
    questions = {str(i): TEXTS[i] + " xx xxxx" for i in range(0, 300, 5)}
    with SearchEngine.create(tmp_path / "c", WordLengths(), CONFIG, tokenizer="unicode") as engine:
        engine.set_synonyms([["xxxxxxx", "xxxxxxxx", "xxxxxxxxx"]])
        engine.add(
            [
                {"_id": str(i), "text": text, "title": "xxx" if i % 7 == 0 else ""}
                for i, text in enumerate(TEXTS)
            ]
        )
        engine.delete([str(i) for i in range(0, 300, 9)])
        engine.optimize()
        engine.set_default(mode, weight)
        hits = engine.search_batch(list(questions.values()), 10)
        ranks = [
            [hit.key for hit in found].index(key) if key in {hit.key for hit in found} else None
            for key, found in zip(questions, hits, strict=True)
        ]
        with engine.reading() as snapshot:
            ids = snapshot.store.ids_of(questions)
            found = searched(
                snapshot,
                None,
                [asked(text, ids.get(key, -1)) for key, text in questions.items()],
                WordLengths().encode(list(questions.values())),
                next(iter(snapshot.segments.values())).config,
                Search(engine.default_mode, engine.default_weight, engine.synonyms()),
            )
    assert 0.1 < found[Mode.AUTO].mean() < 0.9
    expected = [0 if rank is None else 1 / np.log2(rank + 2) for rank in ranks]
    assert found[Mode.AUTO] == pytest.approx(expected)
    assert found.keys() == {Mode.AUTO, Mode.VECTOR, Mode.TEXT}
    same = {"hybrid": None, "text": Mode.TEXT, "vector": Mode.VECTOR}[mode]
    for one in (Mode.VECTOR, Mode.TEXT):
        assert np.array_equal(found[one], found[Mode.AUTO]) is (one is same)


def test_the_sample_takes_the_place_of_its_documents(tmp_path: Path) -> None:
    """Words that a document has lost do not find it, and its new passages do."""
    stored = [{"_id": "a", "text": "owls hunt"}, {"_id": "b", "text": "bees dance"}]
    with SearchEngine.create(tmp_path / "c", WordLengths()) as engine:
        engine.add(stored)
        with engine.reading() as snapshot:
            a, b = (snapshot.store.ids_of([key])[key] for key in "ab")
            rows = np.eye(16, dtype=np.float32)[3:5]
            texts = ((Document("a", "night hunt"), ((0, 5), (6, 10))),)
            sample = Sample(rows, np.array([a, a]), (), texts)
            questions = [asked("owls", a), asked("bees", b), asked("night", a)]
            vectors = np.eye(16, dtype=np.float32)[[4, 3, 9]]

            def modes(others: bool, change: LinearMap | None = None) -> list[list[float]]:
                config = next(iter(snapshot.segments.values())).config
                found = searched(
                    snapshot, sample, questions, vectors, config, BY_VECTOR, change, others
                )
                return [np.round(found[mode], 2).tolist() for mode in (Mode.TEXT, Mode.VECTOR)]

            swapped = np.eye(16, dtype=np.float32)[[*range(14), 15, 14]]
            assert modes(True) == [[0, 1, 1], [1, 0.63, modes(True)[1][2]]]
            assert modes(True, LinearMap("swapped", swapped)) == modes(True)
            assert modes(False) == [[0, 0, 1], [1, 0, 1]]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Little training, so that something is left to find."""
    monkeypatch.setattr(adapting, "STRENGTHS", ((20, 3e-3),))
    monkeypatch.setattr(adapting, "RIDGE", 1e6)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_bag_of_words(tmp_path_factory.mktemp("adapt") / "model")


@pytest.fixture
def engine(model: Path, tmp_path: Path) -> Iterator[SearchEngine]:
    """A collection whose words find nearly everything, and whose encoder can be improved."""
    with SearchEngine.create(tmp_path / "c.index", model) as engine:
        engine.add(documents(160))
        yield engine


def rows_of(result: adapting.Adaptation) -> dict[str, Any]:
    return {row.kind: row for row in (*result.rows, *result.others)}


def test_words_alone_that_find_more_are_named(engine: SearchEngine, tmp_path: Path) -> None:
    engine.set_default("vector")
    result = adapt(engine, tmp_path / "out", apply=True)
    rows = rows_of(result)
    assert rows["all"].after > rows["all"].before + 0.1 and rows["all"].comparison.p < 0.01
    words = rows["all, words alone → adapted"]
    assert words.after == rows["all"].after and words.comparison.p < 0.05
    assert words.before > words.after
    assert not result.offered and not (tmp_path / "out").exists()
    assert result.sentence.startswith(
        "Adapting does not help: words alone find more (--mode text): nDCG@10 of"
    )


def test_a_collection_is_judged_by_its_default(engine: SearchEngine, tmp_path: Path) -> None:
    result = adapt(engine, tmp_path / "out")
    rows = rows_of(result)
    meaning, both = rows["all, by meaning alone"], rows["all"]
    assert meaning.after > meaning.before + 0.1 and both.before > meaning.after
    assert rows["all, words alone → adapted"].before == 1 > both.after
    assert not result.offered and not (tmp_path / "out").exists()


def test_a_collection_by_words_is_not_encoded_again(
    engine: SearchEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.set_default("text")
    steps: list[str] = []
    result = adapt(engine, tmp_path / "out", progress=lambda step, *_: steps.append(step))
    assert not result.offered and steps == [] and result.rows == ()
    reason = (
        "Adapting does not help: the collection is searched by words alone (mode text), which no "
        "encoder changes"
    )
    assert result.sentence == reason
    monkeypatch.setattr("searchengine.engine.default_of", lambda *_: (Mode.TEXT, 0.0))
    result = adapt(engine, tmp_path / "out")
    assert result.sentence.startswith(f"{reason}. The encoder does not read these documents; ")


@pytest.mark.parametrize("finds", [0.0, 1.0])
def test_documents_that_the_encoder_does_not_read(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, finds: float
) -> None:
    """The encoder for many languages is measured where it is installed, and named elsewhere."""
    judged: list[int] = []

    def other(sample: Sample, questions: list[Question]) -> np.ndarray:
        judged.append(len(questions))
        return np.full(len(questions), finds)

    monkeypatch.setattr(adapting, "by_multilingual", other)
    monkeypatch.setattr(adapting, "multilingual_installed", lambda: True)
    with SearchEngine.create(tmp_path / "c.index", model, tokenizer="none") as engine:
        engine.add(documents(160))
        assert adapt(engine, tmp_path / "read").offered and judged == []
        monkeypatch.setattr(SearchEngine, "suggested_encoder", lambda *_: "another")
        result = adapt(engine, tmp_path / "out")
        row = rows_of(result)["all, multilingual → adapted"]
        assert (row.before, row.after) == (finds, result.rows[-1].after)
        assert judged == [result.rows[-1].questions]
        assert result.offered is not bool(finds)
        assert ("the encoder multilingual finds more: nDCG@10" in result.sentence) is bool(finds)
        monkeypatch.setattr(adapting, "multilingual_installed", lambda: False)
        result = adapt(engine, tmp_path / "named")
    assert result.offered and len(judged) == 1
    assert ". The encoder does not read these documents; one that does may find more" in (
        result.sentence
    )


def test_the_encoder_for_many_languages_is_searched_as_it_would_be(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    texts = tuple((Document(str(i), text), ((0, len(text)),)) for i, text in enumerate(TEXTS[:40]))
    sample = Sample(np.zeros((40, 16), np.float32), np.arange(100, 140), (), texts)
    monkeypatch.setattr("searchengine.adapt.searched.MULTILINGUAL", WordLengths())
    questions = [asked(TEXTS[3], 103), asked(TEXTS[4], 105), asked("none of these", 7)]
    first, second, none = by_multilingual(sample, questions)
    assert (first, none) == (1, 0) and second < 1


def test_the_choice_sees_what_a_short_shortlist_finds(
    engine: SearchEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shortlists: set[int] = set()
    judge = adapting.judge

    def recorded(*arguments: Any) -> Any:
        shortlists.add(arguments[3].shortlist)
        return judge(*arguments)

    monkeypatch.setattr(adapting, "judge", recorded)
    adapt(engine, tmp_path / "out")
    assert shortlists == {25}
