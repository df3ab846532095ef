"""Many readers, one writer: every answer is that of one committed state.

SEARCHENGINE_STRESS_SECONDS=180 pytest -s tests/test_readers.py makes it last, and prints counts.
"""

import json
import multiprocessing
import os
import random
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from conftest import WordLengths

from searchengine import SearchEngine
from searchengine.errors import CollectionBusy

SECONDS = float(os.environ.get("SEARCHENGINE_STRESS_SECONDS", "6"))
READERS = 8  # four processes, four threads of the writer's own process
QUESTIONS = ("aaa aa", "aaaaaaa", "a aaaaa aaaaaaaaaaaa")
EVERYTHING = 500

State = dict[str, tuple[str, int]]


@dataclass
class Seen:
    """What readers saw: the commits that it may have been, question, filter and answer."""

    answers: list[tuple[int, int, str, str | None, list[tuple[str, str, float]]]] = field(
        default_factory=list
    )

    def ask(self, engine: SearchEngine, choose: random.Random) -> None:
        question = choose.choice(QUESTIONS)
        where = choose.choice([None, "n >= 1"])
        k = choose.choice([3, EVERYTHING])
        first = engine.stats().commit
        hits = engine.search(question, k, where=where)
        last = engine.stats().commit
        found = [(hit.key, hit.text, hit.score) for hit in hits]
        self.answers.append((first, last, question, where, found))


def test_every_answer_is_of_one_committed_state(tmp_path: Path) -> None:
    path, log = tmp_path / "x.index", tmp_path / "log.jsonl"
    engine = SearchEngine.create(path, WordLengths(), {"prefix": 4})
    states: dict[int, State] = {engine.stats().commit: {}}
    spawn = multiprocessing.get_context("spawn")
    stop = spawn.Event()
    processes = [
        spawn.Process(target=_read, args=(path, log.with_suffix(f".{i}"), i, stop))
        for i in range(READERS // 2)
    ]
    for process in processes:
        process.start()
    threads_stop = threading.Event()
    seen = [Seen() for _ in range(READERS // 2)]
    errors: list[BaseException] = []
    threads = [
        threading.Thread(target=_ask, args=(engine, mine, i, threads_stop, errors))
        for i, mine in enumerate(seen)
    ]
    for thread in threads:
        thread.start()
    changes = 0
    try:
        for commit, state in _write(engine, random.Random(0), time.monotonic() + SECONDS):
            states[commit] = state
            changes += 1
    finally:
        stop.set()
        threads_stop.set()
        for thread in threads:
            thread.join()
        for process in processes:
            process.join(60)
    assert not errors
    assert [process.exitcode for process in processes] == [0] * len(processes)
    answers = [answer for mine in seen for answer in mine.answers]
    for i in range(len(processes)):
        answers += json.loads(log.with_suffix(f".{i}").read_text())
    for answer in answers:
        _check(answer, states)
    engine.verify()
    engine.close()
    rows = sum(len(answer[4]) for answer in answers)
    print(f"\n{READERS} readers, {changes} changes, {len(answers)} answers, {rows} hits, 0 wrong")
    assert changes > 5
    assert len(answers) > 5 * READERS


def _write(
    engine: SearchEngine, choose: random.Random, until: float
) -> Iterator[tuple[int, State]]:
    """Change the collection at random; yields commit numbers and what they hold."""
    state: State = {}
    serial = 0
    while time.monotonic() < until:
        kind = choose.choices(
            ["add", "one", "delete", "where", "update", "optimize"], [5, 5, 3, 1, 3, 1]
        )[0]
        if kind in ("add", "one"):
            batch = []
            for _ in range(1 if kind == "one" else choose.randint(2, 40)):
                serial += 1
                key = f"k{choose.randint(0, 60)}"
                text = " ".join("a" * choose.randint(1, 16) for _ in range(4))
                batch.append({"_id": key, "text": text, "n": serial % 3})
            unique = {document["_id"]: document for document in batch}
            engine.add(unique.values())
            state |= {key: (str(d["text"]), int(d["n"])) for key, d in unique.items()}
        elif kind == "delete":
            gone = [f"k{choose.randint(0, 60)}" for _ in range(8)]
            engine.delete(gone)
            state = {key: value for key, value in state.items() if key not in gone}
        elif kind == "where":
            engine.delete(where="n = 2")
            state = {key: value for key, value in state.items() if value[1] != 2}
        elif kind == "update" and state:
            key = choose.choice(sorted(state))
            engine.update({key: {"n": 5}})
            state = state | {key: (state[key][0], 5)}
        elif kind == "optimize":
            engine.optimize()
        yield engine.stats().commit, dict(state)


def _read(path: Path, log: Path, seed: int, stop: Any) -> None:
    """A process that opens the collection, asks and refreshes until it is told to stop."""
    seen, choose = Seen(), random.Random(seed)
    while not stop.is_set():
        with SearchEngine.open(path, WordLengths()) as engine:
            for _ in range(20):
                for _ in range(choose.randint(1, 5)):
                    seen.ask(engine, choose)
                engine.refresh()
    log.write_text(json.dumps(seen.answers))


def _ask(
    engine: SearchEngine,
    seen: Seen,
    seed: int,
    stop: threading.Event,
    errors: list[BaseException],
) -> None:
    """A thread that asks the engine that writes."""
    choose = random.Random(100 + seed)
    try:
        while not stop.is_set():
            seen.ask(engine, choose)
    except BaseException as error:
        errors.append(error)


def _check(answer: Any, states: dict[int, State]) -> None:
    """The answer is right for one of the states it may be of.

    Merges are commits that change nothing: the state of a commit is that of the last one logged.
    """
    first, last, question, where, found = answer
    logged = sorted(states)
    # The log is written when an operation has ended; a commit in its midst may be that already.
    after = [commit for commit in logged if commit >= last][:1]
    before = [commit for commit in logged if commit <= first][-1:]
    possible = {*before, *(c for c in logged if first <= c <= last), *after}
    assert any(_right(states[c], question, where, found) for c in possible), answer[:4]


def _right(state: State, question: str, where: str | None, found: Any) -> bool:
    state = {key: value for key, value in state.items() if where is None or value[1] >= 1}
    encoder = WordLengths()
    if not state or not found:
        return not state and not found
    vectors = encoder.encode([text for text, _ in state.values()])
    scores = dict(zip(state, (vectors @ encoder.encode([question])[0]).tolist(), strict=True))
    if len(found) not in (3, len(state)):
        return False
    for key, text, score in found:
        if key not in state or state[key][0] != text or abs(scores[key] - score) > 2e-3:
            return False
    others = [score for key, score in scores.items() if key not in {hit[0] for hit in found}]
    return not others or found[-1][2] > max(others) - 2e-3


def test_a_second_writer_waits_if_asked(tmp_path: Path) -> None:
    path = tmp_path / "x.index"
    spawn = multiprocessing.get_context("spawn")
    begun = spawn.Event()
    with (
        SearchEngine.create(path, WordLengths()) as patient,
        SearchEngine.open(path, WordLengths()) as hasty,
    ):
        patient.collection.wait = 60
        writer = spawn.Process(target=_write_slowly, args=(path, begun))
        writer.start()
        assert begun.wait(60)
        with pytest.raises(CollectionBusy, match="wait for it: --wait SECONDS"):
            hasty.add([{"_id": "4", "text": "aaaa"}])
        patient.add([{"_id": "3", "text": "aaa"}])
        writer.join(60)
        patient.refresh()
        assert {hit.key for hit in patient.search("a", 9)} == {"1", "3"}


def _write_slowly(path: Path, begun: Any) -> None:
    """Add a document by a commit that takes a while."""

    def slow(what: str, done: int, total: int) -> None:
        begun.set()
        time.sleep(0.5)

    with SearchEngine.open(path, WordLengths()) as engine:
        engine.add([{"_id": "1", "text": "a"}], building=slow)
