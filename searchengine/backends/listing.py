"""Lists documents without a question: in the order first added, and counted by a field's values."""

import sys
from collections.abc import Iterator
from difflib import get_close_matches
from itertools import chain, islice
from typing import Any

from searchengine.backends.contract import Snapshot
from searchengine.backends.entries import ids, keys_of
from searchengine.backends.filters.parser import field_name, parse
from searchengine.backends.filters.tree import COLUMNS, fields_of
from searchengine.corpus.documents import Document

Value = str | int | float | bool | None
Counts = dict[Value, int]

_DOCUMENTS = 100  # documents read at a time
_CONSTANTS: dict[str, Any] = {"true": True, "false": False, "null": None}


def documents(
    snapshot: Snapshot, where: str | None = None, offset: int = 0, limit: int | None = None
) -> Iterator[Document]:
    """Documents that match a filter, in the order first added, read in small blocks."""
    numbers = chain.from_iterable(block.tolist() for block in ids(snapshot, where))
    stop = None if limit is None else min(offset + limit, sys.maxsize)
    chosen = islice(numbers, min(offset, sys.maxsize), stop)
    while block := [*islice(chosen, _DOCUMENTS)]:
        yield from snapshot.documents(block)


def keys(snapshot: Snapshot, where: str | None = None) -> Iterator[str]:
    """Keys of the documents that match a filter, in the order first added."""
    for block in ids(snapshot, where):
        yield from keys_of(snapshot, block)


def facet(snapshot: Snapshot, name: str, where: str | None = None) -> Counts:
    """Value of a metadata field → number of documents that match a filter and have it.

    Of a list each distinct element counts; objects, and documents without the field, do not. The
    most frequent value comes first. Values that Python holds equal (1, 1.0 and True) are one.
    Reads the metadata of all documents, unless the field is indexed.
    """
    rows = snapshot.value_counts(name, where)
    counts: Counts = {}
    for kind, atom, number in sorted(rows, key=lambda row: (row[0], row[1])):
        value = _CONSTANTS.get(kind, atom)  # SQLite has no truth values
        counts[value] = counts.get(value, 0) + number
    return dict(sorted(counts.items(), key=lambda pair: -pair[1]))


def unknown_fields(snapshot: Snapshot, where: str | None) -> Iterator[str]:
    """A sentence for each field of a filter that no document has: it may be misspelt.

    None without documents. Cheap for a field that a document has; others read all metadata."""
    if where is None or not snapshot.ids_after(-1, None, 1).size:
        return
    for field in dict.fromkeys(fields_of(parse(where))):
        name = field_name(field)
        if field in COLUMNS or snapshot.ids_after(-1, f"exists({name})", 1).size:
            continue
        names = ["_id", "title", "text"]
        for document in snapshot.documents(snapshot.ids_after(-1, None, _DOCUMENTS)):
            names += map(str, document.metadata)
        wanted = {"id": "_id", "key": "_id"}.get(name, name.removeprefix("metadata."))
        close = get_close_matches(wanted, dict.fromkeys(names), 1)
        hint = f"did you mean {field_name((close[0],))}?" if close else "is it misspelt?"
        yield f"no document has a field {name}; {hint}"
