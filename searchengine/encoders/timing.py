"""How long a question takes to be encoded, which a user waits for besides the search."""

import time
from collections.abc import Callable, Sequence

import numpy.typing as npt

QUESTIONS = (
    "how do whales sleep",
    "which settings keep the index small without losing quality",
    "what happened to the price of bread in the second half of the year, and why",
)
"""Questions of the usual lengths, where there are no others."""
_TIMED = 100


def milliseconds_alone(
    encode: Callable[[Sequence[str]], npt.ArrayLike], questions: Sequence[str]
) -> list[float]:
    """Milliseconds of at most 100 questions, each encoded alone, after each was encoded once."""
    seconds = []
    for text in [*questions[:_TIMED]] * 2:
        begin = time.perf_counter()
        encode([text])
        seconds.append(time.perf_counter() - begin)
    return [1e3 * value for value in seconds[len(seconds) // 2 :]]
