"""What is stored stays: changes, interruptions, readers beside a writer, copies and repairs."""

import json
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from public.conftest import command, start
from public.judged_sets import SAMPLE
from searchengine import Encoder, SearchEngine, SearchEngineError

OWL = {"_id": "owl", "text": "Owls hunt by night.", "year": 2020}
COW = {"_id": "cow", "text": "Cows eat grass.", "year": 2021}
DOG = {"_id": "dog", "title": "Dogs", "text": "Dogs bark at strangers."}


Contents = Mapping[str, tuple[str, str, Mapping[str, Any], Any]]


def contents(engine: SearchEngine) -> Contents:
    """Key → title, text, metadata and vectors of every document."""
    documents = list(engine.documents())
    vectors = engine.vectors([each.key for each in documents])
    return {
        each.key: (each.title, each.text, each.metadata, rows.tolist())
        for each, rows in zip(documents, vectors, strict=True)
        if rows is not None
    }


def check_same(now: Contents, before: Contents) -> None:
    """The same documents in the same order; vectors but for the rounding of a new rotation."""
    assert list(now) == list(before)
    for key, (*words, vectors) in before.items():
        assert now[key][:3] == tuple(words)
        np.testing.assert_allclose(now[key][3], vectors, atol=2e-3)


def keys(engine: SearchEngine, question: str, **options: Any) -> list[str]:
    return [hit.key for hit in engine.search(question, **options)]


def test_documents_are_added_changed_and_deleted(tmp_path: Path, starter: Encoder) -> None:
    with SearchEngine.open_or_create(tmp_path / "x.index", starter) as engine:
        added = engine.add([OWL, COW, DOG])
        assert (added.added, added.changed, added.unchanged) == (3, 0, 0)
        before = engine.vectors(["owl"])[0]
        again = engine.add([OWL, {**COW, "text": "Cows chew the cud."}, {**DOG, "year": 2022}])
        assert (again.added, again.changed, again.metadata_updated) == (0, 1, 1)
        assert again.unchanged == 1
        assert keys(engine, "what chews", k=1) == ["cow"]
        assert not keys(engine, "grass", mode="text", typo_tolerance=False)
        np.testing.assert_array_equal(before, engine.vectors(["owl"])[0])
        engine.update({"owl": {"year": None, "seen": True}})
        assert engine["owl"].metadata == {"seen": True}
        assert engine.delete(["dog", "none"]) == 1
        assert "dog" not in engine and len(engine) == 2
        assert "dog" not in keys(engine, "dogs bark")
        assert engine.delete(where="year = 2021") == 1
        assert keys(engine, "anything") == ["owl"]


def test_a_collection_is_the_same_when_it_is_opened_again(tmp_path: Path, starter: Encoder) -> None:
    with SearchEngine.create(tmp_path / "x.index", starter) as engine:
        engine.add([OWL, COW])
        engine.add([DOG])
        engine.delete(["cow"])
        stored, hits = contents(engine), engine.search("who hunts")
    with SearchEngine.open(tmp_path / "x.index", starter) as engine:
        assert contents(engine) == stored and list(stored) == ["owl", "dog"]
        assert [(h.key, h.score) for h in engine.search("who hunts")] == [
            (h.key, h.score) for h in hits
        ]
        engine.optimize()
        check_same(contents(engine), stored)
        engine.verify()


def test_a_reader_sees_a_commit_when_it_refreshes(tmp_path: Path, starter: Encoder) -> None:
    path = tmp_path / "x.index"
    with SearchEngine.create(path, starter) as writer, SearchEngine.open(path, starter) as reader:
        writer.add([OWL])
        assert len(reader) == 0
        reader.refresh()
        assert keys(reader, "night") == ["owl"]
        writer.add([{**OWL, "text": "Owls sleep by day."}])
        writer.delete(["owl"])
        assert reader["owl"].text == "Owls hunt by night."
        reader.refresh()
        assert not keys(reader, "night")


def test_two_readers_of_a_folder_that_is_replaced(tmp_path: Path, starter: Encoder) -> None:
    path, other = tmp_path / "x.index", tmp_path / "other.index"
    for folder, documents in ((path, [OWL]), (other, [COW, DOG])):
        with SearchEngine.create(folder, starter) as engine:
            engine.add(documents)
    with SearchEngine.open(path, starter) as one, SearchEngine.open(path, starter) as two:
        path.rename(tmp_path / "old.index")
        other.rename(path)
        assert keys(one, "night") == keys(two, "night") == ["owl"]
        one.refresh()
        assert sorted(keys(one, "night")) == ["cow", "dog"]
        assert keys(two, "night") == ["owl"]
        two.refresh()
        assert sorted(keys(two, "night")) == ["cow", "dog"]


def test_what_another_adds_meanwhile_stays(tmp_path: Path, starter: Encoder) -> None:
    path = tmp_path / "x.index"
    with SearchEngine.create(path, starter) as engine:

        def documents() -> Iterator[dict[str, Any]]:
            yield OWL
            with SearchEngine.open(path, starter) as second:
                second.add([COW])
            yield DOG

        engine.add(documents())
        assert sorted(engine.keys()) == ["cow", "dog", "owl"]


def test_a_bad_document_changes_nothing(tmp_path: Path, starter: Encoder) -> None:
    with SearchEngine.create(tmp_path / "x.index", starter) as engine:
        engine.add([OWL])
        for bad in ([COW, {"_id": "x", "text": 7}], [COW, COW], [COW, {"text": "a", "_id": ""}]):
            with pytest.raises(SearchEngineError):
                engine.add(bad)
        assert list(engine.keys()) == ["owl"]


def test_copies_backups_and_exports_hold_the_same(tmp_path: Path, starter: Encoder) -> None:
    with SearchEngine.create(tmp_path / "x.index", starter) as engine:
        engine.add([OWL, COW, DOG])
        engine.delete(["cow"])
        stored = contents(engine)
        engine.backup(tmp_path / "backup.index")
        assert engine.export(tmp_path / "export") == 2
    command("copy", tmp_path / "x.index", tmp_path / "copy.index")
    for name in ("backup.index", "copy.index"):
        with SearchEngine.open(tmp_path / name, starter) as engine:
            check_same(contents(engine), stored)
            engine.verify()
    lines = (tmp_path / "export" / "documents.jsonl").read_text().splitlines()
    assert [json.loads(line)["_id"] for line in lines] == ["owl", "dog"]
    rows = np.load(tmp_path / "export" / "vectors.npy")
    np.testing.assert_allclose(rows, [stored["owl"][3][0], stored["dog"][3][0]], atol=1e-6)


def test_damage_is_found_and_repaired(tmp_path: Path, starter: Encoder) -> None:
    path = tmp_path / "x.index"
    with SearchEngine.create(path, starter) as engine:
        engine.add([OWL, COW, DOG])
        stored = contents(engine)
    (vectors,) = (path / "segments").glob("*/vectors.*")
    damaged = bytearray(vectors.read_bytes())
    damaged[-100] ^= 255
    vectors.write_bytes(damaged)
    with pytest.raises(SearchEngineError), SearchEngine.open(path, starter) as engine:
        engine.verify()
    command("repair", path)
    with SearchEngine.open(path, starter) as engine:
        engine.verify()
        check_same(contents(engine), stored)
        assert keys(engine, "who hunts at night", k=1) == ["owl"]


def test_an_interrupted_index_goes_on(
    tmp_path: Path, starter: Encoder, sample: SearchEngine
) -> None:
    """SIGKILL between two commits of a real process; then the same command ends the work."""
    path = tmp_path / "x.index"
    arguments = ("index", SAMPLE / "corpus.jsonl", path)
    often = "ingestion.SECONDS = 0; pipeline.LARGEST_BLOCK = 30, 1 << 19"
    process, stored, end = start(*arguments, before=often), 0, time.monotonic() + 120
    while stored < 60:
        assert process.poll() is None and time.monotonic() < end
        time.sleep(0.05)
        if (path / "documents.db").exists():
            stored = count(path)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    left = count(path)
    assert 60 <= left < 252 and left % 30 == 0
    result = command(*arguments)
    assert result["unchanged"] == left and result["added"] == 252 - left
    with SearchEngine.open(path, starter) as engine:
        engine.verify()
        check_same(contents(engine), contents(sample))
        engine.optimize()
        for question in ("how do whales sleep", "why does dough rise", "what stops a bicycle"):
            assert keys(engine, question, mode="vector", k=5) == keys(
                sample, question, mode="vector", k=5
            )


def count(path: Path) -> int:
    """Documents of a collection that another process may be creating."""
    try:
        with SearchEngine.open(path) as engine:
            return len(engine)
    except SearchEngineError:
        return 0


def test_a_folder_is_kept_in_step_with_its_files(tmp_path: Path) -> None:
    notes, path = tmp_path / "notes", tmp_path / "x.index"
    notes.mkdir()
    for name, text in (("owl.txt", "Owls hunt by night."), ("cow.md", "# Cows\n\nThey eat grass.")):
        (notes / name).write_text(text)
    assert command("index", notes, path)["added"] == 2
    (notes / "owl.txt").unlink()
    (notes / "cow.md").write_text("# Cows\n\nThey chew the cud.")
    (notes / "sub").mkdir()
    (notes / "sub" / "dog.txt").write_text("Dogs bark.")
    result = command("index", notes, path, "--prune")
    assert (result["added"], result["changed"], result["removed"]) == (1, 1, 1)
    assert listed(path) == ["cow.md", "sub/dog.txt"]
    command("update", path, "cow.md", "year=2020")
    assert command("get", path, "cow.md")[0]["year"] == 2020
    command("delete", path, "cow.md")
    assert listed(path) == ["sub/dog.txt"]


def listed(path: Path) -> Sequence[str]:
    return sorted(each["_id"] for each in command("list", path))
