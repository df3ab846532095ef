"""What the page shows beside hits: fields to filter by, and counts."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from random import Random
from typing import Any

import numpy as np

from searchengine.corpus.documents import Document
from searchengine.engine import Mode, Question, SearchEngine, entries, field_name
from searchengine.server.models import CountRequest
from searchengine.server.responses import facet_lists
from searchengine.server.server_settings import MAX_FACETS, MAX_OFFSET

BEST = 100
"""Documents that a question is about: the values of those are counted."""
_VALUES = 50  # of a field that are counted
_SAMPLE = 200  # documents
_CHARACTERS = 4 << 20  # of documents that are read for their fields
_FEW = 12  # values of a field that are a choice, however small the sample
_NAME = 60  # characters of a value that is a name, not prose
_SHOWN = 200  # characters of a value that a hit can show
_DATE = re.compile(r"\d{4}-\d\d(-\d\d([T ]\d\d:\d\d.*)?)?")


def sample_ids(store: Any, n: int) -> list[int]:
    """Ids of n documents drawn at random, ascending; all if they are few. Reads all ids."""
    ids = np.concatenate([np.zeros(0, np.int64), *entries.ids(store)])
    chosen = sorted(Random(0).sample(range(len(ids)), min(n, len(ids))))
    return [int(i) for i in ids[chosen]]


def fields(engine: SearchEngine) -> list[dict[str, Any]]:
    """The fields of a sample with values that can be shown, in the order of its documents."""
    with engine.collection.reading() as snapshot:
        documents = list(_read_some(snapshot, sample_ids(snapshot, _SAMPLE)))
    values: dict[tuple[str, ...], list[Any]] = {}
    for document in documents:
        for path, value in _leaves(document.metadata):
            values.setdefault(path, []).append(value)
    described = (_described(path, listed) for path, listed in values.items())
    return [field for field in described if field is not None][:MAX_FACETS]


def _read_some(store: Any, ids: Iterable[int]) -> Iterator[Document]:
    """Documents, in the order of the ids, until they have _CHARACTERS of text."""
    read = 0
    for i in ids:
        if read >= _CHARACTERS:
            return
        (document,) = store.documents([i])
        read += len(document.text)
        yield document


def _leaves(metadata: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """The paths and values of fields, and of the fields of a field."""
    for name, value in metadata.items():
        if isinstance(value, Mapping):
            yield from (((name, inner), below) for inner, below in value.items())
        else:
            yield (name,), value


def _described(path: tuple[str, ...], values: Sequence[Any]) -> dict[str, Any] | None:
    """A field for the page; None: its values are neither texts, numbers nor truth values."""
    lists = [value if isinstance(value, list) else [value] for value in values]
    atoms = [atom for listed in lists for atom in listed if atom is not None]
    if not atoms or not all(isinstance(atom, str | int | float) for atom in atoms):
        return None
    texts = [atom for atom in atoms if isinstance(atom, str)]
    few = 1 < len(set(atoms)) <= max(_FEW, len(values) // 3)
    kind = "choice" if few and all(len(text) <= _NAME for text in texts) else "text"
    if not texts and len(set(atoms)) > _FEW:
        kind = "number"
    elif len(texts) == len(atoms) and all(map(_DATE.fullmatch, texts)):
        kind = "date"
    elif any(len(text) > _SHOWN for text in texts):
        return None
    ranged = kind in ("number", "date")
    return {
        "name": field_name(path),
        "path": path,
        "kind": kind,
        "lists": any(isinstance(value, list) for value in values),
        "low": min(atoms) if ranged else None,
        "high": max(atoms) if ranged else None,
    }


def count(engine: SearchEngine, request: CountRequest) -> dict[str, Any]:
    """How many documents match, and the values of fields: of the best ones for a question."""
    mode = engine.default_mode if request.mode == "auto" else Mode(request.mode)
    if mode == Mode.HYBRID and not engine.encodes:
        mode = Mode.TEXT
    searched = best = None
    if request.query is not None:
        options: dict[str, Any] = {"mode": mode, "typo_tolerance": request.typo_tolerance}
        searched = engine.read(request.query, **options)
    groups: dict[str | None, list[str]] = {}  # fields by their filter: few are ranked twice
    for field, where in request.fields.items():
        groups.setdefault(where, []).append(field)
    facets: dict[str, dict[Any, int]] = {}
    for where, names in groups.items():
        among = where
        if searched is not None:
            keys = _best(engine, searched, mode, where)
            among = _among(keys)
            best = BEST if len(keys) == BEST else best  # else they are all that match
        for field, values in engine.facets(*names, where=among).items():
            facets[field] = dict(list(values.items())[:_VALUES])
    by_words = searched is not None and mode == Mode.TEXT
    total = engine.count(request.where)
    if searched is not None and by_words:
        required = engine.required_phrases(searched.text)
        with engine.collection.reading() as snapshot:
            question, where = searched.text, request.where
            total = len(snapshot.by_words(question, MAX_OFFSET, where, required=required))
    return {
        "total": total,
        "at_least": by_words and total == MAX_OFFSET,
        "best": best,
        "facets": facet_lists(facets),
    }


def _best(engine: SearchEngine, read: Question, mode: Mode, where: str | None) -> Sequence[str]:
    """The keys of the best documents for a question, at most BEST."""
    texts = [] if mode == Mode.TEXT else engine.to_encode([read.text], mode)
    vectors = engine.encode_questions(texts) if texts else np.zeros((0, 0), np.float32)
    with engine.collection.reading() as snapshot:
        (keys,) = engine.rank(snapshot, [read.text], vectors, BEST, mode=mode, where=where)
    return keys


def _among(keys: Sequence[str]) -> str:
    """A filter for the documents with these keys."""
    quoted = ("'{}'".format(key.replace("'", "''")) for key in keys)
    return f"_id in ({', '.join(quoted)})" if keys else "_id = ''"
