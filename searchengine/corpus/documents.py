"""Documents, mappings and tables → checked documents, for `add`; metadata, for `update`.

Values of pandas, polars and numpy are stored as JSON: arrays as lists, dates and times as ISO 8601
texts, durations in seconds. A missing one (NaN, NaT, NA; None in a table) makes title and text
empty, leaves a field out, and is null within a list or an object; in `update` it is refused.
"""

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import date, time, timedelta
from decimal import Decimal
from functools import partial
from typing import Any, NoReturn, Protocol, Self

from searchengine.corpus.contents import bad, some_fields
from searchengine.errors import CorpusError, QueryError, SearchEngineError
from searchengine.indexer.arrays import integer

RESERVED = ("_id", "title", "text")
"""Fields that belong to the document itself and cannot be metadata."""
_OWN = (*RESERVED, "id")
NOT_METADATA = "is a field of the document, not metadata"
_EXPECTED = 'expected a Document or a mapping, {"_id": "1", "text": "…"}'
_REMEMBERED = 1000  # entries of LeftOut, so that memory stays bounded
_SURROGATE = re.compile("[\ud800-\udfff]")
_DEEPEST = 100  # levels of JSON; the limits of Python and SQLite differ between versions
_LARGEST = 1.7976931348623157e308  # of float64, which filters compare

Key = str | int
"""What names a document in a call; stored as text, so 7 and "7" are the same key."""
Patches = Mapping[str, Mapping[str, Any]] | Mapping[int, Mapping[str, Any]]
"""Key → metadata to merge."""


@dataclass(frozen=True, slots=True)
class Document:
    """A text with a key.

    Attributes:
        key, text, title, metadata: stored. A whole number as key becomes its digits, metadata
            what JSON holds, without fields that are missing.
        origin: file and line, for error messages.
        root: absolute path of the folder of a file with documents; else "".
        file: path below the root, for a document of a file; else "".
        derived: the key was computed from the content of the record.

    Raises CorpusError on an empty key, values of the wrong type, text that UTF-8 cannot hold, or
    metadata that contains the character U+0000.
    """

    key: str
    text: str
    title: str = ""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    origin: str = field(default="", compare=False, repr=False)
    root: str = field(default="", compare=False, repr=False)
    file: str = field(default="", compare=False, repr=False)
    derived: bool = field(default=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        if (number := integer(self.key)) is not None:
            object.__setattr__(self, "key", str(number))
        for name in ("key", "text", "title"):
            value = getattr(self, name)
            if not isinstance(value, str):
                self._refuse(f"{name} must be text, got {type(value).__name__}")
            if not is_utf8(value):
                self._refuse(f"{name} must be valid UTF-8, got half a surrogate pair")
        if not self.key.strip():
            self._refuse("the key is empty; give every document an _id")
        if "\0" in self.key:
            self._refuse("the key contains the character U+0000; remove it")
        try:
            object.__setattr__(self, "metadata", plain_fields(self.metadata))
        except ValueError as error:
            self._refuse(f"metadata {error}")

    def _refuse(self, reason: str) -> NoReturn:
        raise bad(self.origin or f"document {self.key!r:.80}", reason)

    @classmethod
    def from_mapping(
        cls,
        record: Mapping[str, Any],
        origin: str = "",
        key: str = "",
        *,
        needs_text: bool = True,
    ) -> "Document":
        """A document from a BEIR-like record: `_id` or `id`, `title`, `text`, and metadata.

        If there are both, `_id` is the key and `id` is metadata. `key`: for a record without.
        `needs_text`: refuse a record with neither text nor title.
        """
        rest = dict(record)
        id_field = "_id" if "_id" in rest else "id"
        name = _own(rest.pop(id_field, key))
        if isinstance(name, str) and not name:
            what = f"{id_field} is empty" if id_field in record else "no _id"
            raise bad(origin or "document", f"{what}; give every document an _id")
        if needs_text and "text" not in rest and "title" not in rest:
            where = origin or f"document {name!r:.80}"
            raise bad(where, f"no field 'text' or 'title' (fields: {some_fields(record)})")
        return cls(name, _own(rest.pop("text", "")), _own(rest.pop("title", "")), rest, origin)

    @classmethod
    def stored(cls, key: str, title: str, text: str, metadata: Mapping[str, Any]) -> Self:
        """A document as it was stored, so checked before."""
        document = object.__new__(cls)
        values = (key, text, title, metadata, "", "", "", False)
        for name, value in zip(cls.__slots__, values, strict=True):
            object.__setattr__(document, name, value)
        return document

    def as_record(self) -> dict[str, Any]:
        """The inverse of `from_mapping`: metadata, `_id`, `title` and `text` in one dict."""
        return {**self.metadata, "_id": self.key, "title": self.title, "text": self.text}

    @property
    def full_text(self) -> str:
        """Title and text as the encoder reads them: the title, a space, the text (as BEIR does)."""
        return f"{self.title} {self.text}".strip()

    @property
    def digest(self) -> bytes:
        """SHA-256 of title and text: documents with equal digests have equal vectors."""
        return hashlib.sha256(f"{len(self.title)}:{self.title}{self.text}".encode()).digest()


@dataclass(slots=True)
class LeftOut:
    """Documents left out: how many, and messages or keys of the first 1000."""

    count: int = 0
    first: list[str] = field(default_factory=list)

    def add(self, message: str | Exception) -> None:
        """Count one."""
        self.count += 1
        if len(self.first) < _REMEMBERED:
            self.first.append(str(message))


class DataFrame(Protocol):
    """A table of pandas or polars, one document per row."""

    @property
    def columns(self) -> Any: ...


def as_documents(
    records: Iterable[Document | Mapping[str, Any]] | DataFrame,
    malformed: LeftOut | None,
    *,
    needs_text: bool = True,
) -> Iterator[Document]:
    """Documents from documents, mappings, or the rows of a table.

    Args:
        records: an iterable of Document and mappings, or a table.
        malformed: takes the message of each refused record; None: the message is raised.
        needs_text: refuse a record with neither text nor title.

    Raises CorpusError, and QueryError if `records` cannot be iterated.
    """
    for position, record in enumerate(rows_of(records), start=1):
        place = f"document {position}"
        try:
            if isinstance(record, Document):
                for name in filter(record.metadata.__contains__, RESERVED):
                    record._refuse(f"{name!r} {NOT_METADATA}; give it another name")
                yield record
            elif isinstance(record, Mapping):
                yield Document.from_mapping(record, place, needs_text=needs_text)
            else:
                raise bad(place, f"{_EXPECTED}, got {type(record).__name__}")
        except SearchEngineError as error:
            if malformed is None:
                raise
            malformed.add(error)


def checked_key(key: object) -> str:
    """A key as it is stored: a text, or the digits of a whole number. Raises QueryError."""
    if (number := integer(key)) is not None:
        return str(number)
    if not isinstance(key, str) or "\0" in key or not is_utf8(key):
        raise QueryError(f"a key must be an integer or UTF-8 text without U+0000, got {key!r:.80}")
    return key


def checked_keys(keys: object, call: str) -> list[str]:
    """A list of keys, each as `checked_key`. Raises QueryError; `call`: takes them."""
    if isinstance(keys, str | bytes) or not isinstance(keys, Iterable):
        raise QueryError(f"{call} takes a list of keys, got {keys!r:.80}; put one key into a list")
    return [checked_key(key) for key in keys]


def is_utf8(text: str) -> bool:
    """Whether UTF-8 can hold a text: it has no half of a surrogate pair."""
    return _SURROGATE.search(text) is None


def rows_of(records: Any) -> Iterable[object]:
    """The rows of a table as mappings; any other iterable as it is.

    Raises QueryError for what is neither, and CorpusError for two columns of one name.
    """
    if isinstance(records, str | Mapping):
        raise QueryError("add takes an iterable of documents; put one document into a list")
    if hasattr(records, "iter_rows"):
        rows = records.iter_rows(named=True)
    elif hasattr(records, "to_dict") and hasattr(records, "columns"):
        if not records.columns.is_unique:
            raise CorpusError("a column name occurs twice in the DataFrame; rename one of the two")
        rows = records.to_dict(orient="records")
    elif isinstance(records, Iterable):
        return records
    else:
        what = f"add takes documents, or a pandas or polars DataFrame, got {type(records).__name__}"
        raise QueryError(what)
    # In a table every row has every column: None is a missing value.
    return ({n: v for n, v in row.items() if v is not None or n in _OWN} for row in rows)


def _own(value: Any) -> Any:
    """A key, title or text; "" for a missing one. Others than texts are for Document to refuse."""
    if isinstance(value, str):
        return value
    with suppress(TypeError, ValueError):
        value = plain(value)
    return "" if value is None else value


def plain_fields(fields: Mapping[str, Any], may_be_missing: bool = True) -> dict[str, Any]:
    """Metadata as JSON holds it, without fields that are missing. Raises ValueError."""
    result = {}
    for name, given in fields.items():
        try:
            value = plain(given, may_be_missing)
            if value is not None or given is None:
                result[plain(str(name))] = value
        except (TypeError, ValueError) as error:
            raise ValueError(f"{name!r:.80} cannot be stored: {error}") from error
    return result


def plain(value: Any, may_be_missing: bool = True, depth: int = 1) -> Any:
    """A value as JSON holds it, a missing one as None. Raises TypeError or ValueError.

    `may_be_missing`: else ValueError, at any depth. `depth`: levels of the document around it.
    """
    if isinstance(value, str):
        if not is_utf8(value):
            raise ValueError("it is not valid UTF-8, but has half a surrogate pair")
        if "\0" in value:
            raise ValueError("it contains the character U+0000, which ends texts; remove it")
        return value
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int | float):
        if value != value and not may_be_missing:
            raise ValueError("it holds a missing value, such as NaN; None removes a field")
        if abs(value) > _LARGEST:
            raise ValueError(f"it holds infinity or a number over {_LARGEST:.2g}; make it a text")
        return value if value == value else None
    if depth == _DEEPEST:
        raise ValueError(f"it is nested more than {_DEEPEST} levels deep; flatten it")
    inner = partial(plain, may_be_missing=may_be_missing, depth=depth + 1)
    if isinstance(value, Mapping):
        return {inner(str(name)): inner(item) for name, item in value.items()}
    return [*map(inner, value)] if isinstance(value, list | tuple) else inner(of_json(value))


def of_json(value: Any) -> Any:
    """A value of another type as JSON holds it; NaN for a missing one. Raises TypeError."""
    import numpy as np  # not at the top: the command line's help does not wait for it

    if isinstance(value, np.ndarray):
        return [*value] if value.ndim else value[()]
    is_nan = isinstance(value, np.generic | Decimal) and value != value
    if is_nan or type(value).__name__ in ("NAType", "NaTType"):  # the last two of pandas
        return float("nan")
    if isinstance(value, np.datetime64):
        return str(value)  # as a number, it would lose its unit
    if isinstance(value, np.generic) and not isinstance(value, np.timedelta64):
        return value.item()
    if isinstance(value, Decimal):
        is_whole = value.is_finite() and value == value.to_integral_value()
        return int(value) if is_whole else float(value)
    if isinstance(value, date | time):  # a datetime is a date, and pandas' Timestamp a datetime
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    raise TypeError(f"it is of type {type(value).__name__}; turn it into a text or a number")
