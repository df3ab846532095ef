"""When segments are merged: size-tiered, so that their number is logarithmic in the rows.

As in log-structured merge trees (O'Neil et al. 1996) and Lucene's LogMergePolicy. Segments of about
the same size form a tier, and FAN of them become one of the next. At most FAN - 1 segments a tier
remain, and a row is copied once a tier in its life.
"""

from collections.abc import Sequence

FAN = 4
"""Number of segments of a tier that are merged into one."""

FLOOR = 256
"""Rows below which a segment is in the lowest tier: writing so few costs as much as writing one."""

FINAL_RATIO = 64
"""At the end of a long add all segments are merged unless the largest has this many times the rows
of the others: copying a row costs a thousandth of encoding it."""

LARGE = 1 << 20
"""Rows from which a segment is merged at the end of an add only with a FAN-th as many others: it
would be copied for minutes, and searching one more segment takes a tenth of a millisecond."""


def tier(live: int) -> int:
    """The tier of a segment by its live rows: 0 below FLOOR, then one more for each factor FAN."""
    number, limit = 0, FLOOR
    while live >= limit:
        number, limit = number + 1, limit * FAN
    return number


def to_merge(segments: Sequence[tuple[int, int]], finished: int = 0) -> list[int]:
    """Positions of the segments, given as (live, rows), that should be merged now; empty if none.

    The lowest full tier, and all smaller segments; else a segment with half or more of its rows
    deleted. `finished`: documents added by a long `add`, if searches come next; 0 during such an
    `add`, and for a short one.
    """
    sizes = [rows for _, rows in segments]
    largest = max(sizes, default=0)
    if len(sizes) > 1 and FINAL_RATIO * finished >= largest:
        if (FAN if largest >= LARGE else FINAL_RATIO) * (sum(sizes) - largest) >= largest:
            return [*range(len(sizes))]
        if largest >= LARGE and len(sizes) > 2:
            return [i for i in range(len(sizes)) if i != sizes.index(largest)]
    tiers = [tier(live) for live, _ in segments]
    for full in sorted({*tiers}):
        if tiers.count(full) >= FAN:
            return [i for i, number in enumerate(tiers) if number <= full]
    return [i for i, (live, rows) in enumerate(segments) if 2 * live <= rows][:1]
