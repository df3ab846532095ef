"""The operating points that a bench measures, and the searchers over them."""

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count as counted
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from searchengine.errors import QueryError
from searchengine.indexer.arrays import Doubles, Floats, RowNumbers
from searchengine.indexer.building.build import Progress
from searchengine.indexer.config import FLAT_BELOW, Code, RotationKind, SegmentConfig, Structure
from searchengine.indexer.errors import SegmentConfigError
from searchengine.indexer.search.depths import part_size
from searchengine.indexer.segment import Segment
from searchengine.indexer.tuning.cost import cost, exhaustive, footprint
from searchengine.indexer.tuning.points import OperatingPoint
from searchengine.measure.bench_data import Dataset
from searchengine.measure.results import CONFIGURED, Kind

PREFIXES = (64, 128, 256)
SHORTLISTS = (2, 5, 10, 20, 50)
"""Multiples of k."""
STRUCTURES = (Structure.FLAT, Structure.HNSW, Structure.IVF)
CODES = (Code.INT8,)
FULL_EFFORTS = {Structure.HNSW: (32, 64, 128, 256), Structure.IVF: (4, 16, 64)}
"""ef_search and nprobe of the structures over the full width."""
_COUNTED = 100  # queries whose multiply-adds are counted
_MEMORY_SHARE = 0.5  # share of the available memory for all coarse stages together

Stages = tuple[tuple[int, int], ...]
Views = tuple[Segment, ...]


@dataclass(frozen=True, slots=True)
class PlannedPoint:
    """An operating point to build: its index config, shortlist, effort and stages."""

    name: str
    kind: Kind
    config: SegmentConfig


@dataclass(frozen=True, slots=True)
class Grid:
    """The combinations of prefix, shortlist, structure and code to measure, and baselines.

    Attributes:
        k: number of nearest neighbours.
        prefixes, shortlists, structures, codes: every combination is measured.
        efforts: ef_search of graphs, nprobe of IVF, each combined with all of those; 0 sets
            ef_search by the shortlist, and nprobe to a sixteenth of the lists. None: 0, and for IVF
            a quarter of the lists as well.
        funnels: reranking stages between prefix and full width, each with every structure.
        baselines: measure structures over the full width, and prefixes without rotation, as well.
    """

    k: int
    prefixes: tuple[int, ...]
    shortlists: tuple[int, ...]
    structures: tuple[Structure, ...]
    codes: tuple[Code, ...]
    efforts: tuple[int, ...] | None = None
    funnels: tuple[Stages, ...] = ()
    baselines: bool = True

    @classmethod
    def fitting(
        cls,
        rows: int,
        dim: int,
        k: int = 10,
        *,
        prefixes: Sequence[int] = (),
        shortlists: Sequence[int] = (),
        structures: Sequence[Structure] = (),
        codes: Sequence[Code] = (),
        efforts: Sequence[int] = (),
        funnels: Sequence[Stages] | None = None,
        baselines: bool = True,
    ) -> "Grid":
        """A grid that fits the number of rows; defaults fill the empty fields, as far as they fit.

        k is limited to the number of rows. Raises QueryError if a prefix is wider than the vectors,
        or a shortlist is below k or above the number of rows.
        """
        k = min(k, rows)
        widths = tuple(prefixes) or tuple(p for p in PREFIXES if p < dim) or (dim,)
        sizes = tuple(shortlists) or tuple(k * times for times in SHORTLISTS if k * times <= rows)
        sizes = sizes or (rows,)
        for name, values, low, high in (
            ("k", [k], 1, rows),
            ("a prefix", widths, 1, dim),
            ("a shortlist", sizes, k, rows),
        ):
            for value in values:
                if not low <= value <= high:
                    raise QueryError(f"{name} must be between {low} and {high} here, got {value}")
        if rows < FLAT_BELOW:  # so few rows are searched exactly
            structures, codes, baselines = (Structure.FLAT,), (Code.FP16,), False
        for width, _ in (stage for stages in funnels or () for stage in stages):
            if not 1 <= width <= dim:
                raise QueryError(f"a funnel's width must be between 1 and {dim} here, got {width}")
        if funnels is None:
            funnels = _default_funnel(widths, sizes, dim, k)
        return cls(
            k,
            widths,
            sizes,
            tuple(structures) or STRUCTURES,
            tuple(codes) or CODES,
            tuple(efforts) or None,
            tuple(funnels),
            baselines,
        )

    def cascades(self, base: SegmentConfig, rows: int) -> Iterator[PlannedPoint | tuple[str, str]]:
        """Plan operating points over the prefix; of an impossible one, yield its name and why."""
        plain = replace(base, stages=(), effort=0, bounds=0, shortlist=max(self.shortlists))
        for stages in self.funnels:
            if all(stages[0][0] <= prefix for prefix in self.prefixes):
                text = ", ".join(f"{width}:{keep}" for width, keep in stages)
                yield f"funnel {text}", "its first stage is no wider than any prefix"
        for structure, code, prefix in product(self.structures, self.codes, self.prefixes):
            shapes = [*product(self.shortlists, [()]), *self._funnels(prefix)]
            for (size, stages), effort in product(shapes, self._efforts(structure, rows)):
                name = _point_name(structure, code, prefix, size, stages) + _effort_name(
                    structure, effort
                )
                try:
                    config = replace(
                        plain,
                        structure=structure,
                        code=code,
                        prefix=prefix,
                        shortlist=size,
                        stages=stages,
                        effort=effort,
                    )
                except SegmentConfigError as error:
                    yield name, str(error)
                    continue
                yield PlannedPoint(name, kind_of(config), config)

    def truncated(self, base: SegmentConfig, rows: int) -> Iterator[PlannedPoint]:
        """Plan the cascades of one structure without rotation; of HNSW if it is in the grid."""
        structure = Structure.HNSW if Structure.HNSW in self.structures else self.structures[0]
        bare = replace(base, rotation=RotationKind.IDENTITY, blocks=())
        only = replace(self, structures=(structure,), codes=self.codes[:1], funnels=())
        for planned in only.cascades(bare, rows):
            if isinstance(planned, PlannedPoint):
                yield replace(planned, name=f"{planned.name}, not rotated")

    def full(self, base: SegmentConfig, dim: int) -> Iterator[PlannedPoint]:
        """Plan HNSW and IVF over the full width in float32, with several efforts."""
        for structure, efforts in FULL_EFFORTS.items():
            for effort in efforts:
                config = replace(
                    base,
                    structure=structure,
                    code=Code.FP32,
                    prefix=dim,
                    shortlist=self.k,
                    effort=effort,
                    stages=(),
                    bounds=0,
                )
                name = f"{structure} fp32 {dim}{_effort_name(structure, effort)}"
                yield PlannedPoint(name, Kind.FULL, config)

    def _efforts(self, structure: Structure, rows: int) -> tuple[int, ...]:
        """The efforts to measure with a structure; only 0 for one without effort."""
        if structure not in FULL_EFFORTS:
            return (0,)
        if self.efforts is not None:
            return self.efforts
        return (0, round(rows**0.5)) if structure is Structure.IVF else (0,)

    def _funnels(self, prefix: int) -> Iterator[tuple[int, Stages]]:
        """The funnels wider than this prefix, with the longest shortlist."""
        return ((max(self.shortlists), f) for f in self.funnels if f and f[0][0] > prefix)


def kind_of(config: SegmentConfig) -> Kind:
    """The kind of search over a prefix."""
    if config.stages:
        return Kind.FUNNEL
    return Kind.TRUNCATED if config.rotation is RotationKind.IDENTITY else Kind.CASCADE


def _default_funnel(
    prefixes: Sequence[int], sizes: Sequence[int], dim: int, k: int
) -> list[Stages]:
    """A funnel stage: four times the shortest prefix, keeping a fifth of the longest shortlist."""
    width, keep = 4 * min(prefixes), max(sizes) // 5
    return [((width, keep),)] if width < dim and k <= keep < max(sizes) else []


def _effort_name(structure: Structure, effort: int) -> str:
    """The part of a name that an effort adds."""
    if not effort:
        return ""
    return f", ef {effort}" if structure is Structure.HNSW else f", lists {effort}"


def _point_name(structure: Structure, code: Code, prefix: int, size: int, stages: Stages) -> str:
    between = "".join(f" → {width}: {keep}" for width, keep in stages)
    return f"{structure} {code} {prefix} → {size}{between}"


@dataclass(frozen=True, slots=True)
class Searcher:
    """A way to search that is measured: segments at an operating point.

    Attributes:
        point: the operating point.
        queries: float32 (q, D).
        fields: the fields of its results.Row that are known before the measurement.
        numbers: the data set's row numbers by the point's; None if they are the same.
    """

    point: OperatingPoint
    queries: Floats
    fields: dict[str, Any]
    numbers: RowNumbers | None = None

    def one_by_one(self, count: int) -> tuple[RowNumbers, Doubles]:
        """Rows (count, k) and seconds (count,) of the first queries, one at a time."""
        rows, seconds = self.point.one_by_one(self.queries[:count])
        return self._numbered(rows), seconds

    def at_once(self, count: int) -> tuple[RowNumbers, float]:
        """Rows (count, k) and seconds of the first queries in one call."""
        rows, seconds = self.point.at_once(self.queries[:count])
        return self._numbered(rows), seconds

    def deeper(self, count: int) -> Iterator[RowNumbers]:
        """Rows (count, n > k) of the first queries, for growing n up to all rows.

        The depths are those of the parts of a search.
        """
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
        self.searchers.append(Searcher(point, self._dataset.queries, fields))

    def _add_configured(self) -> None:
        """Add the operating point of the collection itself."""
        config = self._config
        size = max(config.shortlist, self._grid.k)
        if size >= self._dataset.rows:
            return  # the same as exact search
        point = OperatingPoint(self._dataset.segments, self._dataset.live, self._grid.k, 0)
        name = f"{CONFIGURED}: {config.structure} {config.code} {config.prefix} → {size}"
        fields = self._fields(name, kind_of(config), point, None)
        self.searchers.append(Searcher(point, self._dataset.queries, fields))

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
        self.searchers.append(Searcher(point, dataset.queries, fields, numbers))

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
        numbers = self._dataset.live_numbers()
        config = SegmentConfig(
            prefix=1,
            rotation=RotationKind.IDENTITY,
            storage=self._config.storage,
            structure=Structure.FLAT,
            code=Code.FP16,
        )
        self._progress("undoing the rotation", 0, 1)
        bare = Segment.build(self._scratch / "unrotated", self._dataset.unrotated(), config)
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
            "multiply_adds": None if work is None else work.multiply_adds,
            "bytes_read": None if work is None else work.bytes_read,
            "theoretical": None if work is None else exhaustive(rows, dim) / work.multiply_adds,
            "hot_bytes": sum(size.hot for size in sizes),
            "cold_bytes": sum(size.cold for size in sizes),
            "build_s": build_s,
        }


def _memory() -> int:
    """Bytes of available memory."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return 1024 * int(next(line for line in lines if "MemAvailable" in line).split()[1])
    except (OSError, StopIteration, ValueError):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
