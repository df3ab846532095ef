"""nDCG@10 before and after a map: as the collection's own search has it, and what is offered."""

from pathlib import Path

import numpy as np
import pytest
from conftest import WordLengths

from searchengine import SearchEngine
from searchengine.adapt.material import Sample
from searchengine.adapt.sampled_questions import Kind, Part, Question
from searchengine.adapt.validation import Corpus, Row, judge, objection, rows_of
from searchengine.indexer.segment import SegmentConfig
from searchengine.measure.retrieval import CONFIGURED, measure, task
from searchengine.trainer.evaluation.ranking import MAIN
from searchengine.trainer.evaluation.significance import Comparison
from searchengine.trainer.training.posthoc import LinearMap

WORDS = [
    " ".join("x" * n for n in row) for row in np.random.default_rng(0).integers(1, 17, (300, 5))
]
CONFIG = {"prefix": 8, "shortlist": 20, "rotation": "identity", "storage": "float32"}


def asked(document: int) -> Question:
    return Question(Kind.TITLE, "", (document,), Part.HELD_OUT)


def test_before_is_what_the_collection_finds(tmp_path: Path) -> None:
    questions = {str(i): WORDS[i] + " xx xxxx" for i in range(0, 300, 5)}
    with SearchEngine.create(tmp_path / "c", WordLengths(), CONFIG) as engine:
        engine.add([{"_id": str(i), "text": text} for i, text in enumerate(WORDS[:200])])
        engine.add([{"_id": str(i), "text": text} for i, text in enumerate(WORDS) if i >= 200])
        engine.delete([str(i) for i in range(0, 300, 7)])
        engine.optimize()
        judged = task(engine, questions, {key: {key: 1} for key in questions})
        (*_, configured) = measure(engine, judged)
        assert configured.name == CONFIGURED
        with engine.reading() as snapshot:
            ids = snapshot.store.ids_of(questions)
            numbers = [ids.get(key, -1) for key in questions]
            scores = judge(
                Corpus.of_collection(snapshot),
                [asked(number) for number in numbers],
                WordLengths().encode(list(questions.values())),
                next(iter(snapshot.segments.values())).config,
            )
    assert 0.1 < scores.mean() < 0.9
    assert scores == pytest.approx(configured.scores[MAIN])


@pytest.mark.parametrize(
    ("weight", "expected"),
    [
        (np.eye(4)[[1, 2, 3, 0]], 1.0),  # both are rotated alike: nothing changes
        (np.diag([0.01, 1, 1, 1]), 1 / np.log2(3)),  # without the first number 2 is nearer
    ],
)
def test_a_map_is_applied_to_questions_and_corpus(weight: np.ndarray, expected: float) -> None:
    rows = np.array([[0.8, 0.6, 0, 0], [0.5, 0, 0.866, 0], [0, 0, 0, 1]], np.float32)
    question = np.array([[0.9, 0, 0.436, 0]], np.float32)
    sample = Sample(rows, np.array([1, 2, 3]), ())
    config = SegmentConfig(prefix=4, rotation="identity", storage="float32")
    # Cosines before: 0.72, 0.83, 0. After the second map: 0, 1, 0.
    answers = [asked(2 if expected == 1 else 1)]
    found = judge(
        Corpus.of_sample(sample),
        answers,
        question,
        config,
        LinearMap("map", weight.astype(np.float32)),
    )
    assert found == pytest.approx([expected])


def test_documents_of_the_sample_take_the_place_of_the_stored_ones(tmp_path: Path) -> None:
    with SearchEngine.create(tmp_path / "c", WordLengths()) as engine:
        engine.add([{"_id": str(i), "text": text} for i, text in enumerate(WORDS[:20])])
        with engine.reading() as snapshot:
            ids = list(snapshot.store.ids_of(["3", "8"]).values())
            rows = np.eye(16, dtype=np.float32)[:3]
            sample = Sample(rows, np.array([ids[0], ids[0], ids[1]]), ())
            corpus = Corpus.of_collection(snapshot, sample)
            blocks = np.concatenate(list(corpus.blocks()))
            whole = Corpus.of_collection(snapshot)
            assert sorted(corpus.documents) == sorted([*whole.documents, ids[0]])
    assert len(blocks) == 21 and np.array_equal(blocks[:3], rows)
    others = [i for i in range(20) if i not in (3, 8)]
    expected = WordLengths().encode([WORDS[i] for i in others])
    assert blocks[3:] == pytest.approx(expected, abs=1e-3)  # stored as float16


def row(kind: str, difference: float, low: float, p: float) -> Row:
    return Row(kind, 100, 0.5, 0.5 + difference, Comparison(difference, low, 2 * difference, p))


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([row("title", 0.1, 0.06, 0.001), row("all", 0.1, 0.06, 0.001)], None),
        ([row("title", 0.1, 0.06, 0.02), row("all", 0.1, 0.06, 0.02)], "not beyond doubt"),
        ([row("title", 0.04, 0.019, 0.001), row("all", 0.04, 0.019, 0.001)], "not beyond doubt"),
        ([row("title", -0.1, -0.06, 0.04), row("all", 0.1, 0.06, 0.001)], "title lost"),
        ([row("title", -0.1, -0.06, 0.06), row("all", 0.1, 0.06, 0.001)], None),
        ([row("title", -0.1, -0.2, 0.001), row("all", -0.1, -0.2, 0.001)], "title lost"),
    ],
)
def test_what_is_offered(rows: list[Row], expected: str | None) -> None:
    reason = objection(rows)
    assert reason is None if expected is None else expected in str(reason)


def test_a_row_for_each_kind_and_one_for_all() -> None:
    kinds = [Kind.TITLE, Kind.SENTENCE, Kind.TITLE]
    questions = [Question(kind, "", (1,), Part.HELD_OUT) for kind in kinds]
    before, after = np.array([0.0, 0.5, 0.5]), np.array([1.0, 0.25, 0.5])
    found = {
        row.kind: (row.questions, row.before, row.after)
        for row in rows_of(questions, before, after)
    }
    assert found == {
        "title": (2, 0.25, 0.75),
        "sentence": (1, 0.5, 0.25),
        "all": (3, 1 / 3, 7 / 12),
    }
