"""Pages: however an answer is cut, each document comes once, and where it came."""

from typing import Any

import numpy as np
import pytest

from searchengine import SearchEngine
from searchengine.encoders.protocol import TextEncoder

COUNT, DIM = 1200, 24
WORDS = ["whale", "sleep", "ocean", "bread", "yeast", "owl", "night", "tide", "krill", "reef"]
QUESTION = "whale sleep at night"


class Row(TextEncoder):
    """A text has the vector that its words draw: equal texts have equal ones, others anything."""

    dim, fingerprint = DIM, "drawn"

    def encode(self, texts: Any, *, role: str | None = None, **_: Any) -> np.ndarray:
        seeds = [sum(map(ord, text)) * 31 + len(text) for text in texts]
        rows = np.stack([np.random.default_rng(seed).standard_normal(DIM) for seed in seeds])
        return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def documents() -> list[dict[str, Any]]:
    """Texts of common and rare words; one in ten is the text of another one."""
    rng = np.random.default_rng(3)
    share = 1 / np.arange(1, len(WORDS) + 1)
    chosen = [rng.choice(WORDS, rng.integers(1, 9), p=share / share.sum()) for _ in range(COUNT)]
    texts = [f"{' '.join(words)} {i if i % 3 else ''}" for i, words in enumerate(chosen)]
    texts[COUNT - COUNT // 10 :] = texts[: COUNT // 10]
    return [{"_id": str(i), "text": text, "n": i, "g": i % 400} for i, text in enumerate(texts)]


CONFIGS: dict[str, dict[str, Any]] = {
    "exact": {"shortlist": 10_000},
    "flat": {"prefix": 4, "shortlist": 15},
    "hnsw": {"prefix": 4, "shortlist": 15, "structure": "hnsw"},
}
"""The shortlist holds all rows, or misses many of the nearest."""


def created(config: str, folders: pytest.TempPathFactory) -> SearchEngine:
    """An empty collection of one of CONFIGS, for `documents`."""
    path = folders.mktemp(config) / "c"
    return SearchEngine.create(path, Row(), CONFIGS[config], tokenizer="stem:en")  # type: ignore[arg-type]


@pytest.fixture(scope="module", params=["exact", "flat", "hnsw"])
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    with created(request.param, tmp_path_factory) as engine:
        engine.add(documents()[:1100])
        engine.add(documents()[1100:])
        engine.add([{**each, "n": -1} for each in documents()[:7]])  # change nothing but metadata
        engine.delete(["11", "500"])
        yield engine


def pages(engine: SearchEngine, k: int, size: int, **options: Any) -> list[tuple[str, float]]:
    """The hits of all pages up to the k-th."""
    return [
        (hit.key, hit.score)
        for offset in range(0, k, size)
        for hit in engine.search(QUESTION, min(size, k - offset), offset=offset, **options)
    ]


def whole(engine: SearchEngine, k: int, **options: Any) -> list[tuple[str, float]]:
    """The hits of one answer."""
    return [(hit.key, hit.score) for hit in engine.search(QUESTION, k, **options)]


@pytest.mark.parametrize("mode", ["vector", "text", "hybrid"])
@pytest.mark.parametrize("where", [None, "n >= 300"])
def test_pages_are_the_parts_of_one_answer(
    engine: SearchEngine, mode: str, where: str | None
) -> None:
    hits = whole(engine, 1000, mode=mode, where=where)
    assert pages(engine, 1000, 97, mode=mode, where=where) == hits
    scores = [score for _, score in hits]
    assert mode == "vector" or scores == sorted(scores, reverse=True)
    keys = [key for key, _ in hits]
    matching = list(engine.keys(where))
    assert len(keys) == len({*keys}) and {*keys} <= {*matching}
    if mode != "text":
        assert len(keys) == min(1000, len(matching))
        assert {key for key, _ in whole(engine, 5000, mode=mode, where=where)} == {*matching}
    for k in (1, 3, 10, 11, 100, 101, 333):
        assert whole(engine, k, mode=mode, where=where) == hits[:k]
