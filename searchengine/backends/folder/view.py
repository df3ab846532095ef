"""A View: an open collection, to read. It shows one snapshot at a time."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock, RLock
from time import monotonic
from typing import Any

from searchengine.backends.contract import Backend
from searchengine.backends.folder.database import FOLDED, REOPENED, Identity, exhausted
from searchengine.backends.folder.folders import (
    check_name,
    checksum,
    folder_of,
    reading_errors,
    warn_network,
)
from searchengine.backends.folder.snapshot import Snapshot
from searchengine.backends.folder.store import SegmentRow, Store
from searchengine.errors import CollectionError, QueryError
from searchengine.indexer.config import Device
from searchengine.indexer.errors import SegmentError, SegmentFormatError
from searchengine.indexer.search.segment_files import require_gpu
from searchengine.indexer.segment import Segment

_MAX_WAIT = 2_000_000  # seconds to wait
_GROWN = 1.25  # times its size then, from which readers are waited for again
_TRIES = 20  # a segment folder that is missing may have been replaced just now: try again


def open_committed(path: Path, row: SegmentRow, **options: Any) -> Segment:
    """Open and check a segment of a collection; `options` of Segment.open. Raises SegmentError."""
    segment = Segment.open(folder_of(path, row.id), **options)
    if segment.manifest_sha256 != row.manifest_sha256 or segment.rows != row.rows:
        raise SegmentError(f"{segment.path}: manifest.json is not the committed one")
    return segment


def has_vectors(path: Path, row: SegmentRow) -> bool:
    """Whether the manifest and the vectors of a damaged segment are intact."""
    try:
        stored = Segment.verify_vectors(folder_of(path, row.id))
    except (SegmentError, OSError):
        return False
    return stored == (row.manifest_sha256, row.rows)


class View(Backend):
    """An open collection, to read. It shows the commit it was opened on until `refresh`.

    Safe to read from several threads: the snapshot is replaced as a whole. If another folder takes
    the place of this one, the snapshot stays until `refresh` or the next change, which open the new
    folder.

    Attributes:
        path: the folder.
        wait: seconds to wait for a writer of another process before CollectionBusy.
        device: where segments are scanned.
        accepts: called with the settings of a commit before it is shown; may raise to refuse it.
    """

    path: Path

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.path, self.wait, self.device)

    @reading_errors()
    def __init__(self, path: Path, wait: float = 0, device: str = Device.CPU) -> None:
        """Open. Raises CollectionError (no collection, damaged files), SegmentError (no GPU)."""
        check_name(path)
        if not path.is_dir():
            raise CollectionError(
                f"{path}: no such collection; make one with: searchengine index SOURCE {path}"
            )
        if not 0 <= wait <= _MAX_WAIT:
            raise QueryError(f"wait must be between 0 and {_MAX_WAIT} seconds, got {wait}")
        if device not in tuple(Device):
            raise QueryError(f"device must be one of {', '.join(Device)}, got {device!r}")
        if device == Device.GPU:
            require_gpu()
        self.path = path.absolute()  # a later chdir must not lead elsewhere
        self.wait, self.device = wait, Device(device)
        self.accepts: Callable[[Mapping[str, Any]], None] = lambda _: None
        warn_network(self.path)
        self._changing, self._advancing = Lock(), RLock()
        self._interrupted = False  # Ctrl-C may have come between a commit and showing it
        self._log_left = 0  # bytes of the log when readers were last waited for in vain
        self._shown: Snapshot | None = None
        self._shown = self._newest({})

    @contextmanager
    def reading(self, *, newest: bool = False) -> Iterator[Snapshot]:
        """The snapshot shown now, which stays open throughout the block.

        `newest`: the newest commit; searches continue on the one they see.
        """
        if newest:
            snapshot = self._newest(self._current().segments)
            try:
                yield snapshot
            finally:
                snapshot.close()
            return
        self._catch_up()
        with self._changing:
            if self._shown is None:
                raise self._closed()
            snapshot = self._shown
            snapshot.readers += 1
        try:
            yield snapshot
        finally:
            with self._changing:
                snapshot.readers -= 1
                if snapshot is not self._shown and not snapshot.readers:
                    snapshot.close()

    @property
    def segments(self) -> Mapping[SegmentRow, Segment]:
        """The segments shown now."""
        return self._current().segments

    @property
    def identity(self) -> Identity:
        """Differs from that of a collection that takes its place."""
        return self._current().store.identity

    @property
    def settings(self) -> Mapping[str, Any]:
        """The collection settings shown now."""
        self._catch_up()
        return self._current().settings

    @property
    def store(self) -> Store:
        """The tables shown now."""
        return self._current().store

    @reading_errors()
    def refresh(self) -> None:
        """Show the newest commit of the collection that is in this folder now."""
        with self._advancing:
            current = self._current()
            with Store(self.path / "documents.db", readers=1) as store:
                if (store.identity, store.settings().get("commit_id")) == (
                    current.store.identity,
                    current.commit_id,
                ) and not (store.overgrown and monotonic() > current.begun + REOPENED):
                    return
            self._show_newest(current.segments)

    def follow(self) -> None:
        """Show the newest commit if another folder has taken the place of the one shown."""
        if not self._current().store.in_place:
            self.refresh()

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._shown is None

    def close(self) -> None:
        """Release the files; closing twice is harmless."""
        with self._changing:
            shown, self._shown = self._shown, None
            if shown is None:
                return
            if not shown.readers:
                shown.close()
        # The last connection to close checkpoints SQLite's log, which needs a writable one.
        with suppress(CollectionError, OSError):
            if Store.has_log(self.path / "documents.db"):
                Store(self.path / "documents.db").close()

    def _catch_up(self) -> None:
        """Show the newest commit after an interrupted change."""
        if self._interrupted and self._shown is not None:
            self.refresh()
            self._interrupted = False

    def _current(self) -> Snapshot:
        if self._shown is None:
            raise self._closed()
        return self._shown

    def _closed(self) -> CollectionError:
        return CollectionError(f"{self.path} is closed; open it again")

    @reading_errors()
    def _newest(self, held: Mapping[SegmentRow, Segment]) -> Snapshot:
        """A snapshot of the last commit; segments in `held` are not opened again."""
        opened = dict(held)  # a failed try adds to it: the next one is then quicker

        def open_segment(row: SegmentRow) -> Segment:
            if row not in opened:
                opened[row] = self._open_segment(row, held)
            return opened[row]

        failed: list[SegmentRow] | None = None
        for _ in range(_TRIES):
            try:
                snapshot = Snapshot(self.path, open_segment, self._shown)
                break
            except (CollectionError, OSError):
                # Replaced just now and removed by the next writer? Then other segments are listed.
                before = failed
                with Store(self.path / "documents.db", readers=1) as store:
                    failed = store.segments()
                if failed == before:
                    raise
        else:
            snapshot = Snapshot(self.path, open_segment)
        try:
            self.accepts(snapshot.settings)
        except BaseException:
            snapshot.close()
            raise
        return snapshot

    def _show_newest(self, held: Mapping[SegmentRow, Segment]) -> None:
        """Show the newest commit; the former snapshot is closed when it has no readers.

        One thread at a time, so that no thread shows an older commit than another before.
        """
        with self._advancing:
            snapshot = self._newest(held)
            with self._changing:
                before = self._shown
                if before is None:  # closed meanwhile
                    snapshot.close()
                    return
                self._shown = snapshot
                if not before.readers:
                    before.close()

    def let_go_of_log(self, store: Store, held: Mapping[SegmentRow, Segment]) -> None:
        """Fold SQLite's log into the database if it is large; this view then reads the file."""

        def follow() -> None:
            self._show_newest(held)

        if store.overgrown:
            if store.log_bytes > _GROWN * self._log_left:
                self._log_left = 0 if store.fold_log(follow) else store.log_bytes
            return
        self._log_left = 0
        if store.log_bytes > FOLDED and store.fold_log():
            follow()

    def _open_segment(self, row: SegmentRow, held: Mapping[SegmentRow, Segment]) -> Segment:
        """Open and check a segment."""
        with self.named_segment(row):
            return open_committed(self.path, row, device=self.device, checksum=checksum)

    @contextmanager
    def named_segment(self, row: SegmentRow) -> Iterator[None]:
        """Raise the error of a segment as CollectionError, with the way to repair it."""
        try:
            with reading_errors():
                yield
        except SegmentFormatError as error:
            raise CollectionError(str(error)) from error
        except SegmentError as error:
            if limit := exhausted(error):
                raise CollectionError(f"{self.path}: {limit}") from error
            raise CollectionError(
                f"{error}; the texts are in {self.path / 'documents.db'}: restore the folder "
                f"{folder_of(self.path, row.id)} from a copy, or encode it again with: "
                f"searchengine repair {self.path}"
            ) from error
