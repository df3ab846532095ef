"""What a query needs of the tables of one commit, in whichever database they are kept."""

from collections.abc import Hashable, Iterable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from searchengine.corpus.documents import Document

Ids = npt.NDArray[np.int64]


class Passage(NamedTuple):
    """A passage: its document's id, and its offsets in the document's text."""

    id: int
    document: int
    start: int
    end: int


class Tables(Protocol):
    """Documents and passages by id. searchengine.backends.folder.documents.store.Store is one.

    Ids of documents rise in the order in which the documents were first added.
    """

    def passages(self, ids: Iterable[int]) -> list[Passage]:
        """The passages with these ids, in this order."""

    def passages_of(self, documents: Iterable[int]) -> list[Passage]:
        """All passages of these documents, by id."""

    def documents(self, ids: Iterable[int]) -> list[Document]:
        """The documents with these ids, in this order."""

    def keys_of(self, ids: Iterable[int]) -> list[str]:
        """The keys of the documents of these ids, in their order."""

    def ids_of(self, keys: Iterable[str]) -> dict[str, int]:
        """Key → id, for the keys that are stored."""

    def highest_number(self) -> int:
        """The highest key that is a number of at most 18 digits; −1 if there is none."""

    def ids_after(self, after: int, where: str | None, limit: int) -> Ids:
        """The first ids above `after` of documents that match a filter, ascending, (n,) int64."""

    def count(self, where: str | None = None) -> int:
        """The number of documents that match a filter; None: of all."""

    def counts(self) -> tuple[int, int]:
        """The numbers of documents and passages."""

    def values(self, documents: Iterable[int], name: str) -> dict[int, Hashable]:
        """Document id → its value of a metadata field, to group by; missing values differ."""

    def value_counts(self, name: str, where: str | None) -> Sequence[tuple[str, Any, int]]:
        """Kind, value and number of documents that match a filter, for each value of a field.

        Kinds are those of SQLite's json_type; of a list each distinct element counts.
        """
