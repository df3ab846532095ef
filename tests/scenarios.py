"""Small documents, what a collection holds of them, and what its searches must give."""

import json
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import WordLengths, during, interrupt

from searchengine import Document, SearchEngine
from searchengine.upkeep.reindex import FolderPlace

Model = Mapping[str, Document]
_CLOSE = 2e-3  # what float16 loses of a cosine


def document(key: int, version: int = 0) -> Document:
    """A document of its own: its words' lengths are the binary digits of its number."""
    number = key + 1 + 256 * version
    text = " ".join("x" * (bit + 1) for bit in range(16) if number >> bit & 1)
    return Document(f"d{key}", text, metadata={"n": key, "version": version, "even": key % 2 == 0})


def stored(path: Path) -> dict[str, Document]:
    """What documents.db holds."""
    with closing(sqlite3.connect(path / "documents.db")) as connection:
        rows = connection.execute("SELECT key, text, title, metadata FROM documents").fetchall()
    return {r[0]: Document(r[0], r[1], r[2], json.loads(r[3])) for r in rows}


def answers_as_brute_force(
    engine: SearchEngine, held: Model, encoder: WordLengths | None = None
) -> None:
    """Raise AssertionError where a search gives other hits or scores than the model's vectors."""
    every = list(held.values())
    questions = ["x", "xx xxx", every[-1].text if every else "xxxx"]
    encoder = encoder or WordLengths()
    vectors_of_questions = encoder.encode(questions)
    for where in (None, "even = true"):
        kept = [d for d in every if where is None or d.metadata["even"]]
        vectors = encoder.encode([d.text for d in kept]) if kept else np.empty((0, 16))
        scores = vectors_of_questions @ vectors.T
        answers = engine.search_batch(questions, k=len(held) + 5, where=where, mode="vector")
        best = engine.search_batch(questions, k=2, where=where, mode="vector")
        for question, hits, first, row in zip(questions, answers, best, scores, strict=True):
            expected = {d.key: float(score) for d, score in zip(kept, row, strict=True)}
            found = sorted(hit.key for hit in hits)
            assert found == sorted(expected), f"{question!r} where {where} found {found}"
            for hit in hits:
                known = held[hit.key]
                assert abs(hit.score - expected[hit.key]) < _CLOSE, f"{hit} has a wrong score"
                assert (hit.text, hit.metadata) == (known.text, known.metadata), f"{hit} is stale"
            assert np.allclose([h.score for h in first], [h.score for h in hits[:2]])


def strays(path: Path) -> list[str]:
    """Files and folders of a collection that no commit names."""
    with closing(sqlite3.connect(path / "documents.db")) as connection:
        segments = {f"{row[0]:06d}" for row in connection.execute("SELECT id FROM segments")}
    named = {"segments", "documents.db", "documents.db-wal", "documents.db-shm"}
    extra = [each.name for each in path.iterdir() if each.name not in {*named, "pending"}]
    extra += [f"pending/{each.name}" for each in path.glob("pending/*")]
    for folder in (path / "segments").iterdir():
        if folder.name not in segments:
            extra.append(f"segments/{folder.name}")
            continue
        files = {"manifest.json", *json.loads((folder / "manifest.json").read_text())["files"]}
        extra += [str(f.relative_to(path)) for f in folder.iterdir() if f.name not in files]
    return extra


def leave_pending(engine: SearchEngine, encoder: Any) -> None:
    """Reindex by another encoder, and leave the swap to the next reindex."""
    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        during(patch, FolderPlace, "replace_by", interrupt)
        engine.reindex(encoder)
