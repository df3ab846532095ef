"""Limits of one call: the time that it may take, and the text that it may read.

with limited(Deadline.after(5)):
    engine.search(…)       # statements of SQLite are interrupted, loops call `check`

They are those of a thread, or of an asyncio task; inner limits take the place of outer ones.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from time import monotonic
from typing import NamedTuple, Self

from searchengine.errors import QueryError, SearchTimeout


class Deadline(NamedTuple):
    """When a call must have ended, by time.monotonic, and the seconds that it had."""

    at: float
    seconds: float

    @classmethod
    def after(cls, seconds: float | None) -> Self | None:
        """The deadline of a call that begins now; None: it has none."""
        return None if seconds is None else cls(monotonic() + seconds, seconds)


@dataclass(slots=True)
class Limits:
    """The limits of a call.

    Attributes:
        deadline: when it must have ended; None: it may take any time.
        characters: of documents that it may still read; None: any number.
    """

    deadline: Deadline | None
    characters: int | None

    def expired(self) -> bool:
        """Whether the time is over."""
        return self.deadline is not None and monotonic() > self.deadline.at

    def exceeded(self) -> SearchTimeout:
        """The error for it."""
        assert self.deadline is not None
        return SearchTimeout(
            f"not answered within {self.deadline.seconds:g} seconds; narrow the filter, ask for "
            "fewer hits, or pass a larger timeout"
        )


_current: ContextVar[Limits | None] = ContextVar("limits", default=None)


def current() -> Limits | None:
    """The limits of the call that runs; None: it has none."""
    return _current.get()


@contextmanager
def limited(deadline: Deadline | None, characters: int | None = None) -> Iterator[None]:
    """Limit what the block does."""
    if deadline is None and characters is None:
        yield
        return
    token = _current.set(Limits(deadline, characters))
    try:
        yield
    finally:
        _current.reset(token)


def check() -> None:
    """Raise SearchTimeout if the time of the call is over."""
    limits = _current.get()
    if limits is not None and limits.expired():
        raise limits.exceeded()


def count_text(characters: int) -> None:
    """Count text that was read. Raises QueryError if it is more than the call may read."""
    limits = _current.get()
    if limits is not None and limits.characters is not None:
        limits.characters -= characters
        if limits.characters < 0:
            raise QueryError("the documents are too long to be read at once; ask for fewer")
