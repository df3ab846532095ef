"""A collection in Qdrant, as a backend."""

import json
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Any, Self
from uuid import uuid4

from searchengine.backends.contract import Capabilities, Entry, check_unchanged, checked
from searchengine.backends.folder.documents.changes import Known, as_json
from searchengine.backends.folder.filters.parser import field_named
from searchengine.backends.folder.mode import Mode
from searchengine.backends.qdrant import control, filters, points
from searchengine.backends.qdrant.connections import Server
from searchengine.backends.qdrant.points import CONTROL
from searchengine.backends.qdrant.snapshot import QdrantSnapshot
from searchengine.backends.qdrant.tables import QdrantTables, documents_only
from searchengine.corpus.analyzer import Analyzer, Tokenizer
from searchengine.errors import CollectionError, QueryError

_TRIES = 100  # to reserve numbers, while other writers do
_POLL = 0.5  # seconds between two looks at the state of the graph


class QdrantCollection:
    """An open collection. Safe to use from several threads, and in a forked child.

    It has no state of its own but the settings: every search sees the last changes.

    Attributes:
        path: the URL without its API key.
        address: the URL, with its API key.
        wait: not used.
        accepts: as of searchengine.backends.folder.view.View.
    """

    def __init__(self, url: str, wait: float = 0) -> None:
        """Open. Raises CollectionError, BackendUnavailable and ImportError (missing extra)."""
        self.address, self.wait = url, wait
        self.accepts: Callable[[Mapping[str, Any]], None] = lambda _: None
        self._server = Server(url)
        self._lock = threading.Lock()
        self._state: control.State | None = None
        try:
            if not control.is_collection(self._server):
                raise CollectionError(
                    f"{self.path}: no such collection; make one with: searchengine copy FOLDER "
                    "URL, or searchengine index CORPUS URL"
                )
            self._current()
        except BaseException:
            self._server.close()
            raise

    @classmethod
    def create(
        cls,
        url: str,
        settings: dict[str, Any],
        analyzer: Analyzer | None,
        wait: float = 0,
        carried: Mapping[str, Any] | None = None,
    ) -> Self:
        """Create an empty collection, and open it.

        `settings`: as of a folder; `analyzer`: kept for copies to a folder, else not used;
        `carried`: of another backend.
        """
        stored = {"record_keys": "content"} | settings
        stored |= {"tokenizer": str(analyzer or Tokenizer.PORTER), "mode": Mode.VECTOR}
        with closing(Server(url)) as server:
            if control.is_collection(server):
                raise CollectionError(
                    f"{server.name} exists already; choose another name after the #, or open it"
                )
            control.create(server, int(stored["encoder"]["dim"]), int(stored["index"]["prefix"]))
            rotation = None
            if carried:
                stored["shortlist"] = carried["shortlist"]
                if carried["rotation"] is not None:
                    rotation = control.store_rotation(server, carried["rotation"])
            point = {
                "version": control.VERSION,
                "settings": json.dumps(stored),
                "revision": uuid4().hex,
                "commit": uuid4().hex,
                "next": 0,
                "by": "",
                "rotation": rotation,
            }
            control.put(server, CONTROL, point)
        return cls(url, wait)

    @classmethod
    def exists(cls, url: str) -> bool:
        """Whether there is a collection. Raises as opening it, if the server cannot be asked."""
        with closing(Server(url)) as server:
            return control.is_collection(server)

    @property
    def path(self) -> str:
        """The URL without its API key."""
        return self._server.name

    @property
    def settings(self) -> Mapping[str, Any]:
        """The collection settings."""
        assert self._state is not None
        return self._state.settings

    @property
    def capabilities(self) -> Capabilities:
        """What it can do beyond the contract."""
        return Capabilities("qdrant", None, "shard", False)

    @contextmanager
    def reading(self) -> Iterator[QdrantSnapshot]:
        """The collection as it is. Each document is shown as it was when it was first read."""
        state, point = self._current()
        yield QdrantSnapshot(self._server, state.settings, point["commit"], state.rotation)

    def carried(self) -> dict[str, Any]:
        """What a copy takes over: the rotation of the vectors, and the shortlist."""
        with self.reading() as snapshot:
            rotation = self._current()[0].rotation
            matrix = None if rotation is None else rotation.matrix
            return {"rotation": matrix, "shortlist": snapshot.shortlist}

    def known(self, keys: Sequence[str]) -> dict[str, Known]:
        """Key → stored state of the documents, for change detection."""
        return self._tables().known(keys)

    def entries(self, keys: Sequence[str]) -> list[Entry]:
        """The stored entries of these keys, in their order, without unknown keys."""
        state, _ = self._current()
        found = self._tables().keyed(keys, vectors=True)
        return [found[key].entry(state.rotation) for key in keys if key in found]

    def upsert(self, entries: Sequence[Entry], expected: Mapping[str, Known] | None = None) -> None:
        """Store entries, in place of those of the same keys; see Backend.

        Each document is replaced as a whole. Several are not one commit: if this is interrupted,
        some of them are stored, and the same call stores the rest. What another writer changes
        between the look at `expected` and the write is not noticed.
        """
        dim = int(self.settings["encoder"]["dim"])
        last = checked(entries, dim)
        for entry in last.values():
            points.check(entry, dim)
        known = self.known(list(last))
        check_unchanged(expected, known, last)
        numbers = {key: state.id for key, state in known.items()}
        new = [key for key in last if key not in numbers]
        state, first = self._reserve(len(new), list(last.values()))
        numbers |= {key: first + i for i, key in enumerate(new)}
        width = int(state.settings["index"]["prefix"])
        rows = [
            points.point_of(entry, numbers[key], width, state.rotation)
            for key, entry in last.items()
        ]
        for batch in points.batches(rows):
            self._write("upsert", points=batch)
        self._changed()

    def delete(self, keys: Sequence[str] | None, where: str | None) -> int:
        """Delete documents by key, or all that match a filter; returns how many."""
        from qdrant_client import models

        if keys is not None:
            ids: list[models.ExtendedPointId] = [
                points.id_of(key) for key in self._tables().keyed(keys)
            ]
            if not ids:
                return 0
            count, selector = len(ids), models.PointIdsList(points=ids)
            self._write("delete", points_selector=selector)
        else:
            holds = documents_only(filters.condition(where))
            count = self._tables().count_matching(holds)
            self._write("delete", points_selector=models.FilterSelector(filter=holds))
        self._changed()
        return count

    def update(self, patches: Mapping[str, Mapping[str, Any]]) -> None:
        """Merge into the metadata of documents. Raises QueryError: unknown key, nothing changed."""
        found = {entry.document.key: entry for entry in self.entries(list(patches))}
        unknown = [key for key in patches if key not in found]
        if unknown:
            raise QueryError(
                f"{self.path} has no document {unknown[0]!r}; nothing was changed, add it first or "
                "leave it out"
            )
        self.upsert([_patched(found[key], patch) for key, patch in patches.items()])

    def index_fields(self, names: Iterable[str]) -> None:
        """Index metadata fields for comparisons; equality and `contains` always have an index."""
        from qdrant_client import models

        state, _ = self._current()
        known = list(state.settings.get("fields", ()))
        for name in names:
            field = filters.name_of(field_named(name))
            for part, schema in (
                (filters.NUMBERS, models.PayloadSchemaType.FLOAT),
                (filters.DATES, models.PayloadSchemaType.DATETIME),
                (filters.ITEM_DATES, models.PayloadSchemaType.DATETIME),
            ):
                self._write(
                    "create_payload_index", field_name=f"{part}.{field}", field_schema=schema
                )
            known += [] if name in known else [name]
        self.configure({"fields": known})

    def configure(self, values: Mapping[str, Any]) -> None:
        """Store collection settings in one commit; None removes one."""
        settings = {**self._current()[0].settings, **values}
        kept = {name: value for name, value in settings.items() if value is not None}
        self._set(settings=json.dumps(kept), revision=uuid4().hex)
        self._current()

    def flush(self) -> None:
        """Return at once: the server has logged a change before it acknowledges it."""

    def wait_ready(self, timeout: float | None = None) -> None:
        """Wait until the server has built its graphs. Raises CollectionError after `timeout` s."""
        from qdrant_client import models

        deadline = None if timeout is None else time.monotonic() + timeout
        while (status := self._info().status) is not models.CollectionStatus.GREEN:
            if status is models.CollectionStatus.RED:
                raise CollectionError(
                    f"{self.path}: the server could not optimize the collection; see its log"
                )
            if status is models.CollectionStatus.GREY:  # stopped, until something changes
                self._server.call(
                    "update_collection", optimizers_config=models.OptimizersConfigDiff()
                )
            if deadline is not None and time.monotonic() > deadline:
                raise CollectionError(
                    f"{self.path}: the graph of vectors was not built within {timeout} seconds; "
                    "searches work meanwhile, wait longer"
                )
            time.sleep(_POLL)

    def fields(self) -> tuple[str, ...]:
        """The metadata fields that `index_fields` has indexed, as filters name them."""
        return tuple(self._current()[0].settings.get("fields", ()))

    def stored_bytes(self) -> int:
        """Bytes of the stored vectors; the server does not tell those of payloads and graphs."""
        _, passages = self._tables().counts()
        width = int(self.settings["encoder"]["dim"]) + int(self.settings["index"]["prefix"])
        return 2 * width * passages

    def is_indexed(self) -> bool:
        """Whether a graph of vectors serves searches."""
        return bool(self._info().indexed_vectors_count)

    def follow(self) -> None:
        """Return at once: every search sees the last changes."""

    def refresh(self) -> None:
        """Read the settings again. Raises EncoderMismatch if another encoder built them."""
        self._current()

    def close(self) -> None:
        """Close the connection; closing twice is harmless."""
        self._server.close()

    def _tables(self) -> QdrantTables:
        return QdrantTables(self._server, int(self.settings["encoder"]["dim"]))

    def _info(self) -> Any:
        return self._server.call("get_collection")

    def _current(self) -> tuple[control.State, Mapping[str, Any]]:
        """The settings, and the payload of the control point."""
        point = control.payload(self._server, CONTROL)
        if point is None:
            raise CollectionError(f"{self.path}: the collection is gone; create it again")
        with self._lock:
            if self._state is None or self._state.revision != point["revision"]:
                state = control.load(self._server, point)
                self.accepts(state.settings)
                self._state = state
            return self._state, point

    def _reserve(self, count: int, entries: Sequence[Entry]) -> tuple[control.State, int]:
        """Reserve numbers for new documents: the first one, and the settings to write them by.

        A change that holds only if no other writer was faster; else it is tried again. The first
        one fits the rotation, unless one came with the collection.
        """
        from qdrant_client import models

        for _ in range(_TRIES):
            state, point = self._current()
            if not count:
                return state, 0
            first, token = int(point["next"]), uuid4().hex
            change: dict[str, Any] = {"next": first + count, "by": token}
            if first == 0 and state.rotation is None:
                if (matrix := control.fitted(entries, state.settings)) is not None:
                    rotation = control.store_rotation(self._server, matrix)
                    change |= {"rotation": rotation, "revision": uuid4().hex}
            unchanged = models.FieldCondition(key="next", range=models.Range(gte=first, lte=first))
            holds = models.Filter(must=[models.HasIdCondition(has_id=[CONTROL]), unchanged])
            self._write("set_payload", payload=change, points=models.FilterSelector(filter=holds))
            state, point = self._current()
            if point["by"] == token:
                return state, first
        raise CollectionError(
            f"{self.path}: other writers were faster {_TRIES} times in a row; nothing was changed, "
            "try again"
        )

    def _changed(self) -> None:
        """Note that something was changed."""
        self._set(commit=uuid4().hex)

    def _set(self, **values: Any) -> None:
        from qdrant_client import models

        ids = models.PointIdsList(points=[CONTROL])
        self._write("set_payload", payload=values, points=ids)

    def _write(self, method: str, **arguments: Any) -> None:
        """Change points, and wait until the change can be read on the leading replica."""
        from qdrant_client import models

        ordering = models.WriteOrdering.STRONG
        self._server.call(method, wait=True, ordering=ordering, **arguments)


def _patched(entry: Entry, patch: Mapping[str, Any]) -> Entry:
    """An entry with a JSON merge patch (RFC 7396) in its metadata, by the function of SQLite."""
    before = as_json(entry.document.metadata)
    with closing(sqlite3.connect(":memory:")) as connection:
        sql = "SELECT json_patch(?, ?)"
        (text,) = connection.execute(sql, (before, as_json(patch))).fetchone()
    document = replace(entry.document, metadata=json.loads(text))
    return replace(entry, document=document, source=entry.source or before)
