"""When segments are merged."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from searchengine.backends.folder.writer import FAN, FLOOR, tier, to_merge


@pytest.mark.parametrize(
    ("segments", "expected"),
    [
        ([], []),
        ([(1, 1)] * 3, []),
        ([(1, 1)] * 4, [0, 1, 2, 3]),
        ([(5000, 5000), (1, 1), (300, 300), (2, 2), (3, 3), (4, 4)], [1, 3, 4, 5]),
        # The fuller tier is merged with what is smaller, for it costs little.
        ([(300, 300)] * 4 + [(1, 1)], [0, 1, 2, 3, 4]),
        ([(5000, 5000), (10, 20)], [1]),  # half of it is dead
        ([(11, 20)], []),
        ([(0, 3)], [0]),
    ],
)
def test_the_merges_that_are_due(segments: list[tuple[int, int]], expected: list[int]) -> None:
    assert to_merge(segments) == expected


@pytest.mark.parametrize(
    ("segments", "expected"),
    [
        ([], []),
        ([(5, 5)], []),
        ([(5000, 5000), (183, 183)], [0, 1]),
        ([(64_000, 64_000), (999, 999)], []),
        ([(64_000, 64_000), (500, 500), (500, 500)], [0, 1, 2]),
        # Ten million rows are not copied for 2 %, but the additions become one segment.
        ([(10**7, 10**7), (10**5, 10**5), (10**5, 10**5)], [1, 2]),
        ([(10**5, 10**5), (10**7, 10**7), (10**5, 10**5)], [0, 2]),
        ([(10**7, 10**7), (2 * 10**5, 2 * 10**5)], []),
        ([(10**7, 10**7), (25 * 10**5, 25 * 10**5)], [0, 1]),
        ([(2**20 - 1, 2**20 - 1), (2**14, 2**14)], [0, 1]),
    ],
)
def test_a_long_add_ends_in_one_segment(
    segments: list[tuple[int, int]], expected: list[int]
) -> None:
    assert to_merge(segments, finished=10**7) == expected


@given(batches=st.lists(st.integers(1, 3000), max_size=400))
def test_segments_stay_few_and_rows_are_copied_seldom(batches: list[int]) -> None:
    segments: list[int] = []
    copied = 0
    for batch in batches:
        segments.append(batch)
        while chosen := to_merge([(n, n) for n in segments]):
            merged = sum(segments[i] for i in chosen)
            copied += merged
            segments = [rows for i, rows in enumerate(segments) if i not in chosen] + [merged]
        total = sum(segments)
        tiers = tier(total) + 1
        assert len(segments) <= (FAN - 1) * tiers
    total = sum(batches)
    # Below FLOOR a merge is as cheap as a write; above, a row is copied once a tier.
    assert copied <= total * (tier(total) + 1) + len(batches) * FAN * FLOOR
