"""Mode and weight chosen by judged questions."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from searchengine import SearchEngine
from searchengine.backends.mode import WEIGHT, Mode
from searchengine.encoders.protocol import TextEncoder
from searchengine.errors import QueryError
from searchengine.measure import learning as fusing
from searchengine.measure.judgements import Qrels
from searchengine.measure.learning import FusionTuning, tune_fusion
from searchengine.measure.metrics import per_question

COUNT = 120


class Numbers(TextEncoder):
    """The vector of a text is that of its number, "n17", and as much of all its letters."""

    dim, fingerprint = 32, "numbers"

    def encode(self, texts: Any, *, role: str | None = None, **_: Any) -> np.ndarray:
        stacked = np.stack([self.vector(text) for text in texts])
        return (stacked / np.linalg.norm(stacked, axis=1, keepdims=True)).astype(np.float32)

    @staticmethod
    def vector(text: str) -> np.ndarray:
        seeds = [10**6 + sum(ord(c) * 31**i for i, c in enumerate(text))]
        seeds += [int(each[1:]) for each in text.split() if each[0] == "n" and each[1:].isdigit()]
        return np.sum([np.random.default_rng(n).standard_normal(32) for n in seeds], axis=0)


def word(i: int) -> str:
    return "".join(chr(97 + i // 26**place % 26) for place in range(3)) + "x"


def by_words() -> tuple[list[dict[str, str]], dict[str, str], Qrels]:
    """A question has two of the words of its document, and the vector of another one."""
    words = [word(i) for i in range(40)]
    texts = [
        f"{words[i % 40]} {words[(i * 7 + i // 40) % 40]} {words[(i * 3 + 1) % 40]}"
        for i in range(COUNT)
    ]
    documents = [{"_id": str(i), "title": f"n{i}", "text": text} for i, text in enumerate(texts)]
    questions = {
        f"q{i}": f"n0{(i + 10) % COUNT} {' '.join(text.split()[:2])}"
        for i, text in enumerate(texts)
    }
    return documents, questions, {f"q{i}": {str(i): 1} for i in range(COUNT)}


def by_vectors() -> tuple[list[dict[str, str]], dict[str, str], Qrels]:
    """A question has the vector of its document, and the words of another one."""
    documents = [{"_id": str(i), "text": f"n{i} {word(i)} {word(i + 1)}"} for i in range(COUNT)]
    questions = {
        f"q{i}": f"n{i} {word((i + 10) % COUNT)} {word((i + 11) % COUNT)}" for i in range(COUNT)
    }
    for each in documents:  # the number is no word that both have
        each["title"], each["text"] = each["text"].split()[0], each["text"].split(" ", 1)[1]
    questions = {key: f"{text.replace('n', 'n0', 1)}" for key, text in questions.items()}
    return documents, questions, {f"q{i}": {str(i): 1} for i in range(COUNT)}


def by_both() -> tuple[list[dict[str, str]], dict[str, str], Qrels]:
    """A question has the words and the vector of its document."""
    documents, _, qrels = by_vectors()
    questions = {f"q{each['_id']}": f"{each['title']} {each['text']}" for each in documents}
    return documents, questions, qrels


def tuned(path: Path, kind: Any, **options: Any) -> tuple[FusionTuning, str, float]:
    documents, questions, qrels = kind()
    with SearchEngine.create(path, Numbers(), tokenizer="unicode") as engine:  # type: ignore[arg-type]
        engine.add(documents)
        tuning = tune_fusion(engine, questions, qrels, **options)
        again = tune_fusion(engine, dict(reversed(questions.items())), qrels)  # the same halves
        assert not again.stored or tuning.weight != again.weight
        return tuning, engine.stats().mode, engine.stats().weight


def test_vectors_that_mislead_leave_the_words(tmp_path: Path) -> None:
    steps: list[Any] = []
    tuning, mode, weight = tuned(tmp_path / "c", by_words, progress=lambda *s: steps.append(s))
    assert tuning.stored and tuning.weight <= 0.3
    assert (mode, weight) == (tuning.mode, WEIGHT if mode == "text" else tuning.weight)
    assert (tuning.before_mode, tuning.before_weight) == (Mode.HYBRID, WEIGHT)
    assert tuning.held_out == 60
    held = tuning.ndcg_10
    assert held["vector"] < held["default"] < held["chosen"] and held["text"] <= held["chosen"]
    assert tuning.comparison.difference == pytest.approx(held["chosen"] - held["default"])
    assert tuning.comparison.p < 0.01
    assert steps == [("Ranking", COUNT, COUNT)]


def test_words_that_mislead_leave_the_vectors(tmp_path: Path) -> None:
    tuning, mode, _ = tuned(tmp_path / "c", by_vectors)
    assert tuning.stored and tuning.weight > WEIGHT and mode == tuning.mode
    held = tuning.ndcg_10
    assert held["text"] < 0.1 < held["default"] < held["chosen"]
    assert tuning.comparison.difference == pytest.approx(held["chosen"] - held["default"])


def test_the_ends_of_the_curve_are_the_modes(tmp_path: Path) -> None:
    """The two rankings that are computed once are those of searches."""
    documents, questions, qrels = by_words()
    with SearchEngine.create(tmp_path / "c", Numbers(), tokenizer="unicode") as engine:  # type: ignore[arg-type]
        engine.add(documents)
        judged = fusing.task(engine, questions, qrels)
        values = fusing._values(engine, judged, [0, 0.3, 1], fusing.silent)
        for weight, mode in ((0, "text"), (0.3, "hybrid"), (1, "vector")):
            engine.set_default("hybrid", 0.3)
            hits = engine.search_batch(list(questions.values()), 10, mode=mode)
            runs = {
                key: {hit.key: -float(rank) for rank, hit in enumerate(each)}
                for key, each in zip(questions, hits, strict=True)
            }
            expected = per_question(runs, [*questions], qrels)["ndcg@10"]
            np.testing.assert_array_equal(values[weight], expected)


def test_a_weight_that_is_not_better_on_held_out_questions_is_not_stored(tmp_path: Path) -> None:
    """Words mislead the half that chooses, and vectors the other half."""
    documents, questions, qrels = by_vectors()
    others, asked, _ = by_words()
    documents += [{**each, "_id": f"w{each['_id']}"} for each in others]
    for i in np.random.default_rng(0).permutation(np.argsort([*questions], kind="stable"))[60:]:
        questions[f"q{i}"], qrels[f"q{i}"] = asked[f"q{i}"], {f"w{i}": 1}
    with SearchEngine.create(tmp_path / "c", Numbers(), tokenizer="unicode") as engine:  # type: ignore[arg-type]
        engine.add(documents)
        tuning = tune_fusion(engine, questions, qrels)
        assert tuning.weight > WEIGHT and tuning.comparison.difference < 0
        assert not tuning.stored and engine.stats().weight == WEIGHT


def test_of_equal_weights_the_present_one_is_kept(tmp_path: Path) -> None:
    tuning, mode, weight = tuned(tmp_path / "c", by_both)
    assert set(tuning.ndcg_10.values()) == {1.0}
    assert (mode, weight, tuning.stored) == (Mode.HYBRID, WEIGHT, False)


def test_without_words_there_is_nothing_to_weigh(tmp_path: Path) -> None:
    documents, questions, qrels = by_words()
    with SearchEngine.create(tmp_path / "d", Numbers(), tokenizer="none") as engine:  # type: ignore[arg-type]
        engine.add(documents)
        with pytest.raises(QueryError, match="no index of words, so there is nothing to weigh"):
            tune_fusion(engine, questions, qrels)
