"""When segments are merged: the number of segments stays logarithmic in the number of rows.

Size-tiered, as in log-structured merge trees (O'Neil et al. 1996) and Lucene's LogMergePolicy:
segments of about the same size form a tier, and FAN of them become one of the next. At most
FAN - 1 segments a tier remain, and a row is copied once a tier in its life.
"""

from collections.abc import Sequence

FAN = 4
"""Segments of a tier that become one."""

FLOOR = 256
"""Rows up to which a segment counts as smallest: to write so few costs as much as to write one."""


WORTH = 64
"""At the end of a long add all becomes one segment if the largest is less than so many times the
rest: to copy a row costs a thousandth of what it cost to encode it."""


def tier(live: int) -> int:
    """The tier of a segment with so many live rows: 0 below FLOOR, then one more for each FAN."""
    reached, limit = 0, FLOOR
    while live >= limit:
        reached, limit = reached + 1, limit * FAN
    return reached


def due(segments: Sequence[tuple[int, int]], *, finished: bool = False) -> list[int]:
    """Which of the segments, given as (live, rows), are to be written as one; none if it is well.

    The lowest tier that is full, with all that is smaller; else a segment of which half or more
    is dead. `finished`: a long add has ended, after which people search.
    """
    sizes = [rows for _, rows in segments]
    if finished and len(sizes) > 1 and WORTH * (sum(sizes) - max(sizes)) >= max(sizes):
        return [*range(len(sizes))]
    tiers = [tier(live) for live, _ in segments]
    for full in sorted(set(tiers)):
        if tiers.count(full) >= FAN:
            return [i for i, own in enumerate(tiers) if own <= full]
    return [i for i, (live, rows) in enumerate(segments) if 2 * live <= rows][:1]
