"""Questions whose answers are known: titles and sentences of documents, and logged clicks.

A document is in one of three parts, and so is every question about it. Documents with the same
title are about the same, so they are in the same part."""

import itertools
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from hashlib import blake2b
from pathlib import Path
from typing import Any

from searchengine.corpus.sentences import sentence_ends
from searchengine.corpus.text_files import bad, read_jsonl
from searchengine.engine import Document, Snapshot

HELD_OUT, VALIDATION = 25, 10
"""Percent of the documents that judge, and that choose the strength of training."""
MAX_SHARED = 50
"""Documents that may share a title; one that more of them have, such as README, names none."""
SENTENCE = (20, 300)
"""Characters of a sentence that is taken as a question."""


class Kind(StrEnum):
    """Where a question comes from."""

    TITLE = "title"
    SENTENCE = "sentence"
    CLICK = "click"


class Part(StrEnum):
    """What the questions about a document are used for."""

    TRAINING = "training"
    VALIDATION = "validation"
    HELD_OUT = "held-out"


@dataclass(frozen=True, slots=True)
class Question:
    """A text, and the ids of the documents that answer it, all of them in one part."""

    kind: Kind
    text: str
    documents: tuple[int, ...]
    part: Part


class Split:
    """The part of every document of a collection, by its title, or by its content without one.

    Attributes:
        parts: document id → part.
    """

    def __init__(self, snapshot: Snapshot, seed: int) -> None:
        """Reads title and digest of all documents. `seed`: other seeds give other parts."""
        columns = snapshot.store.scan("SELECT id, title, digest FROM documents ORDER BY id")
        rows = [(i, title.strip(), digest) for i, title, digest in columns]
        shared = Counter(title for _, title, _ in rows)
        self._numbers = {
            i: _number(seed, title.encode() if title and shared[title] <= MAX_SHARED else digest)
            for i, title, digest in rows
        }
        self._unnamed = {title for title, count in shared.items() if count > MAX_SHARED}
        self.parts = {i: _part(number % 100) for i, number in self._numbers.items()}

    def sample(self, most: int) -> list[int]:
        """Ids, ascending, of about `most` documents: whole titles, at random; or all of fewer."""
        order = sorted(self._numbers, key=self._numbers.__getitem__)
        end = min(most, len(order))
        while 0 < end < len(order) and self._numbers[order[end]] == self._numbers[order[end - 1]]:
            end += 1
        return sorted(order[:end])

    def title(self, document: Document) -> str:
        """The title, if it names the document; else ""."""
        title = document.title.strip()
        return "" if title in self._unnamed else title


def _number(seed: int, name: bytes) -> int:
    return int.from_bytes(blake2b(b"%d " % seed + name, digest_size=8).digest())


def _part(percent: int) -> Part:
    if percent < HELD_OUT:
        return Part.HELD_OUT
    return Part.VALIDATION if percent < HELD_OUT + VALIDATION else Part.TRAINING


def without_sentence(text: str, rng: random.Random) -> tuple[str, str, int] | None:
    """A sentence at random, the text without it, and the offset where it was.

    None if the text has none of fitting length, or little besides (the inverse cloze task of Lee et
    al., arXiv 1906.00300).
    """
    ends = [0, *sentence_ends(text)]
    if ends[-1] < len(text):
        ends.append(len(text))
    shortest, longest = SENTENCE
    fitting = [
        (start, end)
        for start, end in itertools.pairwise(ends)
        if shortest <= len(text[start:end].strip()) <= longest
    ]
    if not fitting:
        return None
    start, end = rng.choice(fitting)
    rest = text[:start] + text[end:]
    if len(rest.strip()) < end - start:
        return None
    return text[start:end].strip(), rest, start


def read_clicks(path: Path) -> dict[str, list[str]]:
    """Question → keys of the documents chosen for it, from lines {"question": …, "clicked": …}.

    `clicked` is a key or a list of keys. Raises CorpusError with the line.
    """
    clicks: dict[str, list[str]] = {}
    for place, record in read_jsonl(path):
        text, chosen = record.get("question"), record.get("clicked")
        keys: list[Any] = chosen if isinstance(chosen, list) else [chosen]
        if not isinstance(text, str) or not text.strip():
            raise bad(place, 'expected a text as "question"')
        if not keys or not all(isinstance(key, str) and key for key in keys):
            raise bad(place, 'expected a key, or a list of keys, as "clicked"')
        clicks.setdefault(text.strip(), []).extend(keys)
    if not clicks:
        raise bad(path, "the file has no questions")
    return clicks


def clicked(
    clicks: Mapping[str, Sequence[str]], ids: Mapping[str, int], parts: Mapping[int, Part]
) -> list[Question]:
    """The logged questions with stored documents that are all in one part.

    clicks: question → keys. ids: key → id, of the stored documents.
    """
    questions = []
    for text, keys in clicks.items():
        documents = tuple(dict.fromkeys(ids[key] for key in keys if key in ids))
        if len(common := {parts[i] for i in documents}) == 1:
            questions.append(Question(Kind.CLICK, text, documents, common.pop()))
    return questions
