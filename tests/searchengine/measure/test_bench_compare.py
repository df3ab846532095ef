"""Two benches compared: what is told as a change, and what as noise."""

import json
from dataclasses import replace

import pytest
from bench_results import exact, plausible, results, row, times

from searchengine.cli.console import show_rows
from searchengine.errors import QueryError
from searchengine.measure.compare import Change, Verdict, compare, differences, table
from searchengine.measure.results import Kind, Results, Spread


def changed(before: Results, after: Results, name: str = "a") -> dict[str, Change]:
    return {one.measure: one for one in compare(before, after) if one.name == name}


def test_a_change_for_the_better_and_for_the_worse() -> None:
    was = {"recall": 0.96, "recall_low": 0.95, "recall_high": 0.97, "ndcg": 0.6}
    now = {"recall": 0.98, "recall_low": 0.97, "recall_high": 0.99, "ndcg": 0.59}
    before = results(exact(times(10)), row("a", times(1.0), hot_bytes=100, build_s=4.1, **was))
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
    sample = plausible()
    assert {one.verdict for one in compare(sample, sample)} == {Verdict.NOISE}
    assert differences(sample, sample) == []


def test_a_busier_machine_is_not_a_change() -> None:
    before = results(exact(times(10)), row("a", times(1.0)))
    after = results(exact(times(20)), row("a", times(2.0)))
    found = changed(before, after)
    assert found["p50_ms"].verdict is Verdict.NOISE and found["p50_ms"].ratio == 2.0
    assert found["speed_up"].verdict is Verdict.NOISE
    assert differences(before, after) == ["Exact search took 2.00 times as long after as before."]
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


def test_batches_are_told_apart_by_quartiles_and_by_15_percent() -> None:
    spreads = (100, 99, 101), (114, 113, 115), (120, 100.5, 130), (116, 115, 117)
    few, *others = (results(exact(), row("a", batch_qps=Spread(*each))) for each in spreads)
    verdicts = [changed(few, other)["batch_qps"].verdict for other in others]
    assert verdicts == [Verdict.NOISE, Verdict.NOISE, Verdict.BETTER]


def test_batches_on_a_busier_machine_are_no_change() -> None:
    """Judged by the batches of exact search, which its single queries say nothing of."""

    def bench(share: float, rate: float) -> Results:
        of_exact, own = (Spread(q, 0.99 * q, 1.01 * q) for q in (50 * share, rate))
        return results(replace(exact(times(10)), batch_qps=of_exact), row("a", batch_qps=own))

    for rate, verdict in ((55, Verdict.NOISE), (40, Verdict.WORSE), (220, Verdict.BETTER)):
        found = changed(bench(1.0, 100), bench(0.5, rate))
        assert found["batch_qps"].verdict is verdict
        assert found["p50_ms"].verdict is Verdict.NOISE


def test_a_coarse_stage_is_built_once() -> None:
    """One verdict for all that share it, and only beyond twice the seconds."""
    ways = [("a", {}), ("b", {"shortlist": 50}), ("c", {"kind": Kind.TRUNCATED})]

    def bench(seconds: float) -> Results:
        return results(exact(), *(row(n, build_s=seconds, **options) for n, options in ways))

    for seconds, verdict in ((1.9, Verdict.NOISE), (2.1, Verdict.WORSE), (0.4, Verdict.BETTER)):
        found = [one for one in compare(bench(1.0), bench(seconds)) if one.measure == "build_s"]
        assert [(one.name, one.verdict) for one in found] == [("a", verdict), ("c", verdict)]


def test_memory_of_a_process_is_noise_within_a_tenth() -> None:
    for kind, verdict in ((Kind.PEER, Verdict.NOISE), (Kind.CASCADE, Verdict.WORSE)):
        before, after = (
            results(exact(), row("a", kind=kind, hot_bytes=size)) for size in (1000, 1090)
        )
        assert changed(before, after)["hot_bytes"].verdict is verdict
    before, after = (
        results(exact(), row("a", kind=Kind.PEER, hot_bytes=size)) for size in (1000, 1110)
    )
    assert changed(before, after)["hot_bytes"].verdict is Verdict.WORSE
    assert changed(after, before)["hot_bytes"].verdict is Verdict.BETTER


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
    assert differences(before, after)[0] == "cores of the machine differs: 2 before, 64 after."


@pytest.mark.parametrize(("name", "value"), [("rows", 5), ("dim", 5), ("k", 5)])
def test_other_subjects_are_refused(name: str, value: int) -> None:
    before = results(exact(), row("a"))
    after = replace(before, subject={**before.subject, name: value})
    with pytest.raises(QueryError, match=rf"same rows, dimensions and k, got {name} [\d,]+ and 5"):
        compare(before, after)
    renamed = replace(before, subject={**before.subject, "name": "other"}, complete=False)
    assert differences(before, renamed) == [
        "name of the data differs: sentences.index before, other after.",
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
    as_json = json.loads(json.dumps([one.as_dict() for one in found], allow_nan=False))
    assert as_json[-2]["verdict"] == "worse" and as_json[-2]["ratio"] == 2.0
