"""The machines that a corpus takes, by hand."""

from math import exp, log

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from indexer.config import SegmentConfig
from indexer.errors import TuneError
from indexer.tuning.capacity import (
    SECONDS_ALONE,
    Demand,
    Growth,
    Machine,
    Plan,
    fitted,
    measured,
    plan,
    seconds_alone,
    shard_shortlist,
)
from indexer.tuning.cost import footprint

IVF = SegmentConfig.from_dict({"structure": "ivf", "prefix": 192, "code": "int8"})
STEADY = Growth(rows=1000, length=20, exponent=0.0, low=0.0, high=0.0)


def planned(rows: int, machine: Machine, **demand: float) -> Plan:
    return plan(IVF, Demand(rows, **demand), machine, STEADY)  # type: ignore[arg-type]


def test_one_large_machine() -> None:
    one = planned(10_000_000, Machine(2**40, 2**44, 64), copies=1)
    size = footprint(IVF, 10_000_000, 768)
    assert (one.machines, one.shards, one.copies) == (1, 1, 1)
    assert one.memory == pytest.approx(1.3 * size.hot, rel=1e-6)
    assert one.disk == pytest.approx(2 * (10_000_000 * size.hot_row + size.cold), rel=1e-6)
    assert one.shortlist == (20, 20, 20) and one.shard_shortlist == 20
    assert one.pages == pytest.approx(20 * (1 + 1535 / 4096))
    alone = dict(SECONDS_ALONE[IVF.structure])[1e7]
    assert one.busy == pytest.approx(alone)
    assert one.median == pytest.approx(2.5e-3 + alone)
    assert one.p99 == pytest.approx(2.5e-3 + 3 * alone)


def test_machines_follow_the_scarcest_part() -> None:
    rows = 100_000_000
    size = footprint(IVF, 10_000_000, 768)
    by_memory = planned(rows, Machine(2**33, 2**44, 64), copies=1)
    assert by_memory.machines == -(-by_memory.memory // 2**33)
    by_disk = planned(rows, Machine(2**40, 2**37, 64), copies=3)
    assert by_disk.machines == 3 * -(-by_disk.disk // 3 // 2**37)
    assert by_disk.disk == pytest.approx(6 * rows * (size.hot_row + size.cold_row), rel=1e-6)
    busy = planned(rows, Machine(2**40, 2**44, 4), copies=1, rate=10_000)
    assert busy.copies == -(-10_000 * busy.busy // (0.6 * 4)) and busy.machines == busy.copies


def test_every_machine_has_as_many_shards() -> None:
    many = planned(95_000_000, Machine(2**33, 2**44, 4), copies=1)
    assert many.shards % many.machines == 0 and many.shards * 10_000_000 >= 95_000_000


def test_a_slow_machine_holds_up_more_questions_where_there_are_more() -> None:
    few, many = (planned(rows, Machine(2**33, 2**44, 64)) for rows in (10**8, 10**9))
    assert few.median < many.median and few.p99 < many.p99


def test_shortlists_grow() -> None:
    growth = Growth(rows=1000, length=20, exponent=0.5, low=0.25, high=1.0)
    assert growth.at(16_000) == pytest.approx((80, 40, 320))
    assert growth.at(10) == pytest.approx((2, 0.2, 20 / 10**0.5), rel=1e-6)


@given(st.floats(0, 1), st.floats(1, 1000), st.lists(st.integers(2, 9), min_size=2, unique=True))
def test_a_power_law_is_found(exponent: float, length: float, powers: list[int]) -> None:
    sizes = [10**power for power in powers]
    points = [(size, round(1e6 * length * size**exponent)) for size in sizes]
    growth = fitted(points)
    assert growth.exponent == pytest.approx(exponent, abs=1e-5)
    expected, low, high = growth.at(10**10)
    assert expected == pytest.approx(1e6 * length * 10 ** (10 * exponent), rel=1e-3)
    assert low <= expected <= high


def test_what_cannot_be_planned() -> None:
    for points in ([], [(1000, 5)], [(1000, 5), (1000, 6)], [(0, 5), (1000, 6)]):
        with pytest.raises(TuneError, match="needs two sizes"):
            fitted(points)
    with pytest.raises(TuneError, match=r"prefixes \[64, 128, 192\], got 100"):
        measured(100, 0.95)
    flat = SegmentConfig.from_dict({"structure": "flat", "prefix": 192})
    with pytest.raises(TuneError, match="knows ivf and hnsw, got flat"):
        plan(flat, Demand(1000), Machine(1, 1, 1), STEADY)


def test_time_of_a_shard_between_and_beyond_the_measured_sizes() -> None:
    (small, before), (large, after) = SECONDS_ALONE[IVF.structure][-2:]
    between = exp((log(small) + log(large)) / 2)
    middle = exp((log(before) + log(after)) / 2)
    assert seconds_alone(IVF.structure, between) == pytest.approx(middle)
    assert seconds_alone(IVF.structure, 10 * large) == pytest.approx(after**2 / before)
    assert seconds_alone(IVF.structure, 10) == pytest.approx(SECONDS_ALONE[IVF.structure][0][1])


def test_the_shortlist_of_a_shard_is_rarely_too_short() -> None:
    assert shard_shortlist(1000, 1, 10) == 1000
    assert shard_shortlist(1000, 20, 10) == 78
    assert shard_shortlist(20, 100, 10) == 10
    rng = np.random.default_rng(0)
    fullest = np.array([np.bincount(rng.integers(0, 8, 200)).max() for _ in range(2000)])
    assert (fullest > shard_shortlist(200, 8, 10)).mean() < 0.005
