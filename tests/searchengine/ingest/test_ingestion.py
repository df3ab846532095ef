"""What a commit is made of: ranges of vectors, blocks of documents, what counts as changed."""

from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import pytest
from conftest import WordLengths, commits_of

from searchengine import SearchEngine
from searchengine.backends.folder.collection import Collection


@pytest.mark.parametrize("change", [
    lambda engine: engine.add([{"_id": "k0", "text": "bb"}, {"_id": "k1", "text": "ccc"}]),
    lambda engine: engine.update({"k0": {"n": 1}}),
    lambda engine: engine.delete(["k0"]),
])  # fmt: skip
def test_after_ctrl_c_between_a_commit_and_its_end_the_engine_shows_the_commit(
    tmp_path: Path, change: Callable[[SearchEngine], object]
) -> None:
    with SearchEngine.create(tmp_path / "x", WordLengths()) as engine:
        engine.add([{"_id": "k0", "text": "a"}])
        before = list(engine.documents())
        with patch.object(Collection, "_show_newest", side_effect=KeyboardInterrupt):
            with pytest.raises(KeyboardInterrupt):
                change(engine)
        with SearchEngine.open(tmp_path / "x", WordLengths()) as other:
            assert list(engine.documents()) == list(other.documents()) != before


def test_an_add_of_several_commits_ends_in_one_segment(tmp_path: Path) -> None:
    with SearchEngine.create(tmp_path / "x", WordLengths()) as engine:
        with commits_of(1):
            engine.add([{"_id": f"k{i}", "text": "a"} for i in range(3)])
        assert (engine.stats().documents, engine.stats().segments) == (3, 1)
        for i in range(2):  # a segment of another call waits for its tier
            engine.add([{"_id": f"more{i}", "text": "a"}])
        assert engine.stats().segments == 3


def test_an_add_that_ends_without_text_is_not_empty(tmp_path: Path) -> None:
    with SearchEngine.create(tmp_path / "x", WordLengths()) as engine:
        engine.add([{"_id": "k0", "text": "a", "n": 0}])
        documents = [
            {"_id": "k0", "text": "a", "n": 1},
            {"_id": "k1", "text": "bb"},
            {"_id": "k2", "text": ""},
        ]
        with commits_of(1):
            summary = engine.add(documents)
        assert (summary.metadata_updated, summary.added, summary.without_text.count) == (1, 1, 1)


@pytest.mark.parametrize(("dim", "prefix"), [(768, 128), (128, 128), (100, 96), (50, 48), (7, 7)])
def test_the_default_prefix_is_a_multiple_of_8(tmp_path: Path, dim: int, prefix: int) -> None:
    with SearchEngine.create(tmp_path / "c", encoder=None, dim=dim) as engine:
        assert engine.stats().index_config["prefix"] == prefix
