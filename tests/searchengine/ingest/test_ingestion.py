"""What a commit is made of: ranges of vectors, blocks of documents, what counts as changed."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import WordLengths
from cut_documents import Words

from searchengine import SearchEngine
from searchengine.errors import QueryError
from searchengine.ingest import pipeline, spool
from searchengine.ingest.settings import AddOptions


def test_a_commit_is_written_in_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool, "_CHUNK", 2)  # documents
    monkeypatch.setattr(spool, "_BLOCK", 3)  # vectors
    texts = ["a", "bb a", "ccc", "dddd a bb", "eeeee"]
    with SearchEngine.create(tmp_path / "x", WordLengths()) as engine:
        assert engine.add([{"_id": "first", "text": "ffffff"}]).added == 1
        documents = [{"_id": f"k{i}", "text": text} for i, text in enumerate(texts)]
        assert engine.add(documents).added == 5
        engine.verify()
        assert sorted(os.listdir(tmp_path / "x" / "segments")) == ["000001", "000002"]
        for i, text in enumerate(texts):
            best = engine.search(text, 1, mode="vector")[0]
            assert (best.key, best.score) == (f"k{i}", pytest.approx(1, abs=1e-3))
        summary = engine.add([{"_id": "first", "text": "g"}])
        assert (summary.added, summary.changed) == (0, 1)


def test_an_add_of_several_commits_ends_in_one_segment(tmp_path: Path) -> None:
    with SearchEngine.create(tmp_path / "x", WordLengths()) as engine:
        engine.add([{"_id": f"k{i}", "text": "a"} for i in range(3)], commit_every=1)
        assert (engine.stats().documents, engine.stats().segments) == (3, 1)
        for i in range(2):  # without commit_every a segment waits for its tier
            engine.add([{"_id": f"more{i}", "text": "a"}])
        assert engine.stats().segments == 3


def test_the_passages_of_a_long_document_are_reported_while_it_is_encoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline, "LARGEST_BLOCK", (2048, 100))
    monkeypatch.setattr(pipeline, "BATCH", 4)

    class Reporting(Words):
        def encode(
            self, texts: Sequence[str], *, role: Any = None, on_batch: Callable[[int], None]
        ) -> np.ndarray:
            for _ in texts:
                on_batch(1)
            return super().encode(texts, role=role)

    reports: list[tuple[str, int, int]] = []
    documents: list[int] = []
    with SearchEngine.create(tmp_path / "c", Reporting()) as engine:
        for text, passages in (("a" * 99, 0), ("aa bb cc dd " * 9, 9)):
            engine.add(
                [{"_id": text, "text": text}],
                progress=lambda read, _: documents.append(read),
                building=lambda *report: reports.append(report),
            )
            assert [each for each in reports if each[0] == "Passages"] == passages * [
                ("Passages", 1, passages)
            ]
    assert documents == [1, 1]


def test_an_add_that_ends_without_text_is_not_empty(tmp_path: Path) -> None:
    with SearchEngine.create(tmp_path / "x", WordLengths()) as engine:
        engine.add([{"_id": "k0", "text": "a", "n": 0}])
        documents = [
            {"_id": "k0", "text": "a", "n": 1},
            {"_id": "k1", "text": "bb"},
            {"_id": "k2", "text": ""},
        ]
        summary = engine.add(documents, commit_every=1)
        assert (summary.metadata_updated, summary.added, summary.without_text.count) == (1, 1, 1)


def test_commit_every_is_one_document_or_more() -> None:
    assert AddOptions(commit_every=1).commit_every == 1
    for every in (0, -1, True, 1.0):
        with pytest.raises(QueryError, match=f"at least 1 document or None, got {every!r}"):
            AddOptions(commit_every=every)  # type: ignore[arg-type]


@pytest.mark.parametrize(("dim", "prefix"), [(768, 128), (128, 128), (100, 96), (50, 48), (7, 7)])
def test_the_default_prefix_is_a_multiple_of_8(tmp_path: Path, dim: int, prefix: int) -> None:
    with SearchEngine.create(tmp_path / "c", encoder=None, dim=dim) as engine:
        assert engine.stats().index_config["prefix"] == prefix
