"""Writing a commit: tables and segments change together, in one transaction, or not at all.

    Writer      builds, merges and restores segments, whose files are complete and synced before the
                tables name them; until then a segment's folder is garbage
    writing     the transaction; collection.py shows it, and folders.py removes what none names
    to_merge    which segments to merge now, by their sizes

So at every instant a reader sees all of a commit or nothing of it, and a killed process leaves
nothing but garbage.
"""

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from searchengine.backends.contract import Ids
from searchengine.backends.folder.folders import (
    checksum,
    folder_errors,
    folder_of,
    segment_folders,
    segments_folder,
)
from searchengine.backends.folder.snapshot import OpenSegment
from searchengine.backends.folder.store import Changes, SegmentRow, Store
from searchengine.backends.folder.words import writer
from searchengine.errors import CollectionError
from searchengine.indexer.building import Blocks, Passages, Progress
from searchengine.indexer.search.scoring import Allowed
from searchengine.indexer.segment import Segment, SegmentConfig
from searchengine.indexer.storage.files import sync_folder

Measured = Mapping[SegmentRow, tuple[Segment, Allowed | None]]
"""Segments that were measured, each with the rows that could be found; None for all."""
SCANNED = 1 << 13  # rows that are scanned in about 0.1 ms (192 dimensions); a graph saves half
TUNED = "tuned"
"""The setting of the last tuning: `tuning` is its record (Tuning.as_dict)."""


class Writer:
    """A transaction: `append`, `merge` and `rebuild` segments; `changes` writes tables.

    Returned by `Collection.writing`.

    Attributes:
        store: the connection that holds the transaction.
        changes: writes to its tables.
        opened: the segments added in this transaction.
        before: the names of all folders of segments when the transaction began.
    """

    def __init__(
        self, path: Path, store: Store, open_segment: OpenSegment, before: set[str]
    ) -> None:
        self.path = path
        self.store = store
        self.changes = Changes(store)
        self.opened: dict[SegmentRow, Segment] = {}
        self._open_segment = open_segment
        self.before = before
        # Beyond the folders that no commit names, too: see folders.remove_unnamed.
        self._last = max(map(int, before), default=-1)

    def append(
        self,
        vectors: Blocks,
        progress: Progress | None = None,
        rows: int | None = None,
    ) -> None:
        """Add a segment of vectors (n, D), from the next id on.

        `rows`: n, if known. Beside a larger segment, a few thousand rows get no graph or lists
        until they are merged: building those would take most of the time of a commit.
        """
        largest = max(self.store.segments(), key=lambda row: row.rows, default=None)
        base, new = self._new()
        if largest is not None and rows is not None and rows <= min(SCANNED, largest.rows):
            new["config"] = new["config"].scanned()
        like = None if largest is None else self._open_segment(largest)
        build = partial(Segment.build, vectors=vectors, like=like, progress=progress, **new)
        self._add(base, build)

    def merge(
        self,
        segments: Sequence[SegmentRow],
        *,
        tuning: Mapping[str, Any] | None = None,
        progress: Progress | None = None,
    ) -> None:
        """Merge segments into one, without deleted rows; its passages get new ids.

        `tuning`: for the manifest; None keeps that of the first segment that has one.
        """
        base, new = self._new()
        segments = sorted(segments, key=lambda row: row.base)
        live = [self._live(row) for row in segments]
        ids = [row.base + rows for row, rows in zip(segments, live, strict=True) if rows.size]
        self.changes.remove_segments(segments)
        if not ids:
            return
        self.changes.move_passages(np.concatenate(ids), base)
        parts = list[tuple[Segment, Allowed | None]]()
        for row, rows in zip(segments, live, strict=True):
            segment = self._open_segment(row)
            tuning = tuning or segment.manifest.tuning
            whole = rows.size == row.rows
            parts.append((segment, None if whole else Allowed.from_rows(rows, row.rows)))
        build = partial(Segment.merge, parts=parts, tuning=tuning, progress=progress, **new)
        self._add(base, build)

    def rebuild(
        self,
        measured: Measured,
        config: SegmentConfig,
        tuning: Mapping[str, Any] | None = None,
        building: Progress | None = None,
    ) -> None:
        """Build the segments again with another index config, also for later ones.

        `tuning`: the measurements behind the config; None: it was not tuned. `building`: progress
        callback: step, rows just done, rows in all segments. Raises CollectionError if segments or
        deleted rows have changed since they were measured.
        """
        total = sum(row.rows for row in measured)

        def progress(step: str, done: int, _: int) -> None:
            if building is not None:
                building(step, done, total)

        expected = [
            (row, row.rows if live is None else live.size) for row, (_, live) in measured.items()
        ]
        stored = [(row, row.rows - self.store.dead_count(row)) for row in self.store.segments()]
        if stored != expected:
            raise CollectionError(
                f"{self.path} was changed by another process while it was measured; "
                "nothing was changed here, tune it again"
            )
        tuned = None if tuning is None else {"tuning": dict(tuning)}
        self.changes.configure({"index": config.as_dict(), TUNED: tuned})
        for row, (segment, live) in measured.items():
            if live is not None:  # only the rows that were measured
                self.merge([row], tuning=tuning, progress=progress)
                continue
            self.changes.remove_segments([row], keep_tombstones=True)
            again = partial(Segment.rebuild, source=segment.path, config=config)
            self._add(row.base, partial(again, tuning=tuning, progress=progress))

    def restore(self, row: SegmentRow) -> None:
        """Write a segment again whose vectors are intact (folders.has_vectors); its rows stay."""
        self.changes.remove_segments([row], keep_tombstones=True)
        passages = self._passages(row.base)
        words = writer(self.store, lambda: passages(row.rows)[0])
        damaged = folder_of(self.path, row.id)
        build = partial(Segment.rebuild, source=damaged, words=words, passages=passages)
        self._add(row.base, build)

    def append_built(self, built: Path, base: int) -> None:
        """Add a segment of another folder, of passages from `base` on, whose file it lacks."""
        with folder_errors(self.path, changing=True):
            Segment.add_passages(built, self._passages(base))

        def build(target: Path) -> Segment:
            built.rename(target)
            sync_folder(target.parent)
            sync_folder(built.parent)
            return Segment.open(target, checksum=checksum)

        self._add(base, build)

    def _add(self, base: int, build: Callable[[Path], Segment]) -> None:
        """Build, sync, open and record a segment."""
        self._last = max(self._last + 1, self.changes.next_id("segments"))
        with folder_errors(self.path, changing=True):
            segment = build(folder_of(self.path, self._last))
        row = SegmentRow(self._last, base, segment.rows, segment.manifest_sha256)
        self.opened[row] = segment
        self.changes.add_segment(row)

    def _passages(self, base: int) -> Passages:
        """The passages from `base` on."""
        return lambda rows: self.store.columns(np.arange(base, base + rows))

    def _new(self) -> tuple[int, dict[str, Any]]:
        """The base of a new segment, and how it is built: the same for any way to build it."""
        base, settings = self.changes.next_id("passages"), self.store.settings()
        encoder = settings["encoder"]
        provenance = {"encoder": encoder["fingerprint"]}
        if encoder["source"] is not None:  # for a repair
            provenance["source"] = encoder["source"]
        sql = "SELECT document FROM passages WHERE id >= ? ORDER BY id"
        return base, {
            "config": SegmentConfig.from_dict(settings["index"]),
            "provenance": provenance,
            "words": writer(self.store, partial(self.store.numbers, sql, (base,))),
            "passages": self._passages(base),
        }

    def _live(self, row: SegmentRow) -> Ids:
        """The rows of a segment's passages, ascending. CollectionError if they do not match."""
        live = np.setdiff1d(np.arange(row.rows), self.store.dead(row), assume_unique=True)
        sql = "SELECT count(*) FROM passages WHERE id BETWEEN ? AND ?"
        ((passages,),) = self.store.read(sql, row.ends)
        if passages != live.size:
            raise self.store.damaged(
                f"segment {row.id} has {live.size} live rows and {passages} passages"
            )
        return live


@contextmanager
def writing(
    path: Path, store: Store, open_segment: OpenSegment, wait: float = 0
) -> Iterator[Writer]:
    """A transaction on a folder: committed at the end of the block, or rolled back.

    Raises:
        CollectionBusy: another process is still writing after `wait` seconds.
        BackendUnavailable: another folder has taken the place of this one.
    """
    with store.transaction(wait), segments_folder(path, store) as folder:
        with folder_errors(path, changing=True):
            before = segment_folders(folder)
        writer = Writer(path, store, open_segment, before)
        try:
            yield writer
            writer.changes.count_commit()
        except BaseException as error:
            if store.inherited:  # forked during the block, which belongs to the parent
                raise
            for segment in writer.opened.values():
                segment.close()
            with suppress(OSError):
                for name in segment_folders(folder) - before:
                    shutil.rmtree(name, dir_fd=folder)
            if isinstance(error, CollectionError) and not store.in_place:
                raise store.replaced() from error
            raise


FAN = 4
"""Number of segments of a tier that are merged into one."""
FLOOR = 256
"""Rows below which a segment is in the lowest tier: writing so few costs as much as writing one."""
FINAL_RATIO = 64
"""At the end of a long add all segments are merged unless the largest has this many times the rows
of the others: copying a row costs a thousandth of encoding it."""
LARGE = 1 << 20
"""Rows from which a segment is merged at the end of an add only with a FAN-th as many others: it
would be copied for minutes, and searching one more segment takes a tenth of a millisecond."""


# As in log-structured merge trees (O'Neil et al. 1996) and Lucene's LogMergePolicy: segments of
# about the same size form a tier, and FAN of them become one of the next. So at most FAN - 1 remain
# a tier, and a row is copied once a tier in its life.
def tier(live: int) -> int:
    """The tier of a segment by its live rows: 0 below FLOOR, then one more for each factor FAN."""
    number, limit = 0, FLOOR
    while live >= limit:
        number, limit = number + 1, limit * FAN
    return number


def to_merge(segments: Sequence[tuple[int, int]], finished: int = 0) -> list[int]:
    """Positions of the segments, given as (live, rows), that should be merged now; empty if none.

    The lowest full tier, and all smaller segments; else a segment with half or more of its rows
    deleted. `finished`: documents added by a long `add`, if searches come next; 0 during such an
    `add`, and for a short one.
    """
    sizes = [rows for _, rows in segments]
    largest = max(sizes, default=0)
    if len(sizes) > 1 and FINAL_RATIO * finished >= largest:
        if (FAN if largest >= LARGE else FINAL_RATIO) * (sum(sizes) - largest) >= largest:
            return [*range(len(sizes))]
        if largest >= LARGE and len(sizes) > 2:
            return [i for i in range(len(sizes)) if i != sizes.index(largest)]
    tiers = [tier(live) for live, _ in segments]
    for full in sorted({*tiers}):
        if tiers.count(full) >= FAN:
            return [i for i, number in enumerate(tiers) if number <= full]
    return [i for i, (live, rows) in enumerate(segments) if 2 * live <= rows][:1]
