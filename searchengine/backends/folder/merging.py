"""When segments are merged, and how, while others write.

When: size-tiered, as in log-structured merge trees (O'Neil et al. 1996) and Lucene's
LogMergePolicy, so the number of segments stays logarithmic in the number of rows. Segments of about
the same size form a tier, and FAN of them become one of the next. At most FAN - 1 segments a tier
remain, and a row is copied once a tier in its life. The call that fills a tier merges it: another
one, which adds a few rows meanwhile, would otherwise copy what the first has added.

How: a small merge is one transaction. A large one takes the write lock for moments only:

    claim    one transaction names the work in `pending` and reserves ids for the merged passages
    build    the segment, in the folder of the work, without the lock
    move     the passages to the reserved ids, where they are hidden, some thousand a transaction
    swap     one transaction names the new segment instead of the merged ones
    remove   the former passages, hidden now, some thousand a transaction

Documents deleted or changed meanwhile leave tombstones in the new segment. If one of the merged
segments was replaced meanwhile (by tune, repair or another merge), the new one is dropped. Whatever
happens, every state between two transactions is a whole collection. If the process is killed, the
next writer continues complete new segments and discards incomplete ones.
"""

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import numpy as np

from searchengine.backends.contract import Ids
from searchengine.backends.folder import pending
from searchengine.backends.folder.documents.changes import Changes
from searchengine.backends.folder.documents.database import FOLDED
from searchengine.backends.folder.documents.store import SegmentRow, Store
from searchengine.backends.folder.folders import beside, checksum, os_errors, segment_errors
from searchengine.backends.folder.pending import (
    Kind,
    Owner,
    Work,
    alive,
    here,
    remove_abandoned,
    who,
)
from searchengine.backends.folder.words import writer
from searchengine.backends.folder.writer import WritableView
from searchengine.errors import CollectionBusy, CollectionError
from searchengine.indexer.building.build import Progress
from searchengine.indexer.search.allowed import Allowed
from searchengine.indexer.segment import Segment, SegmentConfig
from searchengine.indexer.storage.durable import sync_file

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


def tier(live: int) -> int:
    """The tier of a segment by its live rows: 0 below FLOOR, then one more for each factor FAN."""
    number, limit = 0, FLOOR
    while live >= limit:
        number, limit = number + 1, limit * FAN
    return number


def to_merge(
    segments: Sequence[tuple[int, int]], *, written: Collection[int], finished: int = 0
) -> list[int]:
    """Positions of the segments, given as (live, rows), that a call should merge; empty if none.

    The lowest full tier with a segment of this call, and all smaller segments; else a segment with
    half or more of its rows deleted.

    Args:
        segments: the segments.
        written: the positions of those that this call has written.
        finished: documents added by a long `add`, if this is its last call and searches come next;
            0 during such an `add`, and for a short one.
    """
    sizes = [rows for _, rows in segments]
    largest = max(sizes, default=0)
    if len(sizes) > 1 and FINAL_RATIO * finished >= largest:
        if (FAN if largest >= LARGE else FINAL_RATIO) * (sum(sizes) - largest) >= largest:
            return [*range(len(sizes))]
        if largest >= LARGE and len(sizes) > 2:
            return [i for i in range(len(sizes)) if i != sizes.index(largest)]
    tiers = [tier(live) for live, _ in segments]
    for full in sorted({tiers[i] for i in written}):
        if tiers.count(full) >= FAN:
            return [i for i, number in enumerate(tiers) if number <= full]
    return [i for i, (live, rows) in enumerate(segments) if 2 * live <= rows][:1]


Part = tuple[Segment, Allowed | None]
"""A segment to merge, and which of its rows; None: all."""
Choose = Callable[[Sequence[SegmentRow]], Sequence[SegmentRow]]
"""The segments to merge, of those that no other process is merging."""

IN_ONE = 1 << 20
"""Numbers (rows × dimensions) that are merged in one transaction: it takes less than a second."""
SLICE = 10_000
"""Passages moved or removed in a transaction: some hundredths of a second."""
PATIENCE = 60.0
"""Seconds to wait for other writers at least, before a merge that is built is left to the next."""
_POLL = 0.05  # seconds between two looks whether another merge has ended
_PASSAGE = 64  # dimensions that cost as much time as moving a passage
_SEGMENT, _IDS = "segment", "ids.npy"
_log = logging.getLogger(__name__)


class Gone(Exception):
    """A segment that is being merged was replaced meanwhile."""


@dataclass(frozen=True, slots=True)
class Merging:
    """Merges segments of an open collection.

    Attributes:
        view: the collection.
        store: its connection for writing.
        progress: progress callback.
        written: the segments that the caller has written, and those merged here.
    """

    view: WritableView
    store: Store
    progress: Progress | None = None
    written: set[SegmentRow] = field(default_factory=set)

    def merge(self, choose: Choose) -> bool:
        """Merge the segments that `choose` picks; False if there was nothing to merge.

        Raises:
            CollectionBusy: another process is writing; then nothing has changed, or the next
                writer completes the merge.
            CollectionError: a segment is damaged, or the disk is full. Nothing has changed.
        """
        chosen = choose(free(self.view.path, self.store))
        if not chosen:
            return False
        if self._is_small(chosen):
            with self.view.writing(self.store) as writer:
                chosen = choose(free(self.view.path, self.store))
                if self._is_small(chosen):
                    writer.merge(chosen, progress=self.progress)
                    self.written.update(writer.opened)
                    return bool(chosen)
        claimed = self._claim(choose)
        if claimed is None:
            return False
        owner, work, ids = claimed
        return self._complete(owner, work, lambda: self._build(owner, work, ids))

    def merge_all(self) -> None:
        """Merge all segments into one.

        Waits until no other thread merges, and as long as `wait` says for other processes.
        """
        self.go_on()
        until = monotonic() + self.view.wait

        def everything(rows: Sequence[SegmentRow]) -> Sequence[SegmentRow]:
            return rows if len(rows) == len(self.store.segments()) else []

        while not self.merge(everything) and self.store.segments():
            merges = [w for w in pending.works(self.store) if w.kind is Kind.MERGE]
            if monotonic() > until and not all(here(work.folder) for work in merges):
                raise CollectionBusy(
                    f"the segments of {self.view.path} are being merged by another process; "
                    "try again when it has finished, or wait for it: --wait SECONDS, open(…, wait=)"
                )
            sleep(_POLL)

    def go_on(self) -> None:
        """Complete or discard the merges of processes that were killed."""
        for name in dict.fromkeys(work.folder for work in pending.works(self.store)):
            with self.store.transaction(self.view.wait):
                works = [work for work in pending.works(self.store) if work.folder == name]
                if not works or any(work.kind is Kind.REINDEX for work in works):
                    continue
                owner = Owner(self.view.path, name)
                if not owner.take():
                    continue
            try:
                merges = [work for work in works if work.kind is Kind.MERGE]
                if merges:
                    self._complete(owner, merges[0])
                else:
                    self.end(owner)
            finally:
                owner.release()
        if any(self.view.path.glob("pending/*")):
            with self.store.transaction(self.view.wait):
                remove_abandoned(self.view.path, self.store)

    def _is_small(self, rows: Sequence[SegmentRow]) -> bool:
        live = sum(row.rows - self.store.dead_count(row) for row in rows)
        dim = int(self.view.settings["encoder"]["dim"])
        return live * max(dim, _PASSAGE) <= IN_ONE

    def _claim(self, choose: Choose) -> tuple[Owner, Work, Ids] | None:
        """Name the work in a transaction; None if there is nothing to merge any more."""
        path, store, owner = self.view.path, self.store, None
        try:
            with store.transaction(self.view.wait), beside(path, store), os_errors(path):
                chosen = sorted(choose(free(path, store)), key=lambda row: row.base)
                if not chosen:
                    return None
                live = [_live_ids(store, row) for row in chosen]
                rows = sum(map(len, live))
                if not rows:
                    return None
                first = Changes(store).take("passages", rows)
                owner = Owner.new(path)
                inputs = [[row.id, row.base, row.rows, row.manifest_sha256] for row in chosen]
                details = {"inputs": inputs, "rows": rows, "moved": 0, **who()}
                ends = first, first + rows - 1
                work = pending.enter(store, Kind.MERGE, ends, owner.name, details)
        except BaseException:
            if owner is not None:
                owner.clear()
            raise
        return owner, work, np.concatenate(live)

    def _complete(self, owner: Owner, work: Work, build: Callable[[], None] | None = None) -> bool:
        """Build, unless another process did, move and swap; discard the work if that fails.

        False if a segment to merge was replaced meanwhile.
        """
        try:
            if build is not None:
                build()
            elif not all((owner.folder / name).exists() for name in (_SEGMENT, _IDS)):
                raise Gone  # its process was killed before it was complete
            work = self._move(owner, work)
            self._swap(owner, work)
        except CollectionBusy:  # the next writer completes it
            raise
        except BaseException as error:
            self._discard(owner, work)
            if not isinstance(error, Gone):
                raise
            return False
        else:
            self.end(owner)
            return True
        finally:
            owner.release()

    def _build(self, owner: Owner, work: Work, ids: Ids) -> None:
        """Write the passages to merge, `ids` ascending, and the new segment with their rows."""
        view = self.view
        with os_errors(view.path):
            np.save(owner.folder / _IDS, ids)
            sync_file(owner.folder / _IDS)
        settings = self.store.settings()
        try:
            parts, tuning = self._parts(work, ids)
            with os_errors(view.path), segment_errors(view.path):
                Segment.merge(
                    owner.folder / _SEGMENT,
                    parts,
                    SegmentConfig.from_dict(settings["index"]),
                    provenance={"encoder": settings["encoder"]["fingerprint"]},
                    tuning=tuning,
                    progress=self.progress,
                    words=writer(self.store, partial(self._documents, ids)),
                    passages=lambda _: self.store.columns(ids),
                ).close()
        except CollectionError:
            self._check_inputs(work)  # replaced and removed meanwhile: no fault
            raise
        # Its checksums are computed and remembered now, not while others wait.
        with segment_errors(view.path):
            Segment.open(owner.folder / _SEGMENT, checksum=checksum).close()

    def _parts(self, work: Work, ids: Ids) -> tuple[list[Part], Mapping[str, Any] | None]:
        """The segments to merge, each with its rows that `ids` names; the tuning of the first."""
        segments = self.view.opened(work.inputs)
        parts: list[Part] = []
        tuning: Mapping[str, Any] | None = None
        for row, (low, high) in zip(work.inputs, _cuts(ids, work.inputs), strict=True):
            segment = segments[row]
            tuning = tuning or segment.manifest.tuning
            live = ids[low:high] - row.base
            if len(live):
                whole = len(live) == row.rows
                parts.append((segment, None if whole else Allowed.from_rows(live, row.rows)))
        return parts, tuning

    def _documents(self, ids: Ids) -> Ids:
        """The documents of passages, ascending; −1 for those that were deleted meanwhile."""
        documents: Ids = self.store.columns(ids)[0]
        return documents

    def _move(self, owner: Owner, work: Work) -> Work:
        """Copy the passages to their new ids."""
        path = self.view.path
        with beside(path, self.store), os_errors(path):  # the folder may have been replaced
            ids = np.load(owner.folder / _IDS, mmap_mode="r")
        done = int(work.details["moved"])
        for low, high in _cuts(ids, work.inputs):
            for start in range(max(low, done), high, SLICE):
                part = np.asarray(ids[start : min(start + SLICE, high)])
                with self.slice():
                    self._check_inputs(work)
                    pending.move(self.store, part, work.first + start)
                    work = pending.note(self.store, work, moved=start + len(part))
        return work

    def _swap(self, owner: Owner, work: Work) -> None:
        with self.view.writing(self.store, max(self.view.wait, PATIENCE)) as writer:
            self._check_inputs(work)
            for row in work.inputs:
                pending.enter(self.store, Kind.REMOVE, row.ends, owner.name, {})
            writer.changes.remove_segments(work.inputs, keep_tombstones=True)
            pending.leave(self.store, work)
            writer.adopt(owner.folder / _SEGMENT, work.first)
            self.written.update(writer.opened)

    def _check_inputs(self, work: Work) -> None:
        """Raise Gone if another process has replaced a segment to merge, or dropped the work."""
        known = work.id in {other.id for other in pending.works(self.store)}
        if not known or not set(work.inputs) <= set(self.store.segments()):
            raise Gone

    def _discard(self, owner: Owner, work: Work) -> None:
        """Drop a merge; what cannot be done now, the next writer does."""
        try:
            with self.slice():
                pending.give_up(self.store, work)
        except (CollectionError, OSError) as error:
            _log.warning("the remains of a merge were not removed: %s", error)
        else:
            self.end(owner)

    @contextmanager
    def slice(self) -> Iterator[None]:
        """A short transaction, after which other writers have as much time as it took."""
        with self.store.transaction(max(self.view.wait, PATIENCE)):
            begun = monotonic()
            yield
        if self.store.log_bytes > FOLDED:
            self.store.fold_log()
        sleep(min(1.0, monotonic() - begun))

    def end(self, owner: Owner) -> None:
        """Remove the passages that are hidden, and the folder."""
        try:
            for work in pending.works(self.store):
                done = work.folder != owner.name
                while not done:
                    with self.slice():
                        done = pending.remove(self.store, work, SLICE)
            owner.clear()
        except (CollectionError, OSError) as error:
            _log.warning("replaced passages were not removed; the next change does it: %s", error)


def due(
    store: Store, committed: Sequence[SegmentRow], written: Collection[SegmentRow], finished: int
) -> list[SegmentRow]:
    """The segments of these to merge by `to_merge`, with `written` and `finished` as there."""
    sizes = [(row.rows - store.dead_count(row), row.rows) for row in committed]
    positions = [i for i, row in enumerate(committed) if row in written]
    return [committed[i] for i in to_merge(sizes, written=positions, finished=finished)]


def free(path: Path, store: Store) -> list[SegmentRow]:
    """The committed segments that no living process is merging."""
    merges = [work for work in pending.works(store) if work.kind is Kind.MERGE]
    living = alive(path, [work.folder for work in merges])
    merging = {row for work in merges if work.folder in living for row in work.inputs}
    return [row for row in store.segments() if row not in merging]


def _live_ids(store: Store, row: SegmentRow) -> Ids:
    """The ids of a segment's passages. Raises CollectionError if they do not match its rows."""
    live = np.ones(row.rows, bool)
    live[store.dead(row)] = False
    ids = np.flatnonzero(live).astype(np.int64) + row.base
    sql = "SELECT count(*) FROM passages WHERE id BETWEEN ? AND ?"
    passages = store.read(sql, row.ends)[0][0]
    if passages != len(ids):
        raise store.damaged(f"segment {row.id} has {len(ids)} live rows and {passages} passages")
    return ids


def _cuts(ids: Any, inputs: Sequence[SegmentRow]) -> list[tuple[int, int]]:
    """The positions among `ids`, ascending, where each segment's begin and end."""
    lows = np.searchsorted(ids, [row.base for row in inputs]).tolist()
    highs = np.searchsorted(ids, [row.base + row.rows for row in inputs]).tolist()
    return list(zip(lows, highs, strict=True))
