"""What a collection must hold and answer, from the documentation's statements alone.

A state is what one commit holds. `State.fault` compares an answer with brute force: cosines by its
encoder (conftest has both), BM25 written out, and their convex combination.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

DIM = 16
_CLOSE = 2e-3  # what float16 loses of a cosine
_TITLE = 2.0  # the weight of a title's word (docs/hybrid.md)
_K1, _B = 1.2, 0.75  # of BM25
_JOINED = 0.25  # the weight of two neighbouring words as one

Metadata = Mapping[str, Any]
Row = tuple[str, float, str, str, Metadata]
"""A hit: key, score, title, text, metadata."""

_NONE: Any = object()


@dataclass(frozen=True)
class Record:
    """A document: `source` is the metadata that it was added with, `metadata` what it shows."""

    title: str
    text: str
    source: Metadata
    metadata: Metadata


@dataclass(frozen=True)
class Reindexed:
    """A commit that changes the encoder; `encoder`: its fingerprint."""

    encoder: str


Delta = Mapping[str, Record | None] | Reindexed
"""What one commit changes: key → its new record, or None where it is deleted; or the encoder."""

ENCODER = "word-lengths"
"""The encoder of a new collection."""


class Found(Exception):
    """A problem: its kind (lost, mixed, wrong, unopenable, hung, error), and what it is."""

    def __init__(self, kind: str, what: str) -> None:
        super().__init__(f"{kind}: {what}")
        self.kind, self.what = kind, what


class Filter(NamedTuple):
    """A filter, and what it means."""

    where: str | None
    holds: Callable[[Metadata], bool]


def _number(metadata: Metadata, name: str) -> float:
    value = metadata.get(name)
    return math.nan if value is None else float(value)


def _author(metadata: Metadata, name: str) -> Any:
    return metadata.get("author", {}).get(name)


FILTERS = (
    Filter(None, lambda m: True),
    Filter("even = true", lambda m: m.get("even") is True),
    Filter("not even", lambda m: not m.get("even")),
    Filter("n >= 20", lambda m: _number(m, "n") >= 20),
    Filter("n < 10 or seen > 3", lambda m: _number(m, "n") < 10 or _number(m, "seen") > 3),
    Filter("n in (1, 2, 3, 5, 8, 13, 21)", lambda m: m.get("n") in (1, 2, 3, 5, 8, 13, 21)),
    Filter("n != 7", lambda m: m.get("n") != 7),
    Filter("author.name = 'ann'", lambda m: _author(m, "name") == "ann"),
    Filter("author.name like 'b%'", lambda m: str(_author(m, "name")).startswith("b")),
    Filter(
        "author.rank between 2 and 4 and not even",
        lambda m: (_author(m, "rank") or 0) in (2, 3, 4) and not m.get("even"),
    ),
    Filter("tags contains 'red'", lambda m: "red" in m.get("tags", ())),
    Filter("exists(seen)", lambda m: "seen" in m),
)
INDEXABLE = ("n", "even", "seen", "author.name", "author.rank", "tags")
MODES = ("vector", "vector", "text", "hybrid")


@dataclass(frozen=True)
class Question:
    """A search: the question, how many hits, the mode and which of FILTERS."""

    text: str
    k: int
    mode: str = "vector"
    filter: int = 0


def patched(metadata: Metadata, patch: Metadata) -> dict[str, Any]:
    """A JSON merge patch (RFC 7396)."""
    result = dict(metadata)
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        elif isinstance(value, Mapping):
            before = result.get(name)
            result[name] = patched(before if isinstance(before, Mapping) else {}, value)
        else:
            result[name] = value
    return result


def merged(base: Metadata, mine: Metadata, theirs: Metadata) -> dict[str, Any]:
    """Three-way merge of metadata: where the source's own value changed, it wins; else ours stays.

    `base`: what the source said before; `mine`: what is shown; `theirs`: what the source says now.
    """
    result = {}
    for name in {**mine, **theirs}:
        old, shown, new = (side.get(name, _NONE) for side in (base, mine, theirs))
        if all(isinstance(value, Mapping) for value in (old, shown, new)):
            result[name] = merged(old, shown, new)
            continue
        value = shown if new == old else new
        if value is not _NONE:
            result[name] = value
    return result


def added(before: Record | None, title: str, text: str, source: Metadata) -> Record:
    """The record of a key after `add`."""
    shown = source if before is None else merged(before.source, before.metadata, source)
    return Record(title, text, source, shown)


@lru_cache(maxsize=100_000)
def vector(text: str, encoder: str = ENCODER) -> npt.NDArray[np.float64]:
    """The unit vector of a text.

    Entry i counts its words of i + 1 letters or, by "remainders", of i letters modulo 5.
    """
    counts = np.zeros(DIM)
    for word in text.split():
        counts[len(word) % 5 if encoder == "remainders" else min(len(word), DIM) - 1] += 1
    return counts / np.linalg.norm(counts)


class State:
    """What one commit holds, and the fingerprint of its encoder. `after` makes another state."""

    def __init__(self, records: Mapping[str, Record] | None = None, encoder: str = ENCODER) -> None:
        self.records: Mapping[str, Record] = records or {}
        self.encoder = encoder

    def after(self, delta: Delta) -> "State":
        """The state after a commit."""
        if isinstance(delta, Reindexed):
            return State(self.records, delta.encoder)
        changed = {**self.records, **delta}
        kept = {key: record for key, record in changed.items() if record is not None}
        return State(kept, self.encoder)

    @cached_property
    def rows(self) -> dict[str, tuple[str, str, Metadata]]:
        """Key → title, text, metadata, as they are stored."""
        return {key: (r.title, r.text, r.metadata) for key, r in self.records.items()}

    @cached_property
    def _words(self) -> dict[str, tuple[Counter[str], int]]:
        """Key → weighted words, and their number."""
        found = {}
        for key, record in self.records.items():
            counts: Counter[str] = Counter(record.text.split())
            size = counts.total() + len(record.title.split())
            for word in record.title.split():
                counts[word] += _TITLE  # type: ignore[assignment]
            found[key] = (counts, size)
        return found

    def cosines(self, wanted: npt.NDArray[np.float64], holds: Filter) -> dict[str, float]:
        """Key → cosine, of the documents that a filter lets through."""
        kept = [key for key, record in self.records.items() if holds.holds(record.metadata)]
        if not kept:
            return {}
        records = (self.records[key] for key in kept)
        texts = (f"{record.title} {record.text}" for record in records)
        matrix = np.stack([vector(text, self.encoder) for text in texts])
        return dict(zip(kept, (matrix @ wanted).tolist(), strict=True))

    @cached_property
    def _unrelated(self) -> tuple[float, npt.NDArray[np.float64]]:
        """The mean cosine of two documents, and the mean vector of all; a snapshot samples as many
        as there are."""
        rows = [vector(f"{r.title} {r.text}", self.encoder) for r in self.records.values()]
        if len(rows) < 2:
            return 0.0, np.zeros(DIM)
        total, count = np.sum(rows, axis=0), len(rows)
        return min(float(total @ total - count) / (count * (count - 1)), 0.9), total / count

    def unrelated(self, wanted: npt.NDArray[np.float64]) -> float:
        """The cosine to a question that counts as 0."""
        mean, center = self._unrelated
        return min(mean, 0.35 * mean + 0.65 * float(center @ wanted))

    def bm25(self, question: str, holds: Filter) -> tuple[dict[str, float], float]:
        """Key → BM25, of the documents that a filter lets through and that have a word of it.

        Also the most that four words of the question can give, and more where it has words that no
        document has.
        """
        total = len(self._words)
        mean = sum(size for _, size in self._words.values()) / max(1, total)
        scores: dict[str, float] = {}
        greatest, counts_of, unknown = [], [], 0
        asked = dict.fromkeys(words := question.split(), 1.0)
        joined = dict.fromkeys((a + b for a, b in pairwise(words)), _JOINED)
        for word, weight in {**joined, **asked}.items():
            having = [key for key, (counts, _) in self._words.items() if word in counts]
            count = len(having)
            rarity = weight * (math.log((total + 1) / (count + 0.5)) if 2 * count < total else 1e-6)
            greatest += [rarity * (_K1 + 1)] if having else []
            counts_of += [count] if having else []
            unknown += word in asked and not having
            for key in having:
                counts, size = self._words[key]
                often = counts[word]
                share = often * (_K1 + 1) / (often + _K1 * (1 - _B + _B * size / mean))
                scores[key] = scores.get(key, 0.0) + rarity * share
        most = sum(sorted(greatest, reverse=True)[:4])
        if greatest:  # words that no document has count as if one had them
            each = (math.log((total + 1) / 1.5) if total > 2 else 1e-6) * (_K1 + 1)
            most *= 1 + unknown * each / sum(greatest)
        if total >= 10 and not any(count < (total + 1) // 2 for count in counts_of):
            most = max(most, 1.0)  # no word tells anything
        return {k: s for k, s in scores.items() if holds.holds(self.records[k].metadata)}, most

    def expected(self, question: Question) -> tuple[dict[str, float], float]:
        """Key → score of all that can be hits, and how far scores may be off."""
        holds = FILTERS[question.filter]
        if question.mode == "text":
            return self.bm25(question.text, holds)[0], 1e-5
        wanted = vector(question.text, self.encoder)
        near = self.cosines(wanted, holds)
        if question.mode == "vector":
            return near, _CLOSE
        worded, most = self.bm25(question.text, holds)
        best, m = max(worded.values(), default=1.0), self.unrelated(wanted)
        scale = max(best, most)
        scores = {
            key: 0.6 * max(0.0, near.get(key, m) - m) / (1 - m) + 0.4 * worded.get(key, 0.0) / scale
            for key in near.keys() | worded.keys()
        }
        return scores, 2 * _CLOSE / (1 - m)

    def fault(self, question: Question, answer: Sequence[Row]) -> str | None:
        """Why this is not the answer of this state; None if it is."""
        return self._compare(answer, *self.expected(question), question.k)

    def fault_similar(self, key: str, k: int, answer: Sequence[Row] | None) -> str | None:
        """The same for `similar`; None as the answer: there is no such document."""
        record = self.records.get(key)
        if record is None or answer is None:
            return None if record is None and answer is None else f"{key} is there, or is not"
        wanted = vector(f"{record.title} {record.text}", self.encoder)
        others = self.cosines(wanted, FILTERS[0])
        del others[key]
        return self._compare(answer, others, 2 * _CLOSE, k)

    def _compare(
        self, answer: Sequence[Row], scores: Mapping[str, float], off: float, k: int
    ) -> str | None:
        keys = [row[0] for row in answer]
        if len(set(keys)) != len(keys):
            return "a document comes twice"
        if unknown := sorted(set(keys) - scores.keys()):
            return f"{unknown} should not be found"
        if len(keys) != min(k, len(scores)):
            missing = sorted(scores.keys() - set(keys))
            return f"{len(keys)} hits of {min(k, len(scores))}; not found: {missing}"
        for key, score, title, text, metadata in answer:
            if (title, text, metadata) != self.rows[key]:
                return f"{key} is {(title, text, metadata)}, not {self.rows[key]}"
            if abs(score - scores[key]) > off:
                return f"{key} has the score {score}, not {scores[key]}"
        answer_scores = [row[1] for row in answer]
        if answer_scores != sorted(answer_scores, reverse=True):
            return "the hits are not in order"
        left = [score for key, score in scores.items() if key not in set(keys)]
        if left and max(left) - off > answer_scores[-1]:
            return f"a score of {max(left)} was left out, the last hit has {answer_scores[-1]}"
        return None


def kind_of(answer: Iterable[Row], history: Iterable[State], fits: Callable[[State], bool]) -> str:
    """What kind of problem an answer is that fits no state that it may be of.

    "lost": it is that of another state; "mixed": every hit is that of some state; else "wrong".
    """
    states = list(history)
    if any(fits(state) for state in states):
        return "lost"
    hits = list(answer)
    for key, _, title, text, metadata in hits:
        if not any(state.rows.get(key) == (title, text, metadata) for state in states):
            return "wrong"
    return "mixed" if hits else "wrong"
