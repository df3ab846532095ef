"""Calls that come at once are done together, and each gets its own result or its own error."""

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from conftest import WordLengths
from hypothesis import given
from hypothesis import strategies as st

from searchengine import SearchEngine
from searchengine.errors import QueryError
from searchengine.query.coalescing import Coalescer, _Call


class Gate:
    """Doubles texts when it is let; `begun` tells that it was asked."""

    def __init__(self) -> None:
        self.calls: list[list[str]] = []
        self.begun = threading.Semaphore(0)
        self.let = threading.Semaphore(0)

    def __call__(self, items: list[str]) -> list[str]:
        self.calls.append(items)
        self.begun.release()
        assert self.let.acquire(timeout=30)
        if "spoilt" in items:
            raise ValueError("a spoilt item")
        if "stop" in items:
            raise KeyboardInterrupt
        return [2 * item for item in items]


def waiting(together: Coalescer[Any, Any], count: int) -> None:
    """Wait until this number of callers waits, the working one included."""
    pause = threading.Event()
    for _ in range(3000):
        with together._lock:
            if len(together._waiting) == count:
                return
        pause.wait(0.01)
    raise AssertionError(f"{len(together._waiting)} callers wait, not {count}")


def idle(together: Coalescer[Any, Any]) -> bool:
    return not together._busy and not together._waiting


def test_a_fault_is_its_callers_own() -> None:
    together = Coalescer(gate := Gate())
    with ThreadPoolExecutor(3) as callers:
        first, bad, good = (callers.submit(together, item) for item in ("a", "spoilt", "d"))
        waiting(together, 3)
        gate.let.release(100)
        with pytest.raises(ValueError, match="a spoilt item"):
            bad.result(timeout=30)
        assert (first.result(timeout=30), good.result(timeout=30)) == ("aa", "dd")


def test_an_interrupted_caller_does_not_block_the_others() -> None:
    gate = Gate()
    together = Coalescer(gate)
    with ThreadPoolExecutor(2) as callers:
        first = callers.submit(together, "stop")
        assert gate.begun.acquire(timeout=30)
        other = callers.submit(together, "b")
        waiting(together, 2)
        gate.let.release(100)
        with pytest.raises(KeyboardInterrupt):
            first.result(timeout=30)
        assert other.result(timeout=30) == "bb"
    assert idle(together)


@pytest.mark.parametrize("chosen", [False, True])
def test_an_interrupted_waiter_does_not_block_the_others(
    monkeypatch: pytest.MonkeyPatch, chosen: bool
) -> None:
    """Before it was chosen to work next, and after."""

    class Interrupted(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            if threading.current_thread().name != "interrupted":
                return super().wait(timeout)
            if chosen:
                super().wait(timeout)
            raise KeyboardInterrupt

    monkeypatch.setattr("searchengine.query.coalescing._Call", one_with(Interrupted))
    gate = Gate()
    together = Coalescer(gate)
    ended: list[str] = []

    def interrupted() -> None:
        with pytest.raises(KeyboardInterrupt):
            together("x")
        ended.append("x")

    with ThreadPoolExecutor(2) as callers:
        first = callers.submit(together, "a")
        assert gate.begun.acquire(timeout=30)
        thread = threading.Thread(target=interrupted, name="interrupted")
        thread.start()
        waiting(together, 2) if chosen else thread.join(30)
        other = callers.submit(together, "b")
        waiting(together, 3 if chosen else 2)
        gate.let.release(100)
        assert first.result(timeout=30) == "aa"
        assert other.result(timeout=30) == "bb"
        thread.join(30)
    assert ended == ["x"] and idle(together)


def one_with(event: type[threading.Event]) -> type[_Call[Any, Any]]:
    """Calls that wait by this kind of event."""

    @dataclass(slots=True, eq=False)
    class Call(_Call[Any, Any]):
        woken: threading.Event = field(default_factory=event)

    return Call


@given(st.lists(st.text(max_size=3), max_size=40))
def test_any_callers_get_their_own(items: list[str]) -> None:
    together = Coalescer(lambda some: [(item, len(some)) for item in some])
    with ThreadPoolExecutor(8) as callers:
        found = list(callers.map(together, items))
    assert [item for item, _ in found] == items
    assert idle(together)


class Counted(WordLengths):
    """Says how many texts were encoded at once, and lets others in meanwhile."""

    def encode(self, texts: Sequence[str], *, role: str | None = None) -> npt.NDArray[np.float32]:
        if role == "query":
            threading.Event().wait(0.02)
        return super().encode(texts, role=role)


def test_searching_from_several_threads(tmp_path: Path) -> None:
    encoder = Counted()
    with SearchEngine.create(tmp_path / "c", encoder) as engine:
        engine.add([{"_id": str(i), "text": "a " * i + "bee " * (9 - i)} for i in range(10)])
        encoder.calls.clear()
        questions = ["a " * i + "bee " * (9 - i) for i in range(10)] * 2

        def best(question: str) -> list[str]:
            return [hit.key for hit in engine.search(question, 1, mode="vector")]

        with ThreadPoolExecutor(10) as callers:
            assert list(callers.map(best, questions)) == [[str(i)] for i in range(10)] * 2
            assert len(encoder.calls) < 10, "some were encoded together"
            searches = [
                callers.submit(engine.search, "a", k, mode=m) for k in (1, 2, 3) for m in MODES
            ]
            searches.append(callers.submit(engine.search, "  "))
            sizes = [len(one.result(timeout=30)) for one in searches[:-1]]
            assert sizes == [1, 1, 2, 2, 3, 3]
            with pytest.raises(QueryError, match="the query is empty"):
                searches[-1].result(timeout=30)
        assert not engine._calls, "what nobody asks any more is let go of"


MODES = ("vector", "hybrid")
