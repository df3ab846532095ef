"""Documents cut into passages of four words, by an encoder a human can compute, and brute force."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from conftest import WordLengths

from searchengine import Document, Hit, SearchEngine
from searchengine.ingest.passages import PassageReader

NEAR = 1e-5
EXACT = {"prefix": 4, "storage": "float32"}


class Words(WordLengths):
    """Reads `most` words of a text, which are its tokens; if strict, it fails if given more."""

    def __init__(
        self, most: int = 4, fingerprint: str = "word-lengths", strict: bool = True
    ) -> None:
        super().__init__(fingerprint=fingerprint)
        self.most, self.strict = most, strict

    def token_spans(self, texts: Sequence[str]) -> list[npt.NDArray[np.int32]]:
        found = [[m.span() for m in re.finditer(r"\S+", text)] for text in texts]
        return [np.array(spans, np.int32).reshape(-1, 2) for spans in found]

    def room(self, role: str) -> int:
        return self.most

    def encode(self, texts: Sequence[str], *, role: Any = None, **_: Any) -> Any:
        if self.strict and role != "query":
            assert max(len(text.split()) for text in texts) <= self.most
        return super().encode(texts, role=role)


# Three passages of four words each, then one, and documents of one passage.
DOCUMENTS: list[dict[str, Any]] = [
    {"_id": "long", "text": "a a a a bb bb bb bb ccc ccc ccc ccc", "of": {"kind": 1}, "n": 0},
    {"_id": "near", "text": "bb bb bb ccc", "of": {"kind": 1.0}, "n": 1},
    {"_id": "half", "text": "bb ccc", "of": {"kind": "x"}, "n": 2},
    {"_id": "far", "title": "ccc", "text": "dddd ccc", "n": 3},
    {"_id": "other", "text": "eeeee bb eeeee", "n": 4},
]


def collection(path: Path, documents: list[dict[str, Any]] = DOCUMENTS) -> SearchEngine:
    engine = SearchEngine.create(path / "c", Words(), EXACT)
    engine.add(documents)
    return engine


def keys(hits: list[Hit]) -> list[str]:
    return [hit.key for hit in hits]


def reader(encoder: Any, **how: int) -> PassageReader:
    """Cuts documents for an encoder into passages."""
    return PassageReader(encoder, {"passages": how})


Scores = dict[str, dict[tuple[int, int], float]]


def brute_force(documents: Sequence[dict[str, Any]], vector: npt.NDArray[Any]) -> Scores:
    """Key → its passages → their cosines."""
    encoder = Words()
    parsed = [Document.from_mapping(each, origin="") for each in documents]
    spans, _ = reader(encoder).cut(parsed)
    expected: Scores = {}
    for document, each in zip(parsed, spans, strict=True):
        texts = reader(encoder).texts([(document, span) for span in each])
        scores = encoder.encode(texts, role="document") @ (vector / np.linalg.norm(vector))
        expected[document.key] = dict(zip(each, scores.tolist(), strict=True))
    return expected


def check(hits: list[Hit], expected: Scores, k: int) -> None:
    """The k best documents, each once and by a passage with its best score."""
    best = {key: max(scores.values()) for key, scores in expected.items()}
    assert len(set(keys(hits))) == len(hits) == min(k, len(best))
    for hit in hits:
        assert hit.score == pytest.approx(best[hit.key], abs=NEAR)
        assert expected[hit.key][hit.start, hit.end] == pytest.approx(hit.score, abs=NEAR)
    scores = [hit.score for hit in hits]
    assert scores == sorted(scores, reverse=True)
    left_out = [score for key, score in best.items() if key not in keys(hits)]
    assert not left_out or scores[-1] > max(left_out) - NEAR
