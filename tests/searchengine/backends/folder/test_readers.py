"""Many readers, one writer: every answer is that of one committed state.

SEARCHENGINE_STRESS_SECONDS=180 pytest -s test_readers.py makes it last,
and prints counts; SEARCHENGINE_STRESS_READERS=8 takes so many processes and no threads.
tests/readers_campaign.py does the same in pieces.
"""

import os
import time
from pathlib import Path
from typing import Any

import pytest
from clean_process import clean
from conftest import WordLengths
from expected import Question, Record, State
from readers_campaign import Answer, Judge, run

from searchengine import SearchEngine
from searchengine.errors import CollectionBusy

pytestmark = pytest.mark.filterwarnings("ignore::searchengine.errors.FieldWarning")

SECONDS = float(os.environ.get("SEARCHENGINE_STRESS_SECONDS", "3"))
READERS = int(os.environ.get("SEARCHENGINE_STRESS_READERS", "0"))


def test_every_answer_is_of_one_committed_state(tmp_path: Path) -> None:
    processes, threads = (READERS, 0) if READERS else (4, 4)
    counts, problems = run(tmp_path / "x.index", SECONDS, 0, processes, threads)
    print(f"\n{processes} processes and {threads} threads that read: {dict(counts)}")
    assert problems == []
    assert counts["changes"] > 5
    assert counts["answers"] > 5 * (processes + threads)


def state(*keys: str) -> State:
    return State({key: Record("", "x", {}, {}) for key in keys})


def answer(first: int, last: int, *keys: str) -> Answer:
    return Answer(first, last, Question("x", 9), [(key, 1.0, "", "x", {}) for key in keys])


def judged(*answers: Answer) -> Judge:
    """A judge who was told of commits 1, 4 (with merges between) and 5."""
    judge = Judge("reader")
    judge._waiting.extend(answers)
    for commit, keys in ((1, "a"), (4, "ab"), (5, "b")):
        judge.learn(commit, state(*keys))
        judge.settle()
    return judge


def test_answers_wait_until_their_commit_is_known() -> None:
    judge = Judge("reader")
    judge._waiting.append(answer(1, 2, "a", "b"))
    judge.learn(1, state("a"))
    judge.settle()
    assert len(judge._waiting) == 1
    judge.learn(2, state("a", "b"))
    judge.settle()
    assert not judge._waiting and not judge.problems


def test_a_commit_within_an_operation_holds_either_state() -> None:
    assert judged(answer(1, 1, "a"), answer(3, 3, "a"), answer(3, 3, "a", "b")).problems == []


@pytest.mark.parametrize(
    ("wrong", "kind"),
    [
        (answer(4, 4, "a"), "lost"),  # the state of before
        (answer(1, 1, "a", "b"), "wrong"),  # the state of later, not heard of yet
        (answer(5, 5, "a", "b"), "lost"),
        (answer(1, 4), "wrong"),
    ],
)
def test_a_reader_notices_an_answer_of_another_state(wrong: Answer, kind: str) -> None:
    judge = judged(wrong)
    assert [problem["kind"] for problem in judge.problems] == [kind]
    assert judge.counts["wrong"] == 1


def test_states_that_nobody_can_see_are_forgotten() -> None:
    judge = judged(answer(1, 1, "a"), answer(5, 5, "b"))
    assert judge._commits == [5]


def test_a_second_writer_waits_if_asked(tmp_path: Path) -> None:
    path = tmp_path / "x.index"
    begun = clean.Event()
    with (
        SearchEngine.create(path, WordLengths()) as patient,
        SearchEngine.open(path, WordLengths()) as hasty,
    ):
        patient.collection.wait = 60
        writer = clean.Process(target=_write_slowly, args=(path, begun))
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
