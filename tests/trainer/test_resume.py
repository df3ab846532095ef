"""A long add commits as it goes: killed and started again, it goes on after the last commit."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from clean_process import clean
from conftest import WordLengths, commits_of

from searchengine import SearchEngine
from searchengine.errors import CorpusError
from searchengine.ingest import ingestion, pipeline

COUNT, EVERY = 3000, 700
QUESTIONS = ["a bee sees", "aaaaaaaaa aaa", "aaaaaaaaaaaaa"]


def corpus() -> Iterator[dict[str, Any]]:
    for i in range(COUNT):
        words = ("a" * (1 + (i * step) % 16) for step in (1, 3, 7, 11))
        yield {"_id": f"k{i}", "text": " ".join(words), "n": i}


def _killed_at(path: Path, calls: int, limits: dict[str, Any]) -> None:
    """Index, and die at that many calls of the encoder; `limits` of a commit."""
    pipeline.LARGEST_BLOCK = 256, 1 << 19
    for name, limit in limits.items():
        setattr(ingestion, name, limit)

    class Deadly(WordLengths):
        def encode(self, texts: Any, *, role: str | None = None) -> Any:
            if len(self.calls) == calls:
                os.kill(os.getpid(), signal.SIGKILL)
            return super().encode(texts, role=role)

    with SearchEngine.open(path, Deadly()) as engine:
        engine.add(corpus())


def contents(engine: SearchEngine) -> Any:
    documents = {document.key: document for document in engine.documents()}
    hits = engine.search_batch(QUESTIONS, 50)
    return documents, [[(hit.key, hit.score) for hit in some] for some in hits]


@pytest.mark.parametrize("limits", [{"MOST": (EVERY, 1 << 26)}, {"SECONDS": 0.0}])
def test_the_finished_collection_equals_an_unbroken_one(
    tmp_path: Path, limits: dict[str, Any]
) -> None:
    whole, broken = tmp_path / "whole.index", tmp_path / "broken.index"
    with SearchEngine.create(whole, WordLengths(), {"prefix": 4}) as engine:
        with commits_of(EVERY):
            engine.add(corpus())
        expected = contents(engine)
        assert engine.stats().segments == 1
    SearchEngine.create(broken, WordLengths(), {"prefix": 4}).close()
    stored = []
    for calls in (1, 8, 8):
        run = clean.Process(target=_killed_at, args=(broken, calls, limits))
        run.start()
        run.join(60)
        assert run.exitcode == -signal.SIGKILL
        with SearchEngine.open(broken, WordLengths()) as engine:
            stored.append(engine.stats().documents)
            engine.verify()
    assert 0 == stored[0] < stored[1] < stored[2] < COUNT
    encoder = WordLengths()
    with SearchEngine.open(broken, encoder) as engine:
        summary = engine.add(corpus())
        assert (summary.added, summary.unchanged) == (COUNT - stored[2], stored[2])
        assert sum(map(len, encoder.calls)) == COUNT - stored[2]
        engine.verify()
        assert contents(engine) == expected
        with commits_of(EVERY):
            assert engine.add(corpus()).unchanged == COUNT


def test_what_is_bad_undoes_its_own_commit_only(tmp_path: Path) -> None:
    def with_a_fault() -> Iterator[dict[str, Any]]:
        for i, document in enumerate(corpus()):
            yield document if i != 2000 else {"text": "has no key"}

    path = tmp_path / "x.index"
    with SearchEngine.create(path, WordLengths(), {"prefix": 4}) as engine:
        with pytest.raises(CorpusError, match="document 2001: no _id"):
            with commits_of(EVERY):
                engine.add(with_a_fault())
        assert engine.stats().documents == 2 * EVERY
        with pytest.raises(CorpusError):
            engine.add(with_a_fault())
        assert engine.stats().documents == 2 * EVERY
        engine.verify()
