"""Encoders compared on the same questions, against collections that are measured one by one."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from conftest import WordLengths

from searchengine import SearchEngine
from searchengine.corpus.documents import Document
from searchengine.errors import QueryError
from searchengine.measure.comparison import RetrievalRow, Setting, table
from searchengine.measure.encoder_comparison import by_encoders, conclusion
from searchengine.measure.retrieval import measure, task
from searchengine.trainer.evaluation.ranking import METRICS
from searchengine.trainer.evaluation.significance import Comparison, compare

RNG = np.random.default_rng(0)
TEXTS = [" ".join("x" * n for n in row) for row in RNG.integers(1, 17, (60, 4))]
DOCUMENTS = [Document(str(i), text) for i, text in enumerate(TEXTS)]
QUERIES = {f"q{i}": f"{TEXTS[i]} {'x' * 16}" for i in range(30)}
QRELS = {f"q{i}": {str(i): 1} for i in range(30)}


class Short(WordLengths):
    """Knows words of three letters or fewer from longer ones, and no more: it is much worse."""

    def __init__(self) -> None:
        super().__init__(4, "short")


def documents() -> Iterable[Document]:
    return iter(DOCUMENTS)


def test_each_encoder_ranks_as_its_collection_does(tmp_path: Path) -> None:
    encoders = {"wide": WordLengths(), "short": Short()}
    done: list[tuple[str, int]] = []
    with by_encoders(
        encoders, documents, QUERIES, QRELS, progress=lambda name, n: done.append((name, n))
    ) as (engine, judged, settings):
        assert engine.get("3").text == TEXTS[3]
        folder = Path(engine.collection.path)
    assert not folder.exists() and judged.keys == list(QUERIES)
    assert sum(n for name, n in done if name == "short") == len(DOCUMENTS)
    for (name, encoder), setting in zip(encoders.items(), settings, strict=True):
        with SearchEngine.create(tmp_path / name, encoder) as own:
            own.add(DOCUMENTS)
            alone = next(measure(own, task(own, QUERIES, QRELS), modes=["vector"]))
        assert (setting.name, setting.dim) == (name, encoder.dim)
        assert setting.run == alone.run
    wide, short = settings
    row = table(settings)[1]
    expected = compare(short.scores["ndcg@10"], wide.scores["ndcg@10"])
    assert row.comparison == expected and expected.high < 0
    lost = f"{-expected.difference:.3f} ({-expected.high:.3f}–{-expected.low:.3f})"
    assert conclusion(row) == f"short is worse than wide by {lost}, p < 0.001"
    assert conclusion(table(settings)[0]) is None


def setting(name: str, *scores: float) -> Setting:
    return Setting(name, {}, dict.fromkeys(METRICS, np.array(scores)))


def second(rows: list[RetrievalRow]) -> str | None:
    return conclusion(rows[1])


def test_conclusions_by_hand() -> None:
    """Five questions, all better: 2 of 32 swaps are as extreme, p = 0.0625; six: 2 of 64."""
    base, better = setting("a", *[0.5] * 5), setting("b", *[0.75] * 5)
    assert second(table([base, better])) == (
        "b and a: no difference beyond chance, +0.250, p = 0.062"
    )
    base, better = setting("a", *[0.5] * 6), setting("b", *[0.75] * 6)
    assert second(table([base, better])) == "b is better than a by 0.250, p = 0.031"
    assert second(table([better, base])) == "a is worse than b by 0.250, p = 0.031"
    base, better = setting("a", *[0.5] * 10), setting("b", *[0.75] * 10)  # enough for intervals
    assert second(table([better, base])) == "a is worse than b by 0.250 (0.250–0.250), p = 0.002"
    row = replace(table([base, better])[1], p=0.01, comparison=Comparison(0.1, -0.01, 0.2, 0.01))
    assert conclusion(row) == (
        "b and a: no difference beyond chance, +0.100 (-0.010 to +0.200), p = 0.010"
    )
    same = second(table([base, setting("b", *[0.5] * 10)]))
    assert same == "b and a: no difference beyond chance, +0.000 (+0.000 to +0.000), p = 1.000"


def test_p_values_of_several_encoders_are_corrected() -> None:
    """Holm: of two comparisons with p = 2/64, both count as 4/64, which is above 0.05."""
    rows = table([setting(n, *[value] * 6) for n, value in (("a", 0.5), ("b", 0.75), ("c", 1))])
    assert [row.p for row in rows[1:]] == [pytest.approx(4 / 64)] * 2
    assert all("no difference beyond chance" in str(conclusion(row)) for row in rows[1:])


def test_one_encoder_under_two_names() -> None:
    encoders = {"one": WordLengths(), "two": WordLengths()}
    with pytest.raises(QueryError, match="one and two are the same encoder; name two"):
        with by_encoders(encoders, documents, QUERIES, QRELS):
            pass
    assert not any(encoder.calls for encoder in encoders.values())
