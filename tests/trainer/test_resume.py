"""A long add commits as it goes: what is bad undoes its own commit alone."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import WordLengths, commits_of

from searchengine import SearchEngine
from searchengine.errors import CorpusError

COUNT, EVERY = 3000, 700


def corpus() -> Iterator[dict[str, Any]]:
    for i in range(COUNT):
        words = ("a" * (1 + (i * step) % 16) for step in (1, 3, 7, 11))
        yield {"_id": f"k{i}", "text": " ".join(words), "n": i}


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
