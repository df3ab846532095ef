"""What a bench recommends: the decision, its ties, its order, and the names of its points."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from bench_results import exact, results, row, times
from hypothesis import given
from hypothesis import strategies as st

from searchengine.errors import QueryError
from searchengine.measure.bench_tables import answer_rows
from searchengine.measure.formatting import fraction, plain, recall_of, short, size, spread_of
from searchengine.measure.recommend import command, faster, point_at, recommend, sentence
from searchengine.measure.results import Kind, Row, Spread

ENCODING = Spread(4.0, 4.0, 4.0)  # milliseconds a question takes besides


def close(name: str, ms: float, recall: float, hot_bytes: int) -> Row:
    """A row whose recall is known to half a percent."""
    low, high = recall - 0.004, min(1.0, recall + 0.004)
    rounds = times(ms)
    return row(name, rounds, recall=recall, recall_low=low, recall_high=high, hot_bytes=hot_bytes)


FELT = (
    close("fast", 0.1, 0.955, 1),
    close("good", 0.2, 0.99, 300),
    close("light", 0.25, 0.988, 200),
    close("slow", 0.9, 0.999, 1),
)
LOSSY = row("lossy", times(0.1), ndcg=0.632, ndcg_loss=(0.004, 0.02), hot_bytes=1)
SOUND = row("sound", times(0.2), ndcg=0.645, ndcg_loss=(-0.001, 0.003))
JUDGED = exact(times(10), ndcg=0.646, ndcg_loss=(0.0, 0.0))
MANY = exact(times(10))
LOW = {"recall": 0.9, "recall_low": 0.88, "recall_high": 0.92}


@pytest.mark.parametrize(
    ("rows", "options", "name", "tied"),
    [
        # The fastest that holds the target; what finds too little does not.
        ((MANY, row("a", times(2)), row("b", times(1))), {}, "b", ()),
        (
            (MANY, row("a", times(1)), row("b", times(0.5), recall=0.951, recall_low=0.94)),
            {},
            "a",
            (),
        ),
        # More found than by one that holds the target holds it, although unsure.
        (
            (exact(), row("a", times(1)), row("b", times(0.5), recall_low=0.94, recall=0.98)),
            {},
            "b",
            (),
        ),
        ((exact(), row("b", times(0.5), recall_low=0.94, recall=0.98)), {}, "exact", ()),
        # What feels as fast beside 4 ms of encoding ties, and recall decides.
        ((MANY, *FELT), {"overhead_ms": ENCODING}, "good", ("fast", "light")),
        ((MANY, *FELT), {}, "fast", ()),
        # A loss of nDCG beyond doubt is not worth a tenth of a millisecond.
        ((JUDGED, LOSSY, SOUND), {"overhead_ms": ENCODING}, "sound", ("lossy",)),
        ((JUDGED, LOSSY, SOUND), {}, "lossy", ()),
        ((JUDGED, LOSSY), {"overhead_ms": ENCODING}, "lossy", ()),
        # A scan that is as fast, or feels so.
        ((exact(times(0.2)), LOSSY), {"overhead_ms": ENCODING}, "exact", ()),
        ((exact(times(1.0)), row("a", times(0.98)), row("b", times(1.2))), {}, "exact", ()),
        # A point that another beats is no tie, though it ties with the first.
        (
            (
                MANY,
                row("noisy", (0.5, 0.5, 0.5, 1.1, 1.1), hot_bytes=3),
                row("steady", (1.0,) * 5, hot_bytes=2, recall=0.975),
                row("beaten", (1.07,) * 5, hot_bytes=1),
            ),
            {},
            "steady",
            ("noisy",),
        ),
        # Rounds of both count alone: later ones at a busier time do not make a finalist slower.
        (
            (
                exact(),
                row("other", (1.2, 1.2, 1.2)),
                row(
                    "finalist",
                    (1.0, 1.0, 1.0, 3.0, 3.0, 3.0, 3.0),
                    p50_ms=Spread(1.0, 1.0, 1.0),
                    hot_bytes=2**21,
                ),
            ),
            {},
            "finalist",
            (),
        ),
        # As SciFact was: better quality decides, though it needs more memory.
        (
            (
                exact(times(10), ndcg=0.646),
                row("ivf", times(0.236), recall=0.9953, ndcg=0.6454, hot_bytes=2**20),
                row("hnsw", times(0.094), recall=0.996, ndcg=0.6488, hot_bytes=2**23),
            ),
            {"overhead_ms": ENCODING},
            "hnsw",
            ("ivf",),
        ),
        # A collection that searches by one of the best stays.
        (
            (MANY, row("a", times(1.0), recall=0.97), row("b", times(1.01), recall=0.98)),
            {},
            "b",
            ("a",),
        ),
        (
            (MANY, row("a", times(1.0), recall=0.97), row("b", times(1.01), recall=0.98)),
            {"now": "a"},
            "a",
            ("b",),
        ),
        # Nothing holds.
        ((exact(), row("a", **LOW)), {}, "exact", ()),
        ((exact(),), {}, "exact", ()),
        ((row("a", **LOW),), {}, None, ()),
        ((), {}, None, ()),
    ],
)
def test_what_is_recommended(
    rows: tuple[Row, ...], options: dict[str, Any], name: str | None, tied: tuple[str, ...]
) -> None:
    for order in (rows, rows[::-1]):
        found = recommend(results(*order, **options))
        assert (found.name, {*found.tied}) == (name, {*tied}) and found.why


def test_among_ties_the_least_memory_then_what_finds_most() -> None:
    rows = [
        row("fastest", times(1.0), hot_bytes=300, recall=0.968),
        row("less", times(1.0), hot_bytes=100, recall=0.955, recall_high=0.9599),
        row("→ 100", times(1.02), hot_bytes=218, recall=0.97),
        row("→ 20", times(1.01), hot_bytes=200, recall=0.969),
        row("small and slow", times(1.06), hot_bytes=1),
    ]
    found = recommend(results(exact(times(10)), *rows))
    assert found.name == "→ 100"  # 218 bytes are as little as 200
    assert set(found.tied) == {"fastest", "less", "→ 20"}
    assert recommend(results(exact(times(10)), *rows[::-1])).name == "→ 100"


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ({"hot_bytes": 100, "rounds": times(0.99)}, {"hot_bytes": 111, "recall": 0.99}),
        ({"recall": 0.975}, {"rounds": times(0.99)}),
        ({"rounds": times(0.99), "ndcg": 0.6}, {"ndcg": 0.61}),
    ],
)
def test_criteria_for_ties(one: dict[str, Any], two: dict[str, Any]) -> None:
    """Memory, recall, median, one after the other; never the name before."""
    shared = {"rounds": times(1.0), "hot_bytes": 200}
    sample = results(exact(times(10)), row("b", **shared | one), row("a", **shared | two))
    assert recommend(sample).name == "b" and recommend(sample).tied == ("a",)


def test_a_point_outside_the_finals_is_no_tie() -> None:
    first = row("first", times(1.0) * 3, hot_bytes=2**30)
    other = row("other", (1.2, 1.3, 0.9, 1.2, 0.9), hot_bytes=1)  # two of five rounds were noisy
    assert not faster(first, other)
    found = recommend(results(exact(times(10) * 3), other, first))
    assert (found.name, found.tied) == ("first", ())
    short_of_one = row("short of one", (times(1.01) * 3)[:-1], recall=0.975, hot_bytes=1)
    assert recommend(results(exact(times(10) * 3), first, short_of_one)).name == "short of one"


def test_the_answer_is_a_sentence_three_rows_and_a_command() -> None:
    now = row("flat fp16 64 → 100", times(5), recall=0.991)
    fast = row("hnsw int8 64 → 50", times(1), shortlist=50)
    found = results(exact(times(10)), now, fast, now=now.name)
    advice = recommend(found)
    assert sentence(found, advice).startswith("Use hnsw int8 64 → 50: a search takes 1.00 ms")
    assert [[*line.values()] for line in answer_rows(found, advice)] == [
        ["now", "flat fp16 64 → 100", "5.00", "0.991", "1.00 MiB"],
        ["recommended", "hnsw int8 64 → 50", "1.00", "0.970", "1.00 MiB"],
        ["exact", "exact", "10.0", "1.000", "0 bytes"],
    ]
    assert command(found, advice, Path("my report")).endswith(
        "'my report/results.json#recommended'"
    )
    assert command(found, advice, None) == ""  # there is no file to name


def shown(one: Row) -> tuple[float, float, float]:
    """Recall, latency (less is more) and nDCG as a reader sees them."""
    texts = fraction(one.recall), short(one.p50_ms.median), fraction(one.ndcg)
    recall, latency, ndcg = (float(text.replace(",", "").replace("–", "0")) for text in texts)
    return recall, -latency, ndcg


def dominated(chosen: Row, rows: Iterable[Row]) -> list[str]:
    """The rows that are at least as good in all that is shown, and better in something."""
    mine = shown(chosen)
    return [
        other.name
        for other in rows
        if all(a >= b for a, b in zip(shown(other), mine, strict=True))
        and (shown(other) != mine or other.hot_bytes < chosen.hot_bytes)
        and other is not chosen
        and not (shown(other) == mine and size(other.hot_bytes) == size(chosen.hot_bytes))
    ]


POINTS = st.lists(
    st.tuples(
        st.floats(0.5, 1.0),  # recall
        st.lists(st.floats(0.05, 2.0), min_size=5, max_size=5),  # rounds
        st.floats(0.3, 0.7),  # nDCG
        st.integers(1, 2**24),  # bytes
        st.sampled_from(list(Kind)),
    ),
    min_size=1,
    max_size=12,
)


@given(POINTS, st.booleans(), st.floats(0.0, 5.0), st.floats(0.6, 0.99), st.booleans())
def test_no_shown_point_beats_the_recommended_one(
    points: list[Any], judged: bool, overhead: float, target: float, scanned: bool
) -> None:
    rows = [
        row(
            f"p{i}",
            tuple(rounds),
            kind=Kind.CASCADE if kind is Kind.EXACT else kind,
            recall=recall,
            recall_low=recall - 0.02,
            recall_high=min(1.0, recall + 0.02),
            ndcg=ndcg if judged else None,
            ndcg_loss=(0.6 - ndcg, 0.65 - ndcg) if judged else None,
            hot_bytes=memory,
        )
        for i, (recall, rounds, ndcg, memory, kind) in enumerate(points)
    ]
    if scanned:
        rows.append(exact(times(0.3), ndcg=0.6 if judged else None))
    spread = Spread(overhead, overhead, overhead) if overhead > 0.1 else None
    found = results(*rows, overhead_ms=spread, now="p0")
    advice = recommend(found, target)
    chosen = found.named(advice.name)
    if chosen is not None:
        assert dominated(chosen, rows) == []
        assert chosen.kind is Kind.EXACT or chosen.recall >= target
    assert advice.name not in advice.tied


def test_rows_are_named(tmp_path: Path) -> None:
    found = results(exact(times(10)), row("hnsw int8 64 → 50", times(1)))
    found.write(tmp_path)
    for name in ("", "#", "#recommended", "#hnsw int8 64 → 50", "#hnsw int8 64 -> 50"):
        assert point_at(f"{tmp_path}{name}")[0].name == "hnsw int8 64 → 50"
        assert point_at(f"{tmp_path / 'results.json'}{name}")[0].name == "hnsw int8 64 → 50"
    with pytest.raises(QueryError, match="no point 'nobody'; its points are recommended, exact"):
        point_at(f"{tmp_path}#nobody")
    results(row("a", recall=0.5, recall_low=0.4)).write(tmp_path)
    with pytest.raises(QueryError, match="the bench recommends nothing: Nothing holds"):
        point_at(f"{tmp_path}#recommended")


@pytest.mark.parametrize(
    ("ratios", "differ"),
    [
        ([1.06] * 5, True),
        ([1.04] * 5, False),
        ([1.06, 1.06, 1.06, 1.01, 0.5], True),  # of five rounds one may say otherwise
        ([2.0, 2.0, 2.0, 1.0, 1.0], False),
        ([1.06, 1.06, 1.04, 1.04, 1.04], False),  # the median is the same speed
        ([2.0] * 8 + [1.0], True),
        ([2.0] * 7 + [1.0] * 2, False),
        ([2.0] * 12 + [1.0] * 3, True),  # of fifteen three
        ([2.0] * 11 + [1.0] * 4, False),
        ([2.0] * 21 + [1.0] * 9, True),  # of thirty nine, by the sign test
        ([2.0, 2.0, 2.0, 1.0], False),  # of four every one
        ([1.49], False),
        ([1.51], True),
        ([1.51, 1.4], False),
        ([1.06] * 3, True),
        ([], False),
    ],
)
def test_when_speeds_are_told_apart(ratios: list[float], differ: bool) -> None:
    quick = row("quick", tuple(1.0 + i for i in range(len(ratios))) or (1.0,))
    slow = row("slow", tuple((1.0 + i) * r for i, r in enumerate(ratios)) or (9.0,))
    if not ratios:
        quick, slow = replace(quick, rounds_ms=()), replace(slow, rounds_ms=())
    assert faster(quick, slow) is differ
    assert not faster(slow, quick)


# Three rows measured in the same five rounds cannot beat each other in a circle.
rounds = st.lists(st.floats(0.1, 10.0), min_size=5, max_size=5)


@given(st.lists(rounds, min_size=1, max_size=3))
def test_no_point_is_faster_than_one_that_ties(measured: list[list[float]]) -> None:
    rows = [row(str(i), tuple(each)) for i, each in enumerate(measured)]
    by_name = {one.name: one for one in rows}
    chosen = recommend(results(*rows))
    for name in chosen.tied:
        assert not any(faster(other, by_name[name]) for other in rows)
    assert chosen.name not in chosen.tied


def test_amounts_by_hand() -> None:
    assert [fraction(v) for v in (1.0, 0.9996, 0.999999, 0.5, None)] == [
        "1.000", "0.9996", "0.99999", "0.500", "–",
    ]  # fmt: skip
    assert [size(v) for v in (0, 812, 1536, 3 * 2**20, 2**41, None)] == [
        "0 bytes", "812 bytes", "1.50 KiB", "3.00 MiB", "2.00 TiB", "–",
    ]  # fmt: skip
    assert (
        spread_of(Spread(1, 1, 1)) == "1.00" and spread_of(Spread(1, 0.5, 2)) == "1.00 (0.500–2.00)"
    )
    assert recall_of(exact()) == "1.000"
    expected = {None: "–", (): "–", True: "yes", 12345: "12,345", 0.95: "0.950", (1, 2): "1, 2"}
    assert {value: plain(value) for value in expected} == expected
    assert plain({"ef": 64, "M": [1]}) == "ef 64, M 1"
