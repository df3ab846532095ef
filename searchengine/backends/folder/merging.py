"""When segments are merged, and how, while others write.

When: size-tiered, as in log-structured merge trees (O'Neil et al. 1996) and Lucene's
LogMergePolicy, so the number of segments stays logarithmic in the number of rows. Segments of about
the same size form a tier, and FAN of them become one of the next. At most FAN - 1 segments a tier
remain, and a row is copied once a tier in its life. The call that fills a tier merges it: another
one, which adds a few rows meanwhile, would otherwise copy what the first has added.

What takes long is done in the folder `pending/NAME`, without the write lock, and its process holds
the lock of that folder (folders.Scratch). A merge or a reindex is named in the table `pending`
first: so no other process merges the same segments, and a reindex that was killed goes on. A row
whose lock is free belongs to nobody. The next writer drops it, unless it is a reindex, and removes
the folder.

How: a small merge is one transaction. The segment of a large one is built before, without the write
lock (writer.py). One transaction names its work in `pending` first, so that nobody else merges the
same segments; that of the merge gives the passages their new ids, a million in some
seconds. Documents deleted or changed meanwhile leave tombstones in the new segment. If one of the
merged segments was replaced meanwhile (by tune, repair or another merge), the new one is dropped.
"""

import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep

from searchengine.backends.contract import Ids
from searchengine.backends.folder.folders import (
    Owner,
    os_errors,
    remove_dead_scratch,
    segments_folder,
)
from searchengine.backends.folder.store import (
    Changes,
    Kind,
    SegmentRow,
    Store,
    Work,
    this_process,
)
from searchengine.backends.folder.view import View
from searchengine.backends.folder.words import writer
from searchengine.backends.folder.writer import (
    BuiltSegment,
    build_merged,
    build_plan,
    live_passages,
)
from searchengine.errors import CollectionBusy, CollectionError
from searchengine.indexer.building.build import Progress

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


Choose = Callable[[Sequence[SegmentRow]], Sequence[SegmentRow]]
"""The segments to merge, of those that no other process is merging."""

IN_ONE = 1 << 20
"""Numbers (rows × dimensions) that are merged in one transaction: it takes less than a second."""
PATIENCE = 60.0
"""Seconds to wait for other writers at least, before a merge that is built is left to the next."""
_POLL = 0.05  # seconds between two looks whether another merge has ended
_PASSAGE = 64  # dimensions that cost as much time as moving a passage
_log = logging.getLogger(__name__)


@contextmanager
def scratch(path: Path, store: Store) -> Iterator[Owner]:
    """A new folder to build a segment in, before the transaction that adopts it."""
    with os_errors(path):
        owner = Owner.new(path)
    try:
        if not store.in_place:
            raise store.replaced()
        yield owner
    finally:
        owner.clear()


@dataclass(frozen=True, slots=True)
class Merging:
    """Merges segments of an open collection.

    Attributes:
        view: the collection.
        store: its connection for writing.
        progress: progress callback.
    """

    view: View
    store: Store
    progress: Progress | None = None

    def merge_due(self, finished: int = 0) -> None:
        """Merge segments while there are too many of those written; each merge is a commit.

        `finished`: as for to_merge.
        """
        try:
            self.drop_abandoned()
            while self.merge(lambda rows: self._due(rows, finished)):
                pass
        except CollectionBusy:
            pass  # the last process to write merges
        except CollectionError as error:  # the change before is committed
            _log.warning(
                "segments were not merged, which the next change will try again: %s", error
            )

    def merge_all(self) -> None:
        """Merge all segments into one.

        Waits until no other thread merges, and as long as the view does for other processes.
        """
        self.drop_abandoned()
        until = monotonic() + self.view.wait

        def everything(rows: Sequence[SegmentRow]) -> Sequence[SegmentRow]:
            return rows if len(rows) == len(self.store.segments()) else []

        while not self.merge(everything) and self.store.segments():
            works = [work for work in self.store.works() if work.kind is Kind.MERGE]
            others = {work.details["by"] for work in works} - {this_process()["by"]}
            if others and monotonic() > until:
                raise CollectionBusy(
                    f"the segments of {self.view.path} are being merged by another process; "
                    "try again when it has finished, or wait longer: SearchEngine.open(…, wait=)"
                )
            sleep(_POLL)

    def drop_abandoned(self) -> None:
        """Drop what processes that were killed have left."""
        path = self.view.path
        with os_errors(path):
            if self.store.works() or any(path.glob("pending/*")):
                with self.store.transaction(self.view.wait):
                    kept = {work.folder for work in self.store.works() if self._is_kept(work)}
                    for work in self.store.works():
                        if work.folder not in kept:
                            Changes(self.store).end_work(work)
                    remove_dead_scratch(path / "pending", kept, own=True)

    def _is_kept(self, work: Work) -> bool:
        """Whether a process does a work now, or the next reindex continues it."""
        owner = Owner(self.view.path, work.folder)
        if work.kind is Kind.MERGE and owner.take():
            owner.release()
            return False
        return True

    def merge(self, choose: Choose) -> bool:
        """Merge the segments that `choose` picks; False if there was nothing to merge.

        Raises:
            CollectionBusy: another process is writing; nothing has changed.
            CollectionError: a segment is damaged, or the disk is full. Nothing has changed.
        """
        chosen = choose(self._free())
        if not chosen:
            return False
        if self._is_small(chosen):
            with self.view.writing(self.store) as writer:
                chosen = choose(self._free())
                if self._is_small(chosen):
                    writer.merge(chosen, progress=self.progress)
                    self.view.written.update(writer.opened)
                    return bool(chosen)
        with scratch(self.view.path, self.store) as owner:
            claimed = self._claim(choose, owner)
            return claimed is not None and self._merge(owner, *claimed)

    def _is_small(self, rows: Sequence[SegmentRow]) -> bool:
        live = sum(row.rows - self.store.dead_count(row) for row in rows)
        dim = int(self.view.settings["encoder"]["dim"])
        return live * max(dim, _PASSAGE) <= IN_ONE

    def _free(self) -> list[SegmentRow]:
        """The committed segments that no living process is merging."""
        works = [work for work in self.store.works() if work.kind is Kind.MERGE]
        merging = {row for work in works if self._is_kept(work) for row in work.inputs}
        return [row for row in self.store.segments() if row not in merging]

    def _due(self, rows: Sequence[SegmentRow], finished: int) -> list[SegmentRow]:
        sizes = [(row.rows - self.store.dead_count(row), row.rows) for row in rows]
        positions = [i for i, row in enumerate(rows) if row in self.view.written]
        return [rows[i] for i in to_merge(sizes, written=positions, finished=finished)]

    def _claim(self, choose: Choose, owner: Owner) -> tuple[Work, Ids] | None:
        """Name the work in a transaction; None if there is nothing to merge any more."""
        with (
            self.store.transaction(self.view.wait),
            segments_folder(self.view.path, self.store),
        ):
            chosen = choose(self._free())
            ids = live_passages(self.store, chosen)
            if not ids.size:
                return None
            inputs = [[row.id, row.base, row.rows, row.manifest_sha256] for row in chosen]
            work = Changes(self.store).start_work(Kind.MERGE, owner.name, {"inputs": inputs})
        return work, ids

    def _merge(self, owner: Owner, work: Work, ids: Ids) -> bool:
        """Build without the lock, then merge; False if something else was changed meanwhile."""
        ahead = None
        try:
            ahead = self._built(owner.folder / "segment", work, ids)
            with self.view.writing(self.store, max(self.view.wait, PATIENCE)) as writer:
                is_current = self._is_current(work) and ahead.plan == build_plan(self.store, None)
                writer.changes.end_work(work)
                if is_current:
                    writer.merge(work.inputs, ahead=ahead)
                    self.view.written.update(writer.opened)
            return is_current
        except BaseException as error:
            is_current = True
            try:
                with self.store.transaction(self.view.wait):
                    is_current = self._is_current(work)
                    Changes(self.store).end_work(work)
            except (CollectionError, OSError) as failure:
                _log.warning("the next change drops a merge that failed: %s", failure)
            if is_current or ahead is not None or not isinstance(error, CollectionError):
                raise
            return False  # segments were replaced and removed before they were read: no fault

    def _built(self, path: Path, work: Work, ids: Ids) -> BuiltSegment:
        """The merged segment of the passages `ids`."""
        plan = build_plan(self.store, None)

        def columns(_: int = 0) -> Ids:  # −1 for passages that were deleted meanwhile
            return self.store.columns(ids)

        with os_errors(self.view.path):
            parts = self.view.open_segments(work.inputs)
            words = writer(self.store, lambda: columns()[0])
            build_merged(parts, ids, plan, words, columns, None, self.progress, path).close()
        return BuiltSegment.checked(self.view.path, path, plan, ids)

    def _is_current(self, work: Work) -> bool:
        """Whether no other process has replaced a segment to merge, or dropped the work."""
        is_named = work in self.store.works()
        return is_named and set(work.inputs) <= set(self.store.segments())
