"""Threads that take turns: one runs at a time, from one named point to the next, as a seed chooses.

A point is a call of a method named in `points`, or a lock that another thread holds. So a seed
repeats an interleaving exactly. Threads that are no actors pass all points: the one that encodes
for `add` works while its actor runs or waits for it.
"""

import sys
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from random import Random
from typing import Any
from unittest import mock

from searchengine.backends.folder import merging, view
from searchengine.backends.folder.documents import database
from searchengine.backends.folder.documents.database import Database

_PATIENCE = 60.0  # seconds for one step


class Stopped(BaseException):
    """Ends an actor at its next point."""


class Hung(Exception):
    """An actor has not reached a point in time, or all wait for each other; with their stacks."""


class Actor:
    """A thread that takes steps.

    Attributes:
        name: for the trail.
        at: the point where it pauses.
        waits: the lock that it wants.
        done: whether it has ended.
    """

    def __init__(self, name: str, work: Callable[["Actor"], None], stepper: "Stepper") -> None:
        self.name, self.at, self.done = name, "start", False
        self.waits: SteppedLock | None = None
        self.go = threading.Semaphore(0)
        self._work, self._stepper = work, stepper
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)

    def _run(self) -> None:
        self.go.acquire()
        try:
            if not self._stepper.stopping:
                self._work(self)
        except Stopped:
            pass
        finally:
            self.done = True
            self._stepper.back.release()


class Stepper:
    """Chooses whose turn it is.

    Attributes:
        hits: how often each point was reached.
        stopping: whether actors end at their next point.
    """

    def __init__(self, random: Random) -> None:
        self.hits: Counter[str] = Counter()
        self.back = threading.Semaphore(0)
        self.stopping = False
        self.actors: list[Actor] = []
        self._random = random
        self._by_thread: dict[int, Actor] = {}

    def add(self, name: str, work: Callable[[Actor], None]) -> Actor:
        """A new actor, which waits for its first step."""
        actor = Actor(name, work, self)
        self.actors.append(actor)
        actor.thread.start()
        assert actor.thread.ident is not None
        self._by_thread[actor.thread.ident] = actor
        return actor

    @property
    def actor(self) -> Actor | None:
        """The actor of this thread."""
        return self._by_thread.get(threading.get_ident())

    def point(self, name: str) -> None:
        """Let the others go on, if this is an actor."""
        if (actor := self.actor) is not None:
            self.hits[name] += 1
            actor.at = name
            self._pause(actor)

    def wait(self, lock: "SteppedLock") -> bool:
        """Let the others go on until a lock is free; False if this is no actor."""
        if (actor := self.actor) is None:
            return False
        actor.waits = lock
        self._pause(actor)
        actor.waits = None
        return True

    def _pause(self, actor: Actor) -> None:
        if self.stopping:
            raise Stopped
        self.back.release()
        actor.go.acquire()
        if self.stopping:
            raise Stopped

    def step(self) -> Actor | None:
        """Let one actor go on to its next point; None if all have ended. Raises Hung."""
        living = [actor for actor in self.actors if not actor.done]
        ready = [actor for actor in living if actor.waits is None or actor.waits.owner is None]
        if not living:
            return None
        if not ready:
            raise Hung(f"all wait for each other:\n{self.stacks()}")
        actor = self._random.choice(ready)
        actor.go.release()
        if not self.back.acquire(timeout=_PATIENCE):
            raise Hung(f"{actor.name} hangs:\n{self.stacks()}")
        return actor

    def stop(self) -> None:
        """End all actors."""
        self.stopping = True
        for actor in self.actors:
            while not actor.done and actor.thread.is_alive():
                actor.go.release()
                self.back.acquire(timeout=1)

    def stacks(self) -> str:
        """Where each actor is."""
        frames = sys._current_frames()
        parts = []
        for actor in self.actors:
            frame = frames.get(actor.thread.ident or 0)
            parts.append(f"{actor.name} at {actor.at}")
            parts += traceback.format_stack(frame)[-6:] if frame else []
        return "\n".join(parts)


class SteppedLock:
    """A reentrant lock; an actor that waits for it lets the others go on.

    Attributes:
        owner: the thread that holds it.
    """

    def __init__(self, stepper: Stepper) -> None:
        self.owner: int | None = None
        self._count, self._stepper = 0, stepper

    def acquire(self, blocking: bool = True) -> bool:
        """As threading.RLock."""
        me = threading.get_ident()
        while self.owner not in (None, me):
            if not blocking:
                return False
            if not self._stepper.wait(self):
                raise RuntimeError("a thread that is no actor waits for an actor")
        self.owner, self._count = me, self._count + 1
        return True

    def release(self) -> None:
        """As threading.RLock."""
        self._count -= 1
        if not self._count:
            self.owner = None

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


@contextmanager
def stepped(stepper: Stepper, points: list[tuple[Any, str]]) -> Iterator[None]:
    """Pause actors before calls of these methods, at both ends of transactions, and at locks."""

    def pausing(owner: Any, name: str) -> Any:
        original = getattr(owner, name)

        def method(self: Any, *arguments: Any, **options: Any) -> Any:
            stepper.point(f"{owner.__name__}.{name}")
            return original(self, *arguments, **options)

        return mock.patch.object(owner, name, method)

    transact = Database.transaction

    @contextmanager
    def transaction(self: Database, wait: float = 0, *, queue: bool = True) -> Iterator[None]:
        stepper.point("before a transaction")
        with transact(self, wait, queue=queue):
            stepper.point("in a transaction")
            yield
        stepper.point("after a transaction")

    turns: dict[Any, SteppedLock] = {}

    def turn(identity: Any) -> SteppedLock:
        return turns.setdefault(identity, SteppedLock(stepper))

    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(Database, "transaction", transaction))
        stack.enter_context(mock.patch.object(database, "turn", turn))
        stack.enter_context(mock.patch.object(view, "RLock", lambda: SteppedLock(stepper)))
        stack.enter_context(
            mock.patch.object(merging, "sleep", lambda _: stepper.point("while others merge"))
        )
        for owner, name in points:
            stack.enter_context(pausing(owner, name))
        yield
