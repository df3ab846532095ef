"""What a person reads of a bench: the recommendation, its ties, its numbers."""

import itertools
import math
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import pytest
from bench_results import exact, plausible, results, row, times
from hypothesis import given
from hypothesis import strategies as st

from searchengine.cli.console import show_rows
from searchengine.errors import QueryError
from searchengine.measure.bench_tables import answer_rows, table
from searchengine.measure.formatting import fraction, plain, recall_of, short, size, spread_of
from searchengine.measure.recommend import (
    command,
    faster,
    ranked,
    recommend,
    row_at,
    sentence,
    times_as_fast,
)
from searchengine.measure.report import reading
from searchengine.measure.results import Kind, Results, Row, Spread


def test_the_fastest_that_holds_is_recommended() -> None:
    found = recommend(
        results(
            exact(times(10)),
            row("slow", times(2)),
            row("fast", times(1), theoretical=120.0, measured=Spread(10.0, 9.5, 10.5)),
            row("faster, but finds too little", times(0.5), recall=0.951, recall_low=0.949),
        )
    )
    assert (found.name, found.tied, found.target) == ("fast", (), 0.95)
    assert found.why == (
        "Use fast: it finds 0.970 of the exact 10 nearest (95 % interval 0.960–0.980) in 1.00 "
        "(1.00–1.10) ms per query; 99 % of the queries take at most 1.00 ms.",
        "It is 10.0 (9.50–10.5) times as fast as exact search, and computes 120 times fewer "
        "multiply-adds.",
        "It needs 1.00 MiB in memory; 16.0 MiB may stay on disk.",
        "The next cheaper point, faster, but finds too little, takes 0.500 ms, 2.00 times as fast, "
        "and finds 0.951 (0.949–0.980), 0.019 less.",
    )


ENCODING = Spread(4.0, 4.0, 4.0)  # milliseconds a question takes besides


def test_a_point_that_feels_as_fast_ties_and_has_a_higher_recall() -> None:
    rows = [
        row("fast", times(0.1), recall=0.955, recall_low=0.951, recall_high=0.959, hot_bytes=1),
        row("good", times(0.2), recall=0.99, recall_low=0.985, recall_high=0.995, hot_bytes=300),
        row("light", times(0.25), recall=0.988, recall_low=0.982, recall_high=0.993, hot_bytes=200),
        row("slow", times(0.9), recall=0.999, recall_low=0.998, recall_high=1.0, hot_bytes=1),
    ]
    found = recommend(results(exact(times(10)), *rows, overhead_ms=ENCODING))
    assert found.name == "good" and set(found.tied) == {"fast", "light"}
    assert found.why[-1] == (
        "No point with less recall answers a question noticeably sooner (by 5 %)."
    )
    assert found.why[-2] == (
        "With 4.00 ms for the rest of a question, the speeds of good, fast and light do not differ "
        "significantly. Quality decided, where it differs beyond doubt; of those that no other "
        "point beats in all, memory, then recall."
    )
    assert recommend(results(exact(times(10)), *rows)).name == "fast"  # bare vectors


def test_a_loss_beyond_doubt_is_not_worth_a_tenth_of_a_millisecond() -> None:
    shared = {"recall": 0.97, "recall_low": 0.96, "recall_high": 0.98}
    lossy = row("lossy", times(0.1), ndcg=0.632, ndcg_loss=(0.004, 0.02), **shared, hot_bytes=1)
    sound = row("sound", times(0.2), ndcg=0.645, ndcg_loss=(-0.001, 0.003), **shared)
    baseline = exact(times(10), ndcg=0.646, ndcg_loss=(0.0, 0.0))
    assert recommend(results(baseline, lossy, sound, overhead_ms=ENCODING)).name == "sound"
    quicker = recommend(results(baseline, lossy, sound))
    assert quicker.name == "lossy"  # twice as fast, and nothing else takes time
    assert (
        "Its nDCG@10 is 0.632, that of exact search 0.646; the loss is beyond doubt, and every "
        "point without it is slower." in quicker.why
    )
    only = recommend(results(baseline, lossy, overhead_ms=ENCODING))
    assert only.name == "lossy"  # exact search is three times as slow, with encoding


def test_a_scan_that_feels_as_fast_is_recommended() -> None:
    rows = row("a", times(0.1), ndcg=0.632, ndcg_loss=(0.004, 0.02))
    found = recommend(results(exact(times(0.2)), rows, overhead_ms=ENCODING))
    assert (found.name, found.tied) == ("exact", ())
    assert found.why[1] == (
        "The fastest point that holds recall@10 ≥ 0.95, a, finds 0.970 (0.960–0.980) in 0.100 "
        "(0.100–0.110) ms per query: 2.00 times as fast, but with the 4.00 ms that the rest of a "
        "question takes, it is answered only 2.4 % sooner."
    )


def test_judgements_and_interruptions_are_reported() -> None:
    sample = results(exact(ndcg=0.6), row("a", ndcg=0.59), complete=False)
    why = recommend(sample).why
    assert "Its nDCG@10 is 0.590, that of exact search 0.600." in why
    assert why[-2] == "No measured point is faster with less recall."
    assert why[-1].startswith("The bench was interrupted")


def test_a_step_down_that_is_not_beyond_doubt() -> None:
    below = row("below", (0.5, 0.5, 1.1), recall=0.9, recall_low=0.89)
    (sentence,) = [
        each for each in recommend(results(exact(), row("a"), below)).why if "next" in each
    ]
    assert "below, takes 0.500 ms, 2.00 times as fast, which is not significant, and" in sentence


def test_a_point_that_finds_more_than_one_that_holds_the_target_holds_it() -> None:
    unsure = row("unsure", times(0.5), recall=0.98, recall_low=0.94)
    found = recommend(results(exact(), row("a", times(1.0)), unsure))
    assert found.name == "unsure" and "No measured point is faster with less recall." in found.why
    assert recommend(results(exact(), unsure)).name == "exact"


def test_among_ties_the_least_memory_then_what_finds_most() -> None:
    rows = [
        row("fastest", times(1.0), hot_bytes=300, recall=0.968),
        row("less", times(1.0), hot_bytes=100, recall=0.955, recall_high=0.9599),
        row("→ 100", times(1.02), hot_bytes=218, recall=0.97),
        row("→ 20", times(1.01), hot_bytes=200, recall=0.969, multiply_adds=1e5),
        row("small and slow", times(1.06), hot_bytes=1),
    ]
    found = recommend(results(exact(times(10)), *rows))
    assert found.name == "→ 100"  # 218 bytes are as little as 200
    assert set(found.tied) == {"fastest", "less", "→ 20"}
    assert any("do not differ significantly" in sentence for sentence in found.why)
    assert recommend(results(exact(times(10)), *rows[::-1])).name == "→ 100"


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ({"hot_bytes": 100, "rounds": times(0.99)}, {"hot_bytes": 111, "recall": 0.99}),
        ({"recall": 0.975}, {"multiply_adds": 1e3, "rounds": times(0.99)}),
        ({"multiply_adds": 1e3, "ndcg": 0.61}, {"rounds": times(0.99), "ndcg": 0.6}),
        ({"rounds": times(0.99), "ndcg": 0.6}, {"ndcg": 0.61}),
    ],
)
def test_criteria_for_ties(one: dict[str, Any], two: dict[str, Any]) -> None:
    """Memory, recall, multiply-adds, median, one after the other; never the name before."""
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


def test_a_point_that_another_beats_is_no_tie() -> None:
    """The first by all pairs may tie with a row that another one beats."""
    noisy = row("noisy", (0.5, 0.5, 0.5, 1.1, 1.1), hot_bytes=3)
    steady = row("steady", (1.0, 1.0, 1.0, 1.0, 1.0), hot_bytes=2, recall=0.975)
    beaten = row("beaten", (1.07, 1.07, 1.07, 1.07, 1.07), hot_bytes=1)
    assert faster(steady, beaten) and not faster(noisy, beaten)
    found = recommend(results(exact(times(10)), noisy, steady, beaten))
    assert (found.name, found.tied) == ("steady", ("noisy",))


def test_a_scan_that_is_as_fast_is_recommended() -> None:
    sample = results(exact(times(1.0)), row("a", times(0.98)), row("b", times(1.2)))
    found = recommend(sample)
    assert (found.name, found.tied) == ("exact", ())
    assert found.why == (
        "Search exactly: it takes 1.00 (1.00–1.10) ms per query over 200,000 rows.",
        "The fastest point that holds recall@10 ≥ 0.95, a, finds 0.970 (0.960–0.980) in 0.980 "
        "(0.980–1.08) ms per query: no significant difference.",
    )
    assert recommend(replace(sample, rows=sample.rows[1:])).name == "a"


@pytest.mark.parametrize(("questions", "sentence"), [(1, "1 query was"), (49, "49 queries were")])
def test_few_questions_show_little(questions: int, sentence: str) -> None:
    sample = results(exact(), row("a"))
    few = replace(sample, subject={**sample.subject, "queries": questions})
    enough = replace(sample, subject={**sample.subject, "queries": 50})
    assert any(f"Only {sentence} measured" in each for each in recommend(few).why)
    assert not any("asked" in each for each in recommend(enough).why)


def test_prefixes_without_rotation_can_be_recommended() -> None:
    truncated = row("truncated", times(0.5), kind=Kind.TRUNCATED)
    full = row("full", times(0.9), kind=Kind.FULL)
    found = recommend(results(exact(times(10)), truncated, row("a", times(1.0)), full))
    assert found.name == "truncated"


def bare(*rows: Row, **fields: Any) -> Results:
    """Results of vectors without a collection."""
    found = results(*rows, **fields)
    return replace(found, subject={**found.subject, "name": "v.npy", "path": None})


def answered(found: Results) -> tuple[str, list[list[str]], str]:
    """The sentence, the table and the command of an answer."""
    advice = recommend(found)
    rows = [list(row.values()) for row in answer_rows(found, advice)]
    return sentence(found, advice), rows, command(found, advice, Path("my report"))


def test_the_answer_is_a_sentence_three_rows_and_a_command() -> None:
    now = row("flat fp16 64 → 100", times(5), recall=0.991)
    fast = row("hnsw int8 64 → 50", times(1), shortlist=50)
    found = bare(exact(times(10)), now, fast, now=now.name)
    assert answered(found) == (
        "Use hnsw int8 64 → 50: a search takes 1.00 ms (by default 5.00) and 0.970 of the exact 10 "
        "nearest are found.",
        [
            ["default", "flat fp16 64 → 100", "5.00", "0.991", "1.00 MiB"],
            ["recommended", "hnsw int8 64 → 50", "1.00", "0.970", "1.00 MiB"],
            ["exact", "exact", "10.0", "1.000", "0 bytes"],
        ],
        "searchengine tune COLLECTION --apply 'my report/results.json#recommended'  "
        "# COLLECTION: one of these vectors",
    )
    assert [*answer_rows(found, recommend(found))[0]][1:] == [
        "operating point", "search, ms", "recall@10", "in memory",
    ]  # fmt: skip
    assert reading(found, ["exact", fast.name]).startswith("64 → 50: the first 64 numbers of each")
    assert reading(found, ["exact"]) == ""
    assert command(found, recommend(found), None) == ""  # there is no file to name


def test_the_answer_counts_the_whole_question_and_quality() -> None:
    now = row("flat 64 → 100", times(1), ndcg=0.6, ndcg_loss=(-0.01, 0.01))
    best = exact(times(10), ndcg=0.61)
    found = results(best, now, overhead_ms=ENCODING, now=now.name)
    assert answered(found) == (
        "Leave it as it is: a question takes 5.00 ms, 0.970 of the exact 10 nearest are found and "
        "nDCG@10 is 0.600 (exact 0.610).",
        [
            ["now = recommended", "flat 64 → 100", "5.00", "0.970", "0.600", "1.00 MiB"],
            ["exact", "exact", "14.0", "1.000", "0.610", "0 bytes"],
        ],
        "",
    )
    hybrid = replace(found, subject={**found.subject, "mode": "hybrid"})
    assert "nDCG@10, hybrid" in answer_rows(hybrid, recommend(hybrid))[0]


def test_exact_search_is_recommended_to_those_who_do_not_search_exactly() -> None:
    now = row("a", times(0.2))
    found = results(exact(times(0.2)), now, now="a")
    said, rows, applied = answered(found)
    assert said == (
        "Search exactly: a search takes 0.200 ms (now 0.200) and no point that holds the target is "
        "noticeably faster."
    )
    assert rows[1][0] == "recommended = exact" and applied.endswith("results.json#recommended'")
    said, rows, applied = answered(replace(found, now="exact"))
    assert said.startswith("Leave it as it is, it searches exactly: a search takes 0.200 ms and no")
    assert rows[0][0] == "now = recommended = exact" and applied == ""
    better = row("b", times(0.195), recall=1.0, recall_low=1.0, recall_high=1.0)
    said, _, applied = answered(replace(found, rows=(*found.rows, better), now="exact"))
    assert said.startswith("Use b: a search takes 0.195 ms (now 0.200)") and applied
    assert said.endswith(" It gains nothing noticeable: you may as well leave it as it is.")
    low = row("a", recall=0.9, recall_low=0.2)
    assert answered(results(low))[0].startswith("Nothing holds recall@10 ≥ 0.95")
    assert "and no other point holds the target." in answered(results(exact(), low))[0]


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


def test_a_better_point_is_recommended_though_it_needs_more_memory() -> None:
    """As SciFact was: the ties of a question that takes 4 ms."""
    lists = row("ivf", times(0.236), recall=0.9953, ndcg=0.6454, hot_bytes=2**20)
    graph = row("hnsw", times(0.094), recall=0.996, ndcg=0.6488, hot_bytes=2**23)
    found = recommend(results(exact(times(10), ndcg=0.646), lists, graph, overhead_ms=ENCODING))
    assert (found.name, found.tied) == ("hnsw", ("ivf",))


def test_a_collection_that_searches_by_one_of_the_best_stays() -> None:
    one, two = row("one", times(1.0), recall=0.97), row("two", times(1.01), recall=0.98)
    shared = exact(times(10))
    assert recommend(results(shared, one, two)).name == "two"
    assert recommend(results(shared, one, two, now="one")).name == "one"


def test_rows_are_named(tmp_path: Path) -> None:
    found = results(exact(times(10)), row("hnsw int8 64 → 50", times(1)))
    found.write(tmp_path)
    for name in ("", "#", "#recommended", "#hnsw int8 64 → 50", "#hnsw int8 64 -> 50"):
        assert row_at(f"{tmp_path}{name}").name == "hnsw int8 64 → 50"
        assert row_at(f"{tmp_path / 'results.json'}{name}").name == "hnsw int8 64 → 50"
    with pytest.raises(QueryError, match="no point 'nobody'; its points are recommended, exact"):
        row_at(f"{tmp_path}#nobody")
    results(row("a", recall=0.5, recall_low=0.4)).write(tmp_path)
    with pytest.raises(QueryError, match="the bench recommends nothing: Nothing holds"):
        row_at(f"{tmp_path}#recommended")


def test_fewer_multiply_adds_never_reads_as_more() -> None:
    found = recommend(results(exact(times(10)), row("a", times(1), theoretical=0.5)))
    assert any("computes 2.00 times as many multiply-adds" in sentence for sentence in found.why)


def test_the_recommended_row_is_in_the_terminals_table() -> None:
    chosen, better = row("chosen", times(1)), row("better", times(0.99), recall=0.98)
    shown = table(results(exact(), chosen, better), recommended="chosen")
    assert [line[""] for line in shown] == ["exact", "chosen", "better"]
    assert [line[""] for line in table(results(exact(), chosen, better))] == ["exact", "better"]


def test_three_of_many_ties_are_named() -> None:
    rows = [row(f"r{i}", times(1 + i / 1000)) for i in range(6)]
    (sentence,) = [each for each in recommend(results(exact(), *rows)).why if "≈" in each]
    assert sentence.startswith("The speeds of r0, r1, r2 and 3 more (≈ in the table) do not differ")


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


def test_rounds_of_both_count_alone() -> None:
    """A finalist's later rounds, at a busier time, do not make it slower than what had fewer."""
    rounds = (1.0, 1.0, 1.0, 3.0, 3.0, 3.0, 3.0)
    finalist = row("finalist", rounds, p50_ms=Spread(1.0, 1.0, 1.0), hot_bytes=2**21)
    other = row("other", (1.2, 1.2, 1.2))
    assert times_as_fast(finalist, other) == pytest.approx(1.2) and faster(finalist, other)
    found = recommend(results(exact(), other, finalist))
    assert (found.name, found.tied) == ("finalist", ())
    nothing = replace(row("none", (2.0,)), rounds_ms=())
    assert times_as_fast(nothing, row("one", (1.0,))) == 0.5


def test_nothing_but_exact_search_holds() -> None:
    low = {"recall": 0.9, "recall_low": 0.88, "recall_high": 0.92}
    found = recommend(results(exact(), row("a", **low), row("b", **low | {"recall": 0.8})))
    assert (found.name, found.tied) == ("exact", ())
    assert found.why == (
        "Search exactly: it takes 10.0 ms per query over 200,000 rows.",
        "Nothing else holds recall@10 ≥ 0.95. The highest recall of another row is 0.900 "
        "(0.880–0.920), by a in 1.00 ms per query. A longer shortlist or a wider prefix finds more "
        "(--shortlists, --prefixes).",
    )
    assert recommend(results(row("a", **low))).name is None
    assert recommend(results()).why == (
        "Nothing was measured, so there is nothing to choose from.",
    )
    alone = recommend(results(exact()))
    assert alone.name == "exact" and "nothing to choose from" in alone.why[1]
    assert recommend(results(exact(), row("a")), target=0.961).name == "exact"


def test_ranked_by_hand() -> None:
    rows = [
        row("c", times(2.00)),
        row("a", times(1.00)),
        row("b", times(1.04)),
        row("d", times(2.09)),  # ties with neither c …
        row("e", times(2.04)),  # … but with e, and e with c
        row("misses", times(0.1), recall=0.92, recall_low=0.9),
    ]
    sample = results(exact(times(10)), *rows)
    assert not faster(rows[0], rows[4]) and not faster(rows[4], rows[3])
    assert faster(rows[0], replace(rows[3], rounds_ms=times(2.11)))
    assert ranked(sample) == (("a", "b"), ("c", "e", "d"))
    assert ranked(sample, target=0.99) == ()


def order(groups: tuple[tuple[str, ...], ...]) -> dict[str, int]:
    return {name: place for place, group in enumerate(groups) for name in group}


def disagreements(one: Results, two: Results) -> int:
    """Pairs of the first three of either bench that the two put in opposite orders."""
    first, second = order(ranked(one)), order(ranked(two))
    leading = set(list(first)[:3]) | set(list(second)[:3])
    return sum(
        (first[a] - first[b]) * (second[a] - second[b]) < 0
        for a, b in itertools.combinations(sorted(leading), 2)
    )


@pytest.mark.parametrize(
    "noise",
    [pytest.param(0.01, marks=pytest.mark.long), 0.05, pytest.param(0.15, marks=pytest.mark.long)],
)
def test_two_benches_agree_on_the_first_three_or_call_them_tied(noise: float) -> None:
    def bench(seed: int) -> Results:
        return plausible(seed, noise=noise, busy=0.5)

    assert sum(disagreements(bench(i), bench(1000 + i)) for i in range(40)) == 0
    if noise <= 0.05:  # and yet they are not all called the same
        assert all(len(ranked(bench(i))) >= 3 for i in range(40))


rounds = st.lists(st.floats(0.1, 10.0), min_size=1, max_size=9)


@given(st.lists(rounds, min_size=1, max_size=7))
def test_ranked_is_a_partition_in_an_order_that_holds(measured: list[list[float]]) -> None:
    rows = [row(str(i), tuple(each)) for i, each in enumerate(measured)]
    groups = ranked(results(*rows))
    assert sorted(name for group in groups for name in group) == sorted(one.name for one in rows)
    by_name = {one.name: one for one in rows}
    for before, after in itertools.combinations(groups, 2):
        for a, b in itertools.product(before, after):
            assert faster(by_name[a], by_name[b])
    chosen = recommend(results(*rows))
    for name in chosen.tied:
        assert not any(faster(other, by_name[name]) for other in rows)
    assert chosen.name not in chosen.tied


@pytest.mark.parametrize(
    ("value", "expected"),
    [(0.0, "0"), (0.012345, "0.0123"), (1.2, "1.20"), (12.0, "12.0"), (123.4, "123"),
     (1234.5, "1,230"), (0.000123, "0.000123"), (999.9, "1,000"), (None, "–")],
)  # fmt: skip
def test_numbers_as_they_are_read(value: float | None, expected: str) -> None:
    assert short(value) == expected


@given(st.floats(1e-6, 1e9))
def test_short_numbers_are_right_to_three_digits(value: float) -> None:
    assert math.isclose(float(short(value).replace(",", "")), value, rel_tol=0.0051)


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


@pytest.mark.parametrize("width", [60, 80, 100, 140, 200])
def test_the_table_fits_the_terminal(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sample = plausible()
    everything = table(sample)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", str(width))
    shown = table(sample)
    assert {"", "recall@10", "p50 ms", "× measured"} <= shown[0].keys() <= everything[0].keys()
    assert [*shown[0]] == [name for name in everything[0] if name in shown[0]]
    assert (shown == everything) is (width >= 140)
    assert "× theory" in shown[0] or width < 100
    show_rows(shown)
    lines = click.unstyle(capsys.readouterr().out).splitlines()
    assert max(map(len, lines)) <= width and (width < 80 or "…" not in "".join(lines))


def test_what_is_too_long_for_the_terminal_is_a_name() -> None:
    sample = results(exact(), row("x" * 100), row("y" * 100, kind=Kind.FULL))
    shown = table(sample, 60)
    assert {*shown[0]} == {"", "recall@10", "p50 ms", "× measured"}
    assert shown[1][""].endswith("x…") and 12 < len(shown[1][""]) < 40
    assert table(results(), 60) == []
