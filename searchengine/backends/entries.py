"""What any backend does by its contract: stored documents as entries and lists, and updates."""

import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from difflib import get_close_matches
from itertools import chain, islice
from typing import Any

import numpy as np

from searchengine.backends.contract import Backend, Changed, Entry, Ids, Known, Snapshot
from searchengine.backends.filters.parser import COLUMNS, field_name, fields_of, parse
from searchengine.corpus.contents import bad
from searchengine.corpus.documents import (
    NOT_METADATA,
    RESERVED,
    Document,
    Patches,
    checked_key,
    plain_fields,
)
from searchengine.errors import QueryError

_IDS = 50_000  # read at a time: a filter on an indexed field is evaluated again for each block


def ids(snapshot: Snapshot, where: str | None = None, batch: int = 0) -> Iterator[Ids]:
    """Ids of the documents that match a filter (None: of all), ascending, in blocks (n,) int64."""
    after = -1
    while (block := snapshot.ids_after(after, where, batch or _IDS)).size:
        yield block
        after = int(block[-1])


def keys_of(snapshot: Snapshot, documents: Iterable[int]) -> list[str]:
    """The keys of documents, by id, in their order."""
    return [document.key for document in snapshot.documents(documents, texts=False)]


def ids_of(snapshot: Snapshot, keys: Iterable[str]) -> dict[str, int]:
    """Key → id, for the keys that are stored."""
    return {key: state.id for key, state in snapshot.known(keys).items()}


def entries(backend: Backend, keys: Sequence[str]) -> list[Entry]:
    """The entries of these keys in the newest commit, in their order, without unknown keys."""
    with backend.reading(newest=True) as snapshot:
        return entries_of(snapshot, keys)


def update(backend: Backend, metadata: Patches) -> None:
    """Merge into the metadata of documents (RFC 7396: None removes), all or none.

    The metadata as last added is kept as well: see Entry.source. Raises QueryError: unknown key.
    """
    patches = _checked_patches(metadata)
    while True:  # each time that it begins again, another writer has changed one of them
        with backend.reading(newest=True) as snapshot:
            states = snapshot.known(patches)
            if unknown := [key for key in patches if key not in states]:
                raise QueryError(
                    f"{backend.path} has no document {unknown[0]!r}; nothing was changed, add it "
                    "first or leave it out"
                )
            stored = metadata_of(snapshot, [states[key] for key in patches])
        patched = []
        for (key, patch), metadata in zip(patches.items(), stored, strict=True):
            merged = _merge_patch(metadata, patch)
            document = Document(key, "", "", merged, root=states[key].root or "")
            patched.append(Entry(document, (), np.empty((0, 0), np.float32), states[key].added))
        with suppress(Changed):
            backend.upsert((), states, metadata=patched)
            return


def _checked_patches(metadata: Patches) -> dict[str, dict[str, Any]]:
    """Key → metadata to merge, as JSON holds it. Raises QueryError and CorpusError."""
    if not isinstance(metadata, Mapping):
        raise QueryError(f"update takes metadata by key, got {type(metadata).__name__}")
    patches = {}
    for key, patch in metadata.items():
        place = f"update of {key!r}"
        if not isinstance(patch, Mapping):
            raise QueryError(f"{place} must be a mapping of metadata, got {type(patch).__name__}")
        for name in filter(patch.__contains__, RESERVED):
            how = "to change it, add the document again"
            raise QueryError(f"{place}: {name!r} {NOT_METADATA}; {how}")
        key = checked_key(key)
        if key in patches:
            raise QueryError(f"update names the key {key!r} twice, as a text and as a number")
        try:
            patches[key] = plain_fields(patch, may_be_missing=False)
        except ValueError as error:
            raise bad(place, f"metadata {error}") from error
    return patches


def metadata_of(snapshot: Snapshot, states: Sequence[Known]) -> list[Any]:
    """The metadata of stored documents, without reading their texts."""
    try:
        return [json.loads(state.metadata) for state in states]
    except (TypeError, ValueError):  # damaged: this raises, and names the collection
        return [each.metadata for each in snapshot.documents(state.id for state in states)]


def _merge_patch(metadata: Any, patch: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(metadata) if isinstance(metadata, dict) else {}
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        else:
            inner = isinstance(value, Mapping)
            merged[name] = _merge_patch(merged.get(name), value) if inner else value
    return merged


def all_entries(snapshot: Snapshot, batch: int = 500) -> Iterator[list[Entry]]:
    """All entries of one commit, in the order in which the documents were first added."""
    for block in ids(snapshot, None, batch):
        yield entries_of(snapshot, keys_of(snapshot, block.tolist()))


def entries_of(snapshot: Snapshot, keys: Sequence[str]) -> list[Entry]:
    """The entries of the stored ones of `keys`, in their order."""
    states = snapshot.known(keys)
    stored = {key: states[key] for key in keys if key in states}
    numbers = [state.id for state in stored.values()]
    documents, passages = snapshot.documents(numbers), snapshot.passages(of=numbers)
    vectors = np.empty((0, snapshot.settings["encoder"]["dim"]), np.float32)
    if passages.ids.size:
        vectors = snapshot.vectors(passages.ids)
    rows: dict[int, list[int]] = {}
    for row, document in enumerate(passages.documents.tolist()):
        rows.setdefault(document, []).append(row)
    spans = [*zip(passages.starts.tolist(), passages.ends.tolist(), strict=True)]
    return [
        Entry(
            replace(Document.stored(*document), root=state.root or ""),
            tuple(spans[row] for row in rows.get(state.id, ())),
            vectors[rows.get(state.id, [])],
            state.source,
            state.vectors,
        )
        for document, state in zip(documents, stored.values(), strict=True)
    ]


Value = str | int | float | bool | None
Counts = dict[Value, int]

_DOCUMENTS = 100  # documents read at a time


def documents(
    snapshot: Snapshot, where: str | None = None, offset: int = 0, limit: int | None = None
) -> Iterator[Document]:
    """Documents that match a filter, in the order first added, read in small blocks."""
    numbers = chain.from_iterable(block.tolist() for block in ids(snapshot, where))
    stop = None if limit is None else min(offset + limit, sys.maxsize)
    chosen = islice(numbers, min(offset, sys.maxsize), stop)
    while block := [*islice(chosen, _DOCUMENTS)]:
        yield from (Document.stored(*row) for row in snapshot.documents(block))


def keys(snapshot: Snapshot, where: str | None = None) -> Iterator[str]:
    """Keys of the documents that match a filter, in the order first added."""
    for block in ids(snapshot, where):
        yield from keys_of(snapshot, block)


def _by_kind(row: tuple[Any, int]) -> tuple[Any, ...]:
    """Orders values of one kind; truth values come last, so that 1 names what equals 1."""
    return isinstance(row[0], bool), type(row[0]).__name__, row[0]


def facet(snapshot: Snapshot, name: str, where: str | None = None) -> Counts:
    """Value of a metadata field → number of documents that match a filter and have it.

    Of a list each distinct element counts; objects, and documents without the field, do not. The
    most frequent value comes first. Values that Python holds equal (1, 1.0 and True) are one.
    Reads the metadata of all documents, unless the field is indexed.
    """
    rows = snapshot.value_counts(name, where)
    counts: Counts = {}
    for value, number in sorted(rows, key=_by_kind):
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
