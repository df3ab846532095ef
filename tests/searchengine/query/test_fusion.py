"""The mode hybrid: what its constants do to the order."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from searchengine import SearchEngine
from searchengine.backends.contract import EXPECTED
from searchengine.backends.mode import WEIGHT
from searchengine.encoders.protocol import TextEncoder
from searchengine.query.ranking import WINDOW, fusion_of

WORDS = ["whale", "sleep", "ocean", "bread", "yeast", "owl", "night", "tide"]


class Narrow(TextEncoder):
    """Vectors in a narrow cone, as of E5: the cosine of unrelated texts is `base`."""

    dim, fingerprint = 24, "narrow"

    def __init__(self, base: float = 0.8) -> None:
        self.base = base

    def encode(self, texts: Any, *, role: str | None = None, **_: Any) -> np.ndarray:
        seeds = [sum(map(ord, text)) * 31 + len(text) for text in texts]
        rows = np.stack([np.random.default_rng(n).standard_normal(self.dim - 1) for n in seeds])
        rows *= np.sqrt(1 - self.base) / np.linalg.norm(rows, axis=1, keepdims=True)
        shared = np.full((len(rows), 1), np.sqrt(self.base))
        return np.hstack([shared, rows]).astype(np.float32)


def texts(count: int) -> list[str]:
    rng = np.random.default_rng(3)
    return [f"{' '.join(rng.choice(WORDS, rng.integers(1, 9)))} {i}" for i in range(count)]


def filled(path: Path, base: float, count: int, **config: Any) -> SearchEngine:
    engine = SearchEngine.create(path, Narrow(base), config, tokenizer="stem:en")  # type: ignore[arg-type]
    engine.add({"_id": str(i), "text": text} for i, text in enumerate(texts(count)))
    return engine


# ---------------------------------------------------------------------------------------- cosines


def test_equal_documents_have_equal_scores_whatever_was_added_between(tmp_path: Path) -> None:
    with filled(tmp_path / "a", 0.5, 300) as one, filled(tmp_path / "b", 0.5, 99) as two:
        two.add({"_id": str(i), "text": f"owl {i}"} for i in (*range(0, 99, 3), *range(300, 2300)))
        two.add({"_id": str(i), "text": text} for i, text in enumerate(texts(300)))
        two.delete(map(str, range(300, 2300)))
        for question in ("whale sleep", "bread yeast tide", "night"):
            assert one.search(question, 20) == two.search(question, 20)


def test_cosines_that_begin_at_four_fifths_order_as_those_that_begin_at_zero(
    tmp_path: Path,
) -> None:
    """The same vectors in a narrow cone: a fusion of plain cosines would leave words to decide."""
    orders = []
    for base in (0.0, 0.8):
        with filled(tmp_path / str(base), base, 300) as engine:
            hits = engine.search("whale sleep night", 20)
            assert max(hit.score for hit in hits) <= 1
            orders.append([hit.key for hit in hits])
            for hit in hits:  # the raw cosine
                low = base - (1 - base)
                assert low < hit.scores["vector"] <= 1
            with engine.collection.reading() as snapshot:
                scored = snapshot.by_words("whale sleep night", WINDOW)
                vector = Narrow(base).encode(["whale sleep night"])[0]
                scoring = fusion_of(snapshot, vector, scored)
                mean, center = snapshot.unrelated
                farther = Narrow(base / 2).encode(["whale sleep night"])[0]
                expected = max(0.0, min(mean, 0.35 * mean + 0.65 * float(center @ farther)))
                assert fusion_of(snapshot, farther, scored).unrelated == pytest.approx(expected)
            parts = [(hit.scores["vector"], hit.scores.get("text", 0.0)) for hit in hits]
            scores = [scoring.score(*each) for each in parts]
            assert [hit.score for hit in hits] == pytest.approx(scores)
            above = engine.search("whale sleep night", 300, min_score=hits[9].score)
            assert above == hits[:10]
    assert len({*orders[0][:10]} & {*orders[1][:10]}) >= 9


def test_little_of_a_long_question_does_not_have_the_full_share(tmp_path: Path) -> None:
    """Whoever has one word of eight is not as sure as one who has all of a short question."""
    with SearchEngine.create(tmp_path / "c", Narrow(0.0), tokenizer="stem:en") as engine:  # type: ignore[arg-type]
        engine.add({"_id": word, "text": f"{word} {i}"} for i, word in enumerate(WORDS))
        shares = {}
        for question in ("whale", " ".join(WORDS)):
            hits = engine.search(question)
            hit = next(hit for hit in hits if hit.key == "whale")
            with engine.collection.reading() as snapshot:
                scored = snapshot.by_words(question, WINDOW)
                m = fusion_of(snapshot, Narrow(0.0).encode([question])[0], scored).unrelated
            cosine = WEIGHT * max(0, hit.scores["vector"] - m) / (1 - m)
            shares[question] = (hit.score - cosine) / (1 - WEIGHT)
        assert 0.4 < shares["whale"] <= 1
        assert shares[" ".join(WORDS)] == pytest.approx(shares["whale"] / EXPECTED)


# ------------------------------------------------------------------------------ similar documents


@pytest.mark.parametrize("base", [0.9, 0.97])
@pytest.mark.parametrize("letters", ["AB-1{:03}", "E{:03}", "request 7f{:03}c", "version {}"])
def test_the_only_document_with_a_word_comes_first_among_similar_ones(
    tmp_path: Path, base: float, letters: str
) -> None:
    """Their cosines differ by chance, and the question resembles none of them."""
    names = [letters.format(n) for n in range(200)]
    with SearchEngine.create(tmp_path / "c", Narrow(base), tokenizer="stem:en") as engine:  # type: ignore[arg-type]
        engine.add({"_id": name, "text": f"Hex bolt {name}, stainless steel"} for name in names)
        vectors = Narrow(base - 0.3).encode(names)
        for name, vector in zip(names[::9], vectors[::9], strict=True):
            engine.encoder.load().encode = lambda *_, vector=vector, **__: vector[None]  # type: ignore[method-assign]
            hits = engine.search(f"bolt {name}", 200, mode="hybrid")
            assert hits[0].key == name
            scores = [hit.score for hit in hits]
            assert 1 >= scores[0] > scores[1] and scores[-1] >= 0
            assert scores == sorted(scores, reverse=True)


# ----------------------------------------------------------------------------------- one order


@pytest.mark.parametrize("base", [0.0, 0.8])
def test_the_ends_of_the_weight_are_the_modes(tmp_path: Path, base: float) -> None:
    question = "whale sleep krill"
    with filled(tmp_path / "c", base, 700, prefix=4, shortlist=15) as engine:
        engine.add([{"_id": f"twin{i}", "text": text} for i, text in enumerate(texts(60))])
        for weight, mode, options in (
            (1.0, "vector", {"k": 760, "shortlist": 10_000}),
            (0.0, "text", {"k": WINDOW}),
        ):
            engine.set_default(weight=weight)
            both = engine.search(question, mode="hybrid", **options)  # type: ignore[arg-type]
            alone = engine.search(question, mode=mode, **options)  # type: ignore[arg-type]
            name = "vector" if weight else "text"
            assert [hit.scores[name] for hit in both] == pytest.approx(
                [hit.score for hit in alone], abs=1e-6
            )
