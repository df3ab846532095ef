"""Why a document is found or not: four ranks, the verdict of the filter, and a sentence."""

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from searchengine import SearchEngine
from searchengine.encoders.protocol import TextEncoder
from searchengine.errors import FilterError, QueryError

ROWS, DIM, PREFIX = 1500, 24, 4
WORDS = ["whale", "sleep", "ocean", "bread", "yeast", "owl", "night", "tide"]
QUESTION = "whale sleep at night"


def unit(rows: Any) -> np.ndarray[Any, Any]:
    return rows / np.linalg.norm(rows, axis=-1, keepdims=True)  # type: ignore[no-any-return]


class Drawn(TextEncoder):
    """A text has the vector that its letters draw."""

    dim, fingerprint = DIM, "drawn"

    def encode(self, texts: Any, *, role: str | None = None, **_: Any) -> np.ndarray[Any, Any]:
        seeds = [np.random.default_rng(list(text.encode())) for text in texts]
        return unit(np.stack([rng.standard_normal(DIM) for rng in seeds])).astype(np.float32)


@pytest.fixture(scope="module", params=["flat", "hnsw"])
def engine(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SearchEngine]:
    config = {"prefix": PREFIX, "rotation": "identity", "shortlist": 40}
    if request.param == "hnsw":
        config |= {"structure": "hnsw", "code": "int8"}
    rng = np.random.default_rng(0)
    documents = [
        {"_id": f"d{n}", "text": f"{' '.join(rng.choice(WORDS, 3))} {n}", "n": n, "g": n % 300}
        for n in range(ROWS)
    ]
    folder = tmp_path_factory.mktemp(request.param) / "c"
    with SearchEngine.create(folder, Drawn(), config, tokenizer="stem:en") as engine:  # type: ignore[arg-type]
        engine.add(documents)
        yield engine


def test_the_ranks_are_those_of_the_searches(engine: SearchEngine) -> None:
    """By numpy and by the searches in each mode."""
    documents = [*engine.documents()]
    keys = [document.key for document in documents]
    rows = Drawn().encode([document.text for document in documents])
    query = Drawn().encode([QUESTION])[0]
    words = [hit.key for hit in engine.search(QUESTION, ROWS, mode="text")]
    order = [hit.key for hit in engine.search(QUESTION, ROWS, mode="hybrid")]
    for key in ("d3", "d700", order[0], order[9], order[10]):
        row = keys.index(key)
        by_prefix = unit(rows[:, :PREFIX]) @ unit(query[:PREFIX])
        why = engine.explain(QUESTION, key, mode="hybrid")
        assert why.vector == pytest.approx(1 + int((rows @ query > rows[row] @ query).sum()), abs=2)
        nearer = int((by_prefix > by_prefix[row]).sum())
        assert why.shortlist == pytest.approx(1 + nearer, abs=9)  # codes of 8 bits swap some
        assert why.words == (1 + words.index(key) if key in words else None)
        assert why.fused == 1 + order.index(key)
        assert why.rank == (why.fused if why.fused <= 10 else None)
        assert why.as_dict()["text"] == str(why)


def test_any_search_and_any_document(engine: SearchEngine) -> None:
    """Found is what the search finds, at its rank."""
    chance = random.Random(5)
    for _ in range(40):
        question = chance.choice([QUESTION, "bread", '+"owl night" tide', "zzz"])
        options: dict[str, Any] = {"mode": chance.choice(["vector", "text", "hybrid"])}
        options["k"] = chance.choice([1, 10, 40])
        for name, values in {
            "where": ["n < 700"],
            "group_by": ["g"],
            "offset": [2, 10],
            "min_score": [0.1, 0.5],
            "shortlist": [12, 200],
            "rerank": [lambda question, hits: [hit.metadata["n"] for hit in hits]],
        }.items():
            if chance.random() < 0.25:
                options[name] = chance.choice(values)
        if options["mode"] == "vector" and chance.random() < 0.2:
            options |= {"exact": True, "shortlist": None}
        hits = [hit.key for hit in engine.search(question, **options)]
        for key in [*hits[-1:], f"d{chance.randrange(ROWS)}", "d900"]:
            why = engine.explain(question, key, **options)
            assert why.found == (key in hits), (question, options, why)
            n = engine.get(key).metadata["n"]  # type: ignore[union-attr]
            assert why.matches == (n < 700 if "where" in options else None)
            if why.found:
                assert why.rank == hits.index(key) + 1 + options.get("offset", 0)
                assert str(why).startswith(f"Found at rank {why.rank:,}")
            else:
                assert str(why).startswith("Not found: ")


def test_a_question_as_a_vector(engine: SearchEngine) -> None:
    vector = engine.encode([QUESTION])[0]
    assert engine.explain(vector, "d3") == engine.explain(QUESTION, "d3", mode="vector")
    assert engine.explain(vector, "d3", 10**20).found
    with pytest.raises(QueryError, match="no document has the key 'none'"):
        engine.explain(QUESTION, "none")
    with pytest.raises(QueryError, match="mode text needs questions"):
        engine.explain(vector, "d3", mode="text")
    for key in (1.5, "a\0"):
        with pytest.raises(QueryError, match="a key must be an integer or"):
            engine.explain(QUESTION, key)  # type: ignore[arg-type]
    with pytest.raises(QueryError, match="the query is empty"):
        engine.explain(" ", "d3")
    with pytest.raises(FilterError):
        engine.explain(QUESTION, "d3", where="year >")
