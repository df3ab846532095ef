"""What a person reads of a bench: the recommendation, its ties, a comparison with another bench."""

import itertools
import json
import math
from dataclasses import replace

import pytest
from bench_results import exact, plausible, results, row
from hypothesis import given, settings
from hypothesis import strategies as st

from searchengine.bench.amounts import fraction, plain, recall_of, short, size, spread_of
from searchengine.bench.compare import Change, Verdict, compare, remarks, table
from searchengine.bench.recommend import faster, ranked, recommend, times_as_fast
from searchengine.bench.results import Kind, Results, Spread
from searchengine.console import show_rows
from searchengine.errors import QueryError

FIVE = (1.0, 1.1, 0.9, 1.0, 1.2)


def times(factor: float, rounds: tuple[float, ...] = FIVE) -> tuple[float, ...]:
    return tuple(factor * each for each in rounds)


def test_the_fastest_that_holds_is_recommended() -> None:
    found = recommend(
        results(
            exact(times(10)),
            row("slow", times(2)),
            row("fast", times(1), theoretical=120.0, measured=Spread(10.0, 9.5, 10.5)),
            row("faster, but finds too little", times(0.5), recall=0.951, recall_low=0.949),
            row("another engine", times(0.1), kind=Kind.PEER),
        )
    )
    assert (found.name, found.tied, found.target) == ("fast", (), 0.95)
    assert found.why == (
        "Take fast: it finds 0.970 of the exact 10 nearest (95 % interval 0.960–0.980) in 1.00 "
        "(1.00–1.10) ms a query; 99 of 100 queries take at most 1.00 ms.",
        "Against exact search it is 10.0 (9.50–10.5) times as fast on the clock, and computes 120 "
        "times fewer multiply-adds.",
        "It wants 1.00 MiB in memory; 16.0 MiB may stay on the disk.",
        "The next cheaper point, faster, but finds too little, takes 0.500 ms, 2.00 times as fast, "
        "and finds 0.951 (0.949–0.980): 0.019 less.",
    )


def test_what_is_judged_and_interrupted_is_said() -> None:
    made = results(exact(ndcg=0.6), row("a", ndcg=0.59), complete=False)
    why = recommend(made).why
    assert "Its nDCG@10 is 0.590, that of exact search 0.600." in why
    assert why[-2] == "Nothing that was measured is faster and finds less."
    assert why[-1].startswith("The bench was interrupted")


def test_a_step_down_that_is_not_beyond_doubt() -> None:
    below = row("below", (0.5, 0.5, 1.1), recall=0.9, recall_low=0.89)
    (said,) = [each for each in recommend(results(exact(), row("a"), below)).why if "next" in each]
    assert "below, takes 0.500 ms, 2.00 times as fast, which is not beyond doubt, and" in said


def test_what_is_faster_and_finds_more_is_no_step_down() -> None:
    unsure = row("unsure", times(0.5), recall=0.98, recall_low=0.94)
    found = recommend(results(exact(), row("a", times(1.0)), unsure))
    assert found.name == "a" and "Nothing that was measured is faster and finds less." in found.why


def test_among_ties_the_least_memory_then_the_shorter_prefix_then_the_name() -> None:
    rows = [
        row("fastest", times(1.0), hot_bytes=300),
        row("small", times(1.04), hot_bytes=200, prefix=128),
        row("shorter", times(1.045), hot_bytes=200, prefix=64),
        row("also short", times(1.045), hot_bytes=200, prefix=64),
        row("unknown", times(1.0), hot_bytes=None),
        row("small and slow", times(1.06), hot_bytes=1),
    ]
    found = recommend(results(exact(times(10)), *rows))
    assert found.name == "also short"
    assert set(found.tied) == {"fastest", "small", "shorter", "unknown"}
    assert any("cannot be told apart" in said for said in found.why)
    assert recommend(results(exact(times(10)), *rows[::-1])).name == "also short"


@pytest.mark.parametrize(
    ("ratios", "told"),
    [
        ([1.06] * 5, True),
        ([1.04] * 5, False),
        ([1.06, 1.06, 1.06, 1.06, 1.04], False),  # of five rounds every one
        ([2.0] * 8 + [1.0], True),  # of nine all but one on either side
        ([2.0] * 7 + [1.0] * 2, False),
        ([2.0] * 7 + [1.0], False),  # of eight every one
        ([1.49], False),
        ([1.51], True),
        ([1.51, 1.4], False),
        ([1.06] * 3, True),
        ([], False),
    ],
)
def test_when_speeds_are_told_apart(ratios: list[float], told: bool) -> None:
    quick = row("quick", tuple(1.0 + i for i in range(len(ratios))) or (1.0,))
    slow = row("slow", tuple((1.0 + i) * r for i, r in enumerate(ratios)) or (9.0,))
    if not ratios:
        quick, slow = replace(quick, rounds_ms=()), replace(slow, rounds_ms=())
    assert faster(quick, slow) is told
    assert not faster(slow, quick)


def test_rounds_of_both_count_alone() -> None:
    """A finalist's later rounds, at a busier time, do not make it slower than what had fewer."""
    finalist = row("finalist", (1.0, 1.0, 1.0, 3.0, 3.0, 3.0, 3.0), hot_bytes=2**21)
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
        "Only exact search holds recall@10 ≥ 0.95.",
        "It finds all of them, in 10.0 ms a query.",
        "The highest recall that anything else reached is 0.900 (0.880–0.920), by a in 1.00 ms a "
        "query. A longer shortlist or a wider prefix finds more (--shortlists, --prefixes); "
        "otherwise search exactly.",
    )
    assert recommend(results(row("a", **low))).name is None
    assert recommend(results()).why == (
        "Nothing holds the target, and exact search was not measured.",
    )
    alone = recommend(results(exact()))
    assert alone.name == "exact" and "nothing to choose from" in alone.why[0]
    assert recommend(results(exact(), row("a")), target=0.961).name == "exact"


def test_ranked_by_hand() -> None:
    rows = [
        row("c", times(2.00)),
        row("a", times(1.00)),
        row("b", times(1.04)),
        row("d", times(2.09)),  # ties with neither c …
        row("e", times(2.04)),  # … but with e, and e with c
        row("misses", times(0.1), recall_low=0.9),
        row("peer", times(0.1), kind=Kind.PEER),
    ]
    made = results(exact(times(10)), *rows)
    assert not faster(rows[0], rows[4]) and not faster(rows[4], rows[3])
    assert faster(rows[0], replace(rows[3], rounds_ms=times(2.11)))
    assert ranked(made) == (("a", "b"), ("c", "e", "d"))
    assert ranked(made, target=0.99) == ()


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


@pytest.mark.parametrize("noise", [0.01, 0.05, 0.15])
def test_two_benches_agree_on_the_first_three_or_call_them_tied(noise: float) -> None:
    def bench(seed: int) -> Results:
        return plausible(seed, noise=noise, growth=False, busy=0.5)

    assert sum(disagreements(bench(i), bench(1000 + i)) for i in range(40)) == 0
    if noise <= 0.05:  # and yet they are not all called the same
        assert all(len(ranked(bench(i))) >= 3 for i in range(40))


rounds = st.lists(st.floats(0.1, 10.0), min_size=1, max_size=9)


@settings(max_examples=60, deadline=None)
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
    fastest = by_name[groups[0][0]]
    assert chosen.name == fastest.name or chosen.name in {*chosen.tied, *by_name}
    assert not faster(fastest, by_name[str(chosen.name)])
    assert chosen.name not in chosen.tied


def changed(before: Results, after: Results, name: str = "a") -> dict[str, Change]:
    return {one.measure: one for one in compare(before, after) if one.name == name}


def test_a_change_for_the_better_and_for_the_worse() -> None:
    was = {"recall": 0.96, "recall_low": 0.95, "recall_high": 0.97, "ndcg": 0.6}
    now = {"recall": 0.98, "recall_low": 0.97, "recall_high": 0.99, "ndcg": 0.59}
    before = results(exact(times(10)), row("a", times(1.0), hot_bytes=100, build_s=4.0, **was))
    after = results(exact(times(10)), row("a", times(0.5), hot_bytes=150, build_s=2.0, **now))
    after = replace(
        after, rows=(after.rows[0], replace(after.rows[1], measured=Spread(20, 20, 20)))
    )
    found = changed(before, after)
    assert {name: one.verdict for name, one in found.items()} == {
        "recall": Verdict.BETTER,
        "ndcg": Verdict.WORSE,
        "p50_ms": Verdict.BETTER,
        "speed_up": Verdict.BETTER,
        "build_s": Verdict.BETTER,
        "hot_bytes": Verdict.WORSE,
    }
    assert found["recall"].difference == pytest.approx(0.02) and found["recall"].ratio is None
    assert found["p50_ms"].ratio == 0.5 and found["hot_bytes"].ratio == 1.5
    back = {name: one.verdict for name, one in changed(after, before).items()}
    assert back["p50_ms"] is Verdict.WORSE and back["hot_bytes"] is Verdict.BETTER
    assert back["recall"] is Verdict.WORSE and back["build_s"] is Verdict.WORSE


def test_a_bench_compared_with_itself_is_noise() -> None:
    made = plausible()
    assert {one.verdict for one in compare(made, made)} == {Verdict.NOISE}
    assert remarks(made, made) == []


def test_a_busier_machine_is_not_a_change() -> None:
    before = results(exact(times(10)), row("a", times(1.0)))
    after = results(exact(times(20)), row("a", times(2.0)))
    found = changed(before, after)
    assert found["p50_ms"].verdict is Verdict.NOISE and found["p50_ms"].ratio == 2.0
    assert found["speed_up"].verdict is Verdict.NOISE
    assert remarks(before, after) == ["Exact search took 2.00 times as long after as before."]
    worse = results(exact(times(20)), row("a", times(3.0)))
    assert changed(before, worse)["p50_ms"].verdict is Verdict.WORSE


def test_what_overlaps_is_noise() -> None:
    before = results(exact(times(10)), row("a", (1.0, 1.0, 1.0, 1.0, 1.6)))
    after = results(exact(times(10)), row("a", (1.5, 1.6, 1.7, 1.8, 1.9)))
    assert changed(before, after)["p50_ms"].verdict is Verdict.NOISE
    near = {"recall": 0.961, "recall_low": 0.95, "recall_high": 0.97}
    far = {"recall": 0.974, "recall_low": 0.964, "recall_high": 0.984}
    before, after = results(exact(), row("a", **near)), results(exact(), row("a", **far))
    assert changed(before, after)["recall"].verdict is Verdict.NOISE  # 0.013 of 0.0141
    batches = [Spread(100, 90, 110), Spread(120, 105, 130), Spread(150, 120, 160)]
    few, more, many = (results(exact(), row("a", batch_qps=each)) for each in batches)
    assert changed(few, more)["batch_qps"].verdict is Verdict.NOISE
    assert changed(few, many)["batch_qps"].verdict is Verdict.BETTER


def test_rows_of_one_side_and_another_machine() -> None:
    before = results(exact(), row("a"), row("gone"))
    after = results(exact(), row("a", times(0.5, (1.0,) * 3)), row("new"))
    after = replace(after, machine={**after.machine, "cores": 64})
    found = compare(before, after)
    alone = [(one.name, one.note) for one in found if one.measure == "row"]
    assert alone == [("gone", "only in the first"), ("new", "only in the second")]
    by_measure = changed(before, after)
    for measure in ("p50_ms", "build_s"):
        assert by_measure[measure].verdict is Verdict.NOT_COMPARABLE
        assert by_measure[measure].note == "another machine"
    assert by_measure["speed_up"].verdict is not Verdict.NOT_COMPARABLE
    assert remarks(before, after)[0] == "cores of the machine differs: 2 before, 64 after."


@pytest.mark.parametrize(("name", "value"), [("rows", 5), ("dim", 5), ("k", 5)])
def test_other_subjects_are_refused(name: str, value: int) -> None:
    before = results(exact(), row("a"))
    after = replace(before, subject={**before.subject, name: value})
    with pytest.raises(QueryError, match=rf"different things \({name} [\d,]+ and 5\)"):
        compare(before, after)
    renamed = replace(before, subject={**before.subject, "name": "other"}, complete=False)
    assert remarks(before, renamed) == [
        "name of the subject differs: sentences.index before, other after.",
        "The second bench was interrupted.",
    ]
    assert {one.verdict for one in compare(before, renamed)} == {Verdict.NOISE}


def test_changes_as_a_table_and_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    before = results(exact(), row("a"), row("gone"))
    after = results(exact(), row("a", hot_bytes=2**21))
    found = compare(before, after)
    lines = table(found)
    assert lines[-2] == {
        "name": "a",
        "measure": "hot_bytes",
        "before": "1,048,576",
        "after": "2,097,152",
        "change": "× 2.00",
        "verdict": "worse",
    }
    assert lines[-1]["verdict"] == "not comparable: only in the first"
    assert len({tuple(line) for line in lines}) == 1
    show_rows(lines)
    assert "hot_bytes" in capsys.readouterr().out
    told = json.loads(json.dumps([one.as_dict() for one in found], allow_nan=False))
    assert told[-2]["verdict"] == "worse" and told[-2]["ratio"] == 2.0


@pytest.mark.parametrize(
    ("value", "said"),
    [(0.0, "0"), (0.012345, "0.0123"), (1.2, "1.20"), (12.0, "12.0"), (123.4, "123"),
     (1234.5, "1,230"), (0.000123, "0.000123"), (999.9, "1,000"), (None, "–")],
)  # fmt: skip
def test_numbers_as_they_are_read(value: float | None, said: str) -> None:
    assert short(value) == said


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
    said = {None: "–", (): "–", True: "yes", 12345: "12,345", 0.95: "0.950", (1, 2): "1, 2"}
    assert {value: plain(value) for value in said} == said
    assert plain({"ef": 64, "M": [1]}) == "ef 64, M 1"
