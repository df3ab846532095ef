"""Limits of one call: the time that it may take, and the text that it may read.

with limited(Deadline.after(5)):
    engine.search(…)       # statements of SQLite are interrupted, loops call `check`

They are those of a thread, or of an asyncio task; inner limits never loosen outer ones.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from math import inf
from time import monotonic
from typing import NamedTuple, Self

from searchengine.errors import QueryError, SearchTimeout


class Deadline(NamedTuple):
    """When a call must have ended, by time.monotonic, and the seconds that it had; inf: any."""

    at: float = inf
    seconds: float = inf

    @classmethod
    def after(cls, seconds: float | None) -> Self:
        """The deadline of a call that begins now; None: it has none."""
        return cls() if seconds is None else cls(monotonic() + seconds, seconds)

    def expired(self) -> bool:
        """Whether the time is over."""
        return monotonic() > self.at

    def exceeded(self) -> SearchTimeout:
        """The error for it."""
        return SearchTimeout(
            f"not answered within {self.seconds:g} seconds; narrow the filter, ask for fewer hits, "
            "or pass a larger timeout"
        )


@dataclass(slots=True)
class Limits:
    """When a call must have ended, and the characters of documents that it may still read."""

    deadline: Deadline
    characters: float


_UNLIMITED = Limits(Deadline(), inf)  # whatever is counted
_current = ContextVar("limits", default=_UNLIMITED)
current = _current.get
"""The limits of the call that runs."""


@contextmanager
def limited(deadline: Deadline, characters: float | None = None) -> Iterator[None]:
    """Limit what the block does, within the limits of now. `characters`: None: no others."""
    outer = current()
    most = outer.characters if characters is None else min(characters, outer.characters)
    token = _current.set(Limits(min(deadline, outer.deadline), most))
    try:
        yield
    finally:
        _current.reset(token)


def check() -> None:
    """Raise SearchTimeout if the time of the call is over."""
    if (deadline := current().deadline).expired():
        raise deadline.exceeded()


def count_text(characters: int) -> None:
    """Count text that was read. Raises QueryError if it is more than the call may read."""
    limits = current()
    limits.characters -= characters
    if limits.characters < 0:
        raise QueryError("the documents are too long to be read at once; ask for fewer")
