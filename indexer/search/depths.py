"""Searches that go deeper: their results are parts, which together are one ranking."""

MIN_SECOND, GROWTH = 100, 4
"""Minimum rows of the second part; factor from each part to the next one."""
MAX_DEPTH = 1 << 40
"""More rows than an index holds; SQLite's integers end at 2⁶³."""


def part_size(first: int, number: int) -> int:
    """The size of a part, if the first one has the size `first`."""
    if number == 0:
        return first
    second = max(MIN_SECOND, GROWTH * first)
    return min(second * int(GROWTH ** (number - 1)), MAX_DEPTH)
