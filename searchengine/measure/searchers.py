"""The searchers that a bench measures: exact search, the collection's, and those of the grid."""

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import count as counted
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from searchengine.indexer.arrays import Doubles, Floats, RowNumbers
from searchengine.indexer.building.build import Progress
from searchengine.indexer.config import FLAT_BELOW, Code, RotationKind, SegmentConfig, Structure
from searchengine.indexer.segment import Segment
from searchengine.indexer.tuning.cost import cost, exhaustive, footprint
from searchengine.indexer.tuning.points import OperatingPoint
from searchengine.measure.dataset import Dataset
from searchengine.measure.grid import Grid, PlannedPoint, kind_of
from searchengine.measure.results import CONFIGURED, Kind
from searchengine.query.paging import part_size

_COUNTED = 100  # queries whose multiply-adds are counted
_BLOCK = 1 << 14  # rows rotated back at a time
_MEMORY_SHARE = 0.5  # share of the available memory for all coarse stages together

Views = tuple[Segment, ...]


class Searcher(Protocol):
    """A way to search that can be measured."""

    @property
    def fields(self) -> dict[str, Any]:
        """The fields of its results.Row that are known before the measurement."""

    def one_by_one(self, count: int) -> tuple[RowNumbers, Doubles]:
        """Rows (count, k) and seconds (count,) of the first queries, one at a time."""

    def at_once(self, count: int) -> tuple[RowNumbers, float]:
        """Rows (count, k) and seconds of the first queries in one call."""

    def deeper(self, count: int) -> Iterator[RowNumbers]:
        """Rows (count, n > k) of the first queries, for growing n up to all rows.

        Not those of a peer, whose searches are for k rows.
        """


@dataclass(frozen=True, slots=True)
class PointSearcher:
    """A searcher over segments, at an operating point.

    Attributes:
        point: the operating point.
        queries: float32 (q, D).
        fields: as Searcher.
        numbers: the data set's row numbers by the point's; None if they are the same.
    """

    point: OperatingPoint
    queries: Floats
    fields: dict[str, Any]
    numbers: RowNumbers | None = None

    def one_by_one(self, count: int) -> tuple[RowNumbers, Doubles]:
        """See Searcher."""
        rows, seconds = self.point.one_by_one(self.queries[:count])
        return self._numbered(rows), seconds

    def at_once(self, count: int) -> tuple[RowNumbers, float]:
        """See Searcher."""
        rows, seconds = self.point.at_once(self.queries[:count])
        return self._numbered(rows), seconds

    def deeper(self, count: int) -> Iterator[RowNumbers]:
        """See Searcher. The depths are those of the parts of a search."""
        total = sum(segment.rows for segment in self.point.segments)
        first = self.point.k
        if self.point.shortlist is not None:
            first = max(first, self.fields["shortlist"])
        for number in counted():
            depth = min(part_size(first, number), total)
            if depth > self.point.k:
                point = replace(self.point, k=depth)
                yield self._numbered(point.search(self.queries[:count]).rows)
            if depth == total:
                return

    def _numbered(self, rows: RowNumbers) -> RowNumbers:
        if self.numbers is None:
            return rows
        return np.where(rows < 0, -1, self.numbers[rows])


class Searchers:
    """Builder of the searchers over the data set's segments.

    Attributes:
        searchers: the searchers; exact search is the first.
        missing: names of searchers that could not be built, and why.
    """

    def __init__(self, dataset: Dataset, grid: Grid, scratch: Path, progress: Progress) -> None:
        self.searchers: list[Searcher] = []
        self.missing: dict[str, str] = {}
        self._dataset, self._grid, self._progress = dataset, grid, progress
        self._scratch = scratch
        self._config = max(dataset.segments, key=lambda segment: segment.rows).config
        self._room = _MEMORY_SHARE * _memory()
        self._built: dict[tuple[Any, ...], tuple[Views, float]] = {}

    def build(self) -> None:
        """Build the searchers of the grid."""
        dataset, grid = self._dataset, self._grid
        dim = dataset.segments[0].dim
        self._add_exact()
        self._add_configured()
        if dataset.rows < FLAT_BELOW:
            self.missing["graphs, lists and baselines"] = (
                f"fewer than {FLAT_BELOW:,} rows are searched exactly"
            )
        for planned in grid.cascades(self._config, dataset.rows):
            self._add(planned, dataset.segments, None)
        if not grid.baselines:
            return
        if self._config.rotation is RotationKind.IDENTITY:
            for planned in grid.full(self._config, dim):
                self._add(planned, dataset.segments, None)
            return
        try:
            bare, numbers = self._unrotated()
        except OSError as error:
            self.missing["baselines"] = f"the rows cannot be copied: {error.strerror}"
            return
        # A rotation changes nothing at full width, so those searchers do without it.
        for planned in (*grid.full(bare.config, dim), *grid.truncated(self._config, dataset.rows)):
            self._add(planned, (bare,), numbers)

    def _add_exact(self) -> None:
        views = tuple(segment.unbounded() for segment in self._dataset.segments)
        point = OperatingPoint(views, self._dataset.live, self._grid.k, None)
        fields = self._fields("exact", Kind.EXACT, point, None)
        named = {"structure": "exact", "code": str(self._config.storage), "effort": 0}
        width = {"prefix": views[0].dim, "shortlist": self._dataset.rows, "stages": ()}
        size = fields["cold_bytes"]  # every query reads all rows
        fields |= named | width | {"hot_bytes": size, "cold_bytes": 0}
        self.searchers.append(PointSearcher(point, self._dataset.queries, fields))

    def _add_configured(self) -> None:
        """Add the operating point of the collection itself."""
        config = self._config
        size = max(config.shortlist, self._grid.k)
        if size >= self._dataset.rows:
            return  # the same as exact search
        point = OperatingPoint(self._dataset.segments, self._dataset.live, self._grid.k, 0)
        name = f"{CONFIGURED}: {config.structure} {config.code} {config.prefix} → {size}"
        fields = self._fields(name, kind_of(config), point, None)
        self.searchers.append(PointSearcher(point, self._dataset.queries, fields))

    def _add(
        self,
        planned: PlannedPoint | tuple[str, str],
        segments: Views,
        numbers: RowNumbers | None,
    ) -> None:
        """Add a searcher over segments; build its coarse stage unless it is built already."""
        if isinstance(planned, tuple):
            self.missing[planned[0]] = planned[1]
            return
        config, dataset = planned.config, self._dataset
        key = (*config.coarse_stage(), config.rotation)
        if key not in self._built:
            reason = self._no_room(config)
            if reason is not None:
                self.missing[planned.name] = reason
                return
            self._progress(f"building {config.structure} {config.code} over {config.prefix}", 0, 1)
            begin = time.perf_counter()
            views = tuple(segment.over(config) for segment in segments)
            self._built[key] = views, time.perf_counter() - begin
            self._progress(f"building {config.structure} {config.code} over {config.prefix}", 1, 1)
        stages, seconds = self._built[key]
        views = tuple(segment.over(config) for segment in stages)  # they share the coarse stage
        live = dataset.live if numbers is None else (None,)
        point = OperatingPoint(views, live, self._grid.k, config.shortlist)
        fields = self._fields(planned.name, planned.kind, point, seconds)
        self.searchers.append(PointSearcher(point, dataset.queries, fields, numbers))

    def _no_room(self, config: SegmentConfig) -> str | None:
        """Reserve memory for a coarse stage; if too little is left, return why it is not built."""
        hot = sum(
            footprint(config, segment.rows, segment.dim).hot for segment in self._dataset.segments
        )
        if hot > self._room:
            return (
                f"it needs {hot >> 20:,} MiB, and {max(0, round(self._room)) >> 20:,} MiB are left "
                "of half the available memory"
            )
        self._room -= hot
        return None

    def _unrotated(self) -> tuple[Segment, RowNumbers]:
        """Build a segment of the rows without rotation; return it and the rows' numbers."""
        numbers = live_numbers(self._dataset)
        config = SegmentConfig(
            prefix=1,
            rotation=RotationKind.IDENTITY,
            storage=self._config.storage,
            structure=Structure.FLAT,
            code=Code.FP16,
        )
        self._progress("undoing the rotation", 0, 1)
        bare = Segment.build(self._scratch / "unrotated", unrotated(self._dataset), config)
        self._progress("undoing the rotation", 1, 1)
        return bare, numbers

    def _fields(
        self, name: str, kind: Kind, point: OperatingPoint, build_s: float | None
    ) -> dict[str, Any]:
        """Return the fields of a row that are known before it is measured."""
        dataset = self._dataset
        config = max(point.segments, key=lambda segment: segment.rows).config
        work = cost(point, dataset.queries[:_COUNTED])
        sizes = [footprint(view.config, view.rows, view.dim) for view in point.segments]
        rows, dim = dataset.rows, dataset.segments[0].dim
        return {
            "name": name,
            "kind": kind,
            "structure": str(config.structure),
            "code": str(config.code),
            "prefix": config.prefix,
            "shortlist": rows if point.shortlist is None else point.shortlist or config.shortlist,
            "effort": config.effort,
            "stages": config.stages,
            "settings": {},
            "multiply_adds": None if work is None else work.multiply_adds,
            "bytes_read": None if work is None else work.bytes_read,
            "theoretical": None if work is None else exhaustive(rows, dim) / work.multiply_adds,
            "hot_bytes": sum(size.hot for size in sizes),
            "cold_bytes": sum(size.cold for size in sizes),
            "build_s": build_s,
        }


def live_numbers(dataset: Dataset) -> RowNumbers:
    """The rows that may be returned, numbered through the segments, ascending."""
    parts, start = [], 0
    for segment, live in zip(dataset.segments, dataset.live, strict=True):
        parts.append(start + (np.arange(segment.rows) if live is None else live.rows))
        start += segment.rows
    return np.concatenate(parts)


def unrotated(dataset: Dataset) -> Iterator[Floats]:
    """The same rows without rotation, as the encoder gave them, in blocks (n, D) float32."""
    for segment, live in zip(dataset.segments, dataset.live, strict=True):
        rows = np.arange(segment.rows) if live is None else live.rows
        for start in range(0, len(rows), _BLOCK):
            yield segment.vectors(rows[start : start + _BLOCK])


def _memory() -> int:
    """Bytes of available memory."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return 1024 * int(next(line for line in lines if "MemAvailable" in line).split()[1])
    except (OSError, StopIteration, ValueError):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
