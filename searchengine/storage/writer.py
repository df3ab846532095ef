"""One write transaction on a collection: its tables and its segments change together, or neither.

A segment's files are complete and synced before the transaction names it; until then its folder is
garbage, which is removed after another commit. So at every instant a reader sees all of a commit
or none.
"""

import os
import re
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from indexer.building.build import Progress
from indexer.building.merge import outgrown
from indexer.config import FLAT_BELOW
from indexer.errors import SegmentError
from indexer.search.allowed import Allowed
from indexer.segment import Segment, SegmentConfig
from indexer.storage.durable import below, open_folder
from searchengine.errors import CollectionError
from searchengine.storage import tiers
from searchengine.storage.documents.changes import Changes
from searchengine.storage.documents.store import SegmentRow, Store

Vectors = npt.NDArray[np.float32]
OpenSegment = Callable[[SegmentRow], Segment]
Measured = Mapping[SegmentRow, tuple[Segment, Allowed | None]]
"""Segments that were measured, each with the rows that could be found; None for all."""
TUNED = "tuned"
"""The setting that names the segments of the last tuning: see maintenance.guarantee."""
_SEGMENT = re.compile(r"[0-9]+(\.[0-9a-f]{32}\.new)?")


class Writer:
    """What a transaction may do to a collection's segments; to its tables, `changes` does it.

    Made by `writing`.

    Attributes:
        store: the connection that holds the transaction.
        changes: the same, to write to the tables.
        opened: the segments made here, open.
        before: name → inode of every folder of a segment when the transaction began.
    """

    def __init__(
        self, path: Path, store: Store, open_segment: OpenSegment, before: Mapping[str, int]
    ) -> None:
        self.path = path
        self.store = store
        self.changes = Changes(store)
        self.opened: dict[SegmentRow, Segment] = {}
        self._open_segment = open_segment
        self.before = before
        # Beyond folders that no commit names, too: see remove_unnamed.
        self._numbers = max([0, *(row.id for row in store.segments()), *map(int, before)])

    def append(self, vectors: Iterable[Vectors], progress: Progress | None = None) -> None:
        """One segment more, of blocks (n, D): the passages from `changes.next_passage` on."""
        base = self.changes.next_passage()
        committed = self.store.segments()
        largest = max(committed, key=lambda row: row.rows, default=None)

        def build(path: Path) -> Segment:
            return Segment.build(
                path,
                vectors,
                self._config(),
                provenance=self._provenance(),
                progress=progress,
                rotation_of=None if largest is None else self._open_segment(largest),
            )

        self._add(base, build)

    def merge(
        self,
        segments: Sequence[SegmentRow],
        *,
        refit: bool | None = None,
        tuning: Mapping[str, Any] | None = None,
        progress: Progress | None = None,
    ) -> None:
        """Write segments as one, without what was deleted; its passages get new ids.

        `refit`: fit the rotation anew; None leaves that to how much the rows have grown.
        `tuning`: for the manifest; None keeps that of the first segment that has one.
        """
        parts, base = [], self.changes.next_passage()
        next_id = base
        for row in sorted(segments, key=lambda row: row.base):
            segment = self._open_segment(row)
            gone = self.store.dead(row)
            moved = self.changes.move_passages(row, next_id)
            if moved != row.rows - gone.size:
                raise self.store.damaged(
                    f"{moved} passages in segment {row.id}, which has {row.rows - gone.size} rows"
                )
            next_id += moved
            tuning = tuning or segment.manifest.tuning
            if moved:
                live = Allowed.without(gone, row.rows) if gone.size else None
                parts.append((segment, live))
        self.changes.forget(segments)

        def build(path: Path) -> Segment:
            return Segment.merge(
                path,
                parts,
                self._config(),
                refit=refit,
                provenance=self._provenance(),
                tuning=tuning,
                progress=progress,
            )

        if parts:
            self._add(base, build)

    def rebuild(
        self,
        measured: Measured,
        config: SegmentConfig,
        tuning: Mapping[str, Any],
        progress: Progress | None = None,
    ) -> None:
        """The same rows in segments that are searched another way; later ones are built alike.

        Raises CollectionError when the segments or the rows deleted are others than were measured.
        """
        left = {row: row.rows if only is None else only.size for row, (_, only) in measured.items()}
        there = {row: row.rows - self.store.dead_count(row) for row in self.store.segments()}
        if list(there.items()) != list(left.items()):
            raise CollectionError(
                f"{self.path} was changed by another process while it was measured; "
                "nothing was changed here, tune it again"
            )
        self.changes.set("index", config.as_dict())
        for row, (segment, only) in measured.items():
            if only is not None:  # only the rows that were measured, in the basis that they lie in
                self.merge([row], refit=False, tuning=tuning, progress=progress)
                continue
            self.changes.forget([row], keep_tombstones=True)

            def build(path: Path, segment: Segment = segment) -> Segment:
                return segment.rebuild(path, config, tuning=tuning, progress=progress)

            self._add(row.base, build)
        names = [row.manifest_sha256 for row in self.opened]
        commit = int(self.store.settings().get("commit", 0)) + 1  # the one that this ends in
        self.changes.set(TUNED, {"commit": commit, "segments": names})

    def rename_encoder(self, renamed: Mapping[str, str]) -> None:
        """Write the present fingerprint of the encoder over one that an older version gave it."""
        built = self.store.settings()["encoder"]
        if built["fingerprint"] in renamed:
            self.changes.set("encoder", built | {"fingerprint": renamed[built["fingerprint"]]})

    def _add(self, base: int, build: Callable[[Path], Segment]) -> None:
        """Build, sync and open a segment, and name it."""
        self._numbers += 1
        with os_errors(self.path), segment_errors(self.path):
            segment = build(folder_of(self.path, self._numbers))
        row = SegmentRow(self._numbers, base, segment.rows, segment.manifest_sha256)
        self.opened[row] = segment
        self.changes.name(row)

    def _config(self) -> SegmentConfig:
        return SegmentConfig.from_dict(self.store.settings()["index"])

    def _provenance(self) -> dict[str, str]:
        return {"encoder": self.store.settings()["encoder"]["fingerprint"]}


@contextmanager
def writing(
    path: Path, store: Store, open_segment: OpenSegment, wait: float = 0
) -> Iterator[Writer]:
    """A transaction: committed at the end of the block, undone if that fails.

    Raises:
        CollectionBusy: another process is still writing after `wait` seconds.
        CollectionError: another folder has taken the place of this one.
    """
    with store.transaction(wait), _beside(path, store) as folder:
        with os_errors(path):
            before = _folders(path, folder)
        writer, process = Writer(path, store, open_segment, before), os.getpid()
        try:
            yield writer
            writer.changes.count_commit()
        except BaseException as error:
            if process != os.getpid():  # forked amid the block: all of it is the parent's
                raise
            for segment in writer.opened.values():
                segment.close()
            with suppress(OSError):
                for name in _folders(path, folder).keys() - before.keys():
                    shutil.rmtree(below(path / "segments" / name, folder), dir_fd=folder)
            if isinstance(error, CollectionError) and not store.in_place:
                raise store.replaced() from error
            raise


def due(store: Store, *, finished: bool = False) -> list[SegmentRow]:
    """The segments that searchengine.storage.tiers would have merged; `finished` as there."""
    committed = store.segments()
    sizes = [(row.rows - store.dead_count(row), row.rows) for row in committed]
    return [committed[i] for i in tiers.due(sizes, finished=finished)]


def misfit(segments: Mapping[SegmentRow, Segment]) -> SegmentRow | None:
    """A segment that took over the rotation of one much smaller, which does not suit its rows.

    Below FLAT_BELOW rows all are scored, whatever the rotation.
    """
    for row, segment in segments.items():
        if row.rows >= FLAT_BELOW and outgrown(row.rows, segment.manifest.fitted_on):
            return row
    return None


def folder_of(path: Path, number: int) -> Path:
    """The folder of a segment."""
    return path / "segments" / f"{number:06d}"


def remove_unnamed(path: Path, store: Store, before: Mapping[str, int]) -> None:
    """Remove those folders of segments that no commit names, of all that were there `before`.

    To be called after a commit of one's own, which began when they were there: what was replaced by
    it, and what a writer left that was killed. Not sooner: a writer that is killed while SQLite
    syncs its commit leaves that commit undecided. Nobody sees it, but the next process that
    recovers SQLite's log may find it; only a later commit writes over it.
    """
    named = {folder_of(path, row.id).name for row in store.segments()}
    if not before.keys() - named:
        return
    with store.transaction(queue=False), _beside(path, store) as folder, os_errors(path):
        named = {folder_of(path, row.id).name for row in store.segments()}
        for name, inode in _folders(path, folder).items():
            if name not in named and before.get(name) == inode:
                shutil.rmtree(below(path / "segments" / name, folder), dir_fd=folder)


@contextmanager
def _beside(path: Path, store: Store) -> Iterator[int | None]:
    """The folder of segments beside this very database, whatever takes its name meanwhile."""
    with os_errors(path), ExitStack() as stack:
        folder = stack.enter_context(open_folder(path / "segments"))
        if not store.in_place:
            raise store.replaced()
        opened = stack.pop_all()
    with opened:
        yield folder


def _folders(path: Path, folder: int | None) -> dict[str, int]:
    """The folders of segments, by name, with their inodes; those half written are removed."""
    found = {}
    for name in os.listdir(path / "segments" if folder is None else folder):
        each = below(path / "segments" / name, folder)
        if not _SEGMENT.fullmatch(name):
            continue  # not ours
        status = os.stat(each, dir_fd=folder, follow_symlinks=False)
        if not stat.S_ISDIR(status.st_mode):
            continue
        if name.isdigit():
            found[name] = status.st_ino
        else:  # no commit can name it, and its writer does not have the lock any more
            shutil.rmtree(each, dir_fd=folder)
    return found


@contextmanager
def segment_errors(path: Path) -> Iterator[None]:
    """A damaged segment as CollectionError, with the way out."""
    try:
        yield
    except SegmentError as error:
        raise CollectionError(
            f"{error}; nothing was changed. The texts are in {path / 'documents.db'}: encode the "
            f"segment again with: searchengine repair {path}"
        ) from error


@contextmanager
def os_errors(path: Path) -> Iterator[None]:
    """Disk full, read-only folder, …: as CollectionError, with what became of the change."""
    try:
        yield
    except OSError as error:
        raise CollectionError(
            f"{path}: {error.strerror or error}; the change was undone, "
            "make room or choose a folder that can be written"
        ) from error
