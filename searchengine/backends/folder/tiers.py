"""When segments are merged: the number of segments stays logarithmic in the number of rows.

Size-tiered, as in log-structured merge trees (O'Neil et al. 1996) and Lucene's LogMergePolicy:
segments of about the same size form a tier, and FAN of them become one of the next. At most
FAN - 1 segments a tier remain, and a row is copied once a tier in its life.

The call that fills a tier merges it: another one, which adds a few rows meanwhile, would otherwise
copy what the first has added.
"""

from collections.abc import Collection, Sequence

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


def due(
    segments: Sequence[tuple[int, int]], *, made: Collection[int], finished: int = 0
) -> list[int]:
    """Positions of the segments, given as (live, rows), that a call should merge; empty if none.

    The lowest full tier with a segment of this call, and all smaller segments; else a segment of
    which half or more was deleted.

    Args:
        segments: the segments.
        made: the positions of those that this call has written.
        finished: the documents of a long add that has ended here, and searches follow; 0: it goes
            on, or it is a short one.
    """
    sizes = [rows for _, rows in segments]
    largest = max(sizes, default=0)
    if len(sizes) > 1 and FINAL_RATIO * finished >= largest:
        if (FAN if largest >= LARGE else FINAL_RATIO) * (sum(sizes) - largest) >= largest:
            return [*range(len(sizes))]
        if largest >= LARGE and len(sizes) > 2:
            return [i for i in range(len(sizes)) if i != sizes.index(largest)]
    tiers = [tier(live) for live, _ in segments]
    for full in sorted({tiers[i] for i in made}):
        if tiers.count(full) >= FAN:
            return [i for i, number in enumerate(tiers) if number <= full]
    return [i for i, (live, rows) in enumerate(segments) if 2 * live <= rows][:1]
