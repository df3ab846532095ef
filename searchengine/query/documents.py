"""Documents: a collection as a store of documents, got by key, listed, counted and sampled."""

from collections.abc import Iterable, Iterator
from random import Random
from typing import TypeVar, overload

from searchengine.backends import listing
from searchengine.backends.contract import Backend
from searchengine.backends.folder.filters.parser import field_named, parse
from searchengine.corpus.documents import Document, checked_key
from searchengine.errors import QueryError, UnknownKey
from searchengine.indexer.arrays import Floats

D = TypeVar("D")


class Documents:
    """The documents of an open collection, read as from a dict whose values know their keys.

    Every call reads the commit that is shown; an iterator keeps the commit on which it began, while
    others write. Documents come in the order in which they were first added.
    """

    collection: Backend

    @overload
    def get(self, keys: str) -> Document | None: ...  # type: ignore[overload-overlap]
    @overload
    def get(self, keys: str, default: D) -> Document | D: ...  # type: ignore[overload-overlap]
    @overload
    def get(self, keys: Iterable[str]) -> list[Document | None]: ...
    @overload
    def get(self, keys: Iterable[str], default: D) -> list[Document | D]: ...
    def get(
        self, keys: str | Iterable[str], default: object = None
    ) -> Document | list[Document] | object:
        """The document of a key, or the documents of several keys, in their order.

        As in a dict, an unknown key gives `default`, in a list at its place; `engine[key]` raises
        UnknownKey. Raises QueryError for a key that is not a text.
        """
        if isinstance(keys, str):
            return self._found([keys]).get(keys, default)
        if not isinstance(keys, Iterable):
            raise QueryError(f"get takes a key or a list of keys, got {keys!r}")
        order = list(keys)
        documents = self._found(order)
        return [documents.get(key, default) for key in order]

    def __getitem__(self, key: str) -> Document:
        """The document of a key. Raises UnknownKey, which is a KeyError, and QueryError."""
        document = self._found([key]).get(key)
        if document is None:
            raise UnknownKey(
                f"{self.collection.path} has no document {key!r}; "
                "engine.get(key) returns None instead of raising"
            )
        return document

    def vectors(self, keys: Iterable[str]) -> list[Floats | None]:
        """The stored vectors of documents, in the order of the keys; None for an unknown key.

        For each document float32 (n, D), a unit row for each passage in their order, or (0, D) if
        it has no vector. They are in the encoder's basis, and as precise as they are stored: by
        default in half precision. Raises QueryError.
        """
        if isinstance(keys, str) or not isinstance(keys, Iterable):
            raise QueryError(f"vectors takes a list of keys, got {keys!r:.80}")
        order = [checked_key(key) for key in keys]
        entries = self.collection.entries(list(dict.fromkeys(order)))
        stored = {entry.document.key: entry.vectors for entry in entries}
        return [stored.get(key) for key in order]

    def keys(self, where: str | None = None) -> Iterator[str]:
        """The keys of all documents, or of those that match a filter. Raises FilterError."""
        _check_filter(where)

        def read() -> Iterator[str]:
            with self.collection.reading() as snapshot:
                yield from listing.keys(snapshot.store, where)

        return read()

    def documents(
        self, where: str | None = None, *, offset: int = 0, limit: int | None = None
    ) -> Iterator[Document]:
        """All documents, or those that match a filter, without the first `offset`, up to `limit`.

        Memory stays bounded. Raises FilterError and QueryError.
        """
        _check_filter(where)
        _check_count("offset", offset)
        if limit is not None:
            _check_count("limit", limit)

        def read() -> Iterator[Document]:
            with self.collection.reading() as snapshot:
                yield from listing.documents(snapshot.store, where, offset, limit)

        return read()

    def __iter__(self) -> Iterator[Document]:
        return self.documents()

    def __contains__(self, key: object) -> bool:
        with self.collection.reading() as snapshot:
            return isinstance(key, str) and bool(snapshot.store.ids_of([checked_key(key)]))

    def count(self, where: str | None = None) -> int:
        """Number of documents, or of those that match a filter. Raises FilterError."""
        _check_filter(where)
        with self.collection.reading() as snapshot:
            return snapshot.store.count(where)

    def facets(self, *fields: str, where: str | None = None) -> dict[str, listing.Counts]:
        """Field → value → number of documents that match a filter and have it, most frequent first.

        Of a list each element counts. Reads the metadata of all documents, but for fields that
        are indexed. Raises FilterError.
        """
        for field in fields:
            field_named(field)
        _check_filter(where)
        with self.collection.reading() as snapshot:
            return {field: listing.facet(snapshot.store, field, where) for field in fields}

    def __len__(self) -> int:
        return self.count()

    def __bool__(self) -> bool:
        """True, although an empty collection has the length 0: an engine is more than a list."""
        return True

    def sample(self, n: int, where: str | None = None, *, seed: int = 0) -> list[Document]:
        """n different documents drawn at random, of those that match a filter; all if they are few.

        The same commit and seed give the same documents in the same order. Reads all ids. Raises
        FilterError and QueryError.
        """
        _check_filter(where)
        _check_count("n", n)
        with self.collection.reading() as snapshot:
            total = snapshot.store.count(where)
            positions = Random(seed).sample(range(total), min(n, total))
            return list(listing.at(snapshot.store, positions, where))

    def _found(self, keys: list[str]) -> dict[str, Document]:
        """Key → document, for the keys that are stored."""
        with self.collection.reading() as snapshot:
            ids = snapshot.store.ids_of([checked_key(key) for key in keys])
            documents = snapshot.store.documents(ids.values())
        return {document.key: document for document in documents}


def _check_filter(where: str | None) -> None:
    """Raise QueryError or FilterError now, not when an iterator is first used."""
    if where is None:
        return
    if not isinstance(where, str):
        raise QueryError(f"where must be a text or None, got {where!r}")
    parse(where)


def _check_count(name: str, value: object) -> None:
    if type(value) is not int or value < 0:
        raise QueryError(f"{name} must be a whole number of at least 0, got {value!r}")
