"""A few seeds of the campaign of processes; what it must notice; the model it judges by."""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from campaign_results import Piece, Results, seed_range, source_digest
from conftest import REPOSITORY, WordLengths
from engine_process import rows
from expected import FILTERS, Question, Record, Row, State, added, kind_of, merged, patched
from faults import environment, missing

from searchengine import SearchEngine

pytestmark = pytest.mark.filterwarnings("ignore::searchengine.errors.FieldWarning")

DRIVER = REPOSITORY / "tests" / "processes_campaign.py"
needs_faults = pytest.mark.skipif(missing() is not None, reason=missing() or "")


def campaign(*arguments: str) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """What each seed found, and what they come to."""
    done = subprocess.run(
        [sys.executable, str(DRIVER), "--jobs", "2", *arguments],
        capture_output=True,
        text=True,
        timeout=600,
        env=environment(),
    )
    assert done.stdout, done.stderr
    *seeds, total = map(json.loads, done.stdout.splitlines())
    assert done.returncode == (1 if total["problems"] else 0)
    return seeds, total


@needs_faults
@pytest.mark.parametrize("number", [1, pytest.param(8, marks=pytest.mark.long)])
def test_processes_that_share_a_collection_lose_nothing(number: int) -> None:
    seeds, total = campaign("--seeds", f"0:{number}", "--steps", "100")
    assert [problem for seed in seeds for problem in seed["problems"]] == []
    counts = total["counts"]
    assert counts["steps"] == 100 * number
    assert counts["kills"] >= 4 * number
    assert min(counts["forks"], counts["replaced folders"], counts["refused"]) >= number
    assert min(counts["reindexes"], counts["vectors compared"]) >= number
    assert counts.get("watchers", 0) >= number // 2  # a seed's kills may leave no time for one
    assert counts["answers"] > 200 * number


@needs_faults
@pytest.mark.parametrize(
    ("sabotage", "steps", "kinds"),
    [
        pytest.param(
            *("descriptors", "warm,add,refresh,search,delete,open_or_close", None),
            marks=pytest.mark.long,
        ),
        pytest.param("stale", "add,refresh,search", {"lost"}, marks=pytest.mark.long),
        pytest.param("deaf", "add,delete", {"lost", "wrong"}, marks=pytest.mark.long),
        pytest.param("mixed", "add,reindex,together", {"wrong"}, marks=pytest.mark.long),
        pytest.param("blind", "add,watch", {"lost"}, marks=pytest.mark.long),
    ],
)
def test_the_campaign_notices(sabotage: str, steps: str, kinds: set[str] | None) -> None:
    seeds, _ = campaign("--seeds", "0:2", "--steps", "80", "--sabotage", sabotage, "--only", steps)
    found = {problem["kind"] for seed in seeds for problem in seed["problems"]}
    assert found
    assert kinds is None or found <= kinds


@needs_faults
@pytest.mark.long
def test_finished_seeds_are_left_out(tmp_path: Path) -> None:
    results = tmp_path / "found.jsonl"
    arguments = ["--steps", "2", "--only", "add", "--results", str(results)]
    first, _ = campaign("--seeds", "0:2", *arguments)
    again, _ = campaign("--seeds", "0:3", *arguments)
    assert sorted(seed["seed"] for seed in first) == [0, 1]
    assert [seed["seed"] for seed in again] == [2]
    summary = Results(results).summary()
    assert "(current source): 3 pieces" in summary
    assert "steps: 6" in summary


def test_pieces_of_another_source_count_apart(tmp_path: Path) -> None:
    results = Results(tmp_path / "found.jsonl")
    old = Piece("x", {}, 0, 1.0, Counter(steps=5), [{"kind": "lost"}], "0" * 64)
    results.append(old)
    results.append(Piece("x", {}, 1, 1.0, Counter(steps=7), [], source_digest()))
    assert results.unfinished("x", {}, range(3)) == [0, 2]
    assert results.unfinished("x", {"steps": 9}, range(2)) == [0, 1]
    summary = results.summary()
    assert f"x on {'0' * 16} (another source): 1 pieces, 1 s, 1 problems" in summary
    assert "PROBLEM lost: 1" in summary
    assert "(current source): 1 pieces, 1 s, 0 problems\n    steps: 7" in summary


def test_a_results_file_outlives_a_torn_last_line(tmp_path: Path) -> None:
    results = Results(tmp_path / "found.jsonl")
    results.append(Piece("x", {}, 0, 1.0, Counter(), [], "a"))
    with (tmp_path / "found.jsonl").open("a") as file:
        file.write('{"campaign": "x", "argu')
    assert [piece.seed for piece in results.pieces()] == [0]
    results.append(Piece("x", {}, 1, 1.0, Counter(), [], "a"))
    assert [piece.seed for piece in results.pieces()] == [0, 1]


def test_the_digest_is_that_of_the_source(tmp_path: Path) -> None:
    for package in ("searchengine", "indexer", "trainer"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text("x = 1\n")

    def digest() -> str:
        code = "from campaign_results import source_digest; print(source_digest())"
        path = os.pathsep.join([str(tmp_path), str(DRIVER.parent)])
        return subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONPATH": path},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()

    first = digest()
    (tmp_path / "indexer" / "notes.txt").write_text("no source")
    assert digest() == first
    (tmp_path / "indexer" / "more.py").write_text("")
    assert digest() != first


def test_seed_ranges() -> None:
    assert seed_range("3:6") == range(3, 6)


def test_metadata_is_merged_from_three_sides() -> None:
    base = {"year": 1990, "lang": "en", "author": {"name": "ann", "rank": 1}}
    mine = {"year": 2000, "lang": "en", "author": {"name": "ann", "rank": 5}, "seen": True}
    assert merged(base, mine, base) == mine
    theirs = {"year": 1990, "author": {"name": "bob", "rank": 1}, "pages": 3}
    assert merged(base, mine, theirs) == {
        "year": 2000,  # ours: the source says what it said
        "author": {"name": "bob", "rank": 5},
        "seen": True,
        "pages": 3,
    }
    assert merged(base, {}, base) == {}  # what was removed by hand stays away
    assert merged(base, mine, {**base, "year": 1991})["year"] == 1991


def test_a_merge_patch_removes_by_null_and_goes_into_objects() -> None:
    assert patched({"a": 1, "b": {"c": 1, "d": 2}}, {"a": None, "b": {"c": None, "e": 3}}) == {
        "b": {"d": 2, "e": 3}
    }
    assert patched({"a": 1}, {"a": {"b": None}}) == {"a": {}}


def state(**texts: str) -> State:
    return State({key: added(None, "", text, {"n": len(key)}) for key, text in texts.items()})


def row(state: State, key: str, score: float) -> Row:
    record = state.records[key]
    return key, score, record.title, record.text, record.metadata


def test_a_right_answer_has_no_fault_and_every_wrong_one_has() -> None:
    held = state(a="x", b="x xx", c="xxx")
    right = [row(held, "a", 1.0), row(held, "b", 0.5**0.5), row(held, "c", 0.0)]
    everything = Question("x", 9)
    assert held.fault(everything, right) is None
    assert held.fault(Question("x", 2), right[:2]) is None
    assert "not found: ['c']" in (held.fault(everything, right[:2]) or "")
    assert "not in order" in (held.fault(everything, right[::-1]) or "")
    assert "twice" in (held.fault(everything, [*right, right[0]]) or "")
    assert "left out" in (held.fault(Question("x", 2), [right[0], right[2]]) or "")
    assert "score" in (held.fault(everything, [row(held, "a", 0.9), *right[1:]]) or "")
    stale = ("a", 1.0, "", "x", {"n": 7})
    assert "a is" in (held.fault(everything, [stale, *right[1:]]) or "")
    assert "should not" in (state(a="x").fault(everything, right) or "")
    assert held.fault(Question("x", 9, filter=3), []) is None  # n >= 20
    assert "should not" in (held.fault(Question("x", 9, filter=3), right[:1]) or "")


def test_words_are_scored_by_bm25() -> None:
    held = state(a="x xx", b="xx", c="xx", d="xx xxx")
    answer, most = held.bm25("x", FILTERS[0])
    assert list(answer) == ["a"]
    # ln(5 / 1.5) · 2.2 / (1 + 1.2 (0.25 + 0.75 · 2 / 1.5))
    assert answer["a"] == pytest.approx(1.2039728 * 2.2 / 2.5, rel=1e-6)
    assert most == pytest.approx(1.2039728 * 2.2, rel=1e-6)


def test_a_word_that_no_document_has_is_scored_as_a_collection_does(tmp_path: Path) -> None:
    texts = {f"d{n}": "x " * n + "xx " * (n == 4) + "xxx " * (n % 5 == 0) for n in range(1, 16)}
    held = state(**texts)
    documents = [{"_id": key, "text": text, "n": len(key)} for key, text in texts.items()]
    with SearchEngine.create(tmp_path / "c", WordLengths()) as engine:
        engine.add(documents)
        for asked in ("xx xxx", "xx xxx xxxxx", "x xxx xxxxx xxxxxx xxxxxxx"):
            question = Question(asked, 20, mode="hybrid")
            assert held.fault(question, rows(engine, question)) is None, asked


def test_a_document_is_looked_for_in_other_states() -> None:
    old, new = state(a="x"), state(a="xx", b="x")
    both = [row(new, "b", 1.0), row(old, "a", 1.0)]
    question = Question("x", 9)

    def kind(answer: list[Row]) -> str:
        return kind_of(answer, [old, new], lambda s: s.fault(question, answer) is None)

    assert kind([row(old, "a", 1.0)]) == "lost"
    assert kind(both) == "mixed"
    assert kind([("a", 1.0, "", "xxx", {})]) == "wrong"


def test_a_record_keeps_what_the_source_said() -> None:
    first = added(None, "", "x", {"n": 1})
    changed = Record("", "x", first.source, patched(first.metadata, {"n": 5}))
    assert added(changed, "", "xx", {"n": 1}).metadata == {"n": 5}
    assert added(changed, "", "xx", {"n": 2}).metadata == {"n": 2}
