"""The operating points that a bench measures, and the searchers over them."""

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from searchengine.errors import QueryError
from searchengine.indexer.building.build import Progress
from searchengine.indexer.config import (
    ALL_ROWS,
    FLAT_BELOW,
    Code,
    RotationKind,
    SegmentConfig,
    Structure,
)
from searchengine.indexer.errors import SegmentConfigError
from searchengine.indexer.segment import Segment
from searchengine.indexer.tuning.points import OperatingPoint, cold_row, hot_bytes
from searchengine.measure.bench_data import Dataset
from searchengine.measure.results import EXACT, Kind

PREFIXES = (64, 128, 256)
SHORTLISTS = (2, 5, 10, 20, 50)
"""Multiples of k."""
STRUCTURES = (Structure.FLAT, Structure.HNSW, Structure.IVF)
CODES = (Code.INT8,)
FULL_EFFORTS = {Structure.HNSW: (32, 64, 128, 256), Structure.IVF: (4, 16, 64)}
"""ef_search and nprobe of the structures over the full width."""
_MEMORY_SHARE = 0.5  # share of the available memory for all coarse stages together

Stages = tuple[tuple[int, int], ...]
Views = tuple[Segment, ...]
Planned = tuple[str, Kind, SegmentConfig | str]
"""Name and kind of an operating point, and its config, or why there is none."""


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

    def cascades(self, base: SegmentConfig, rows: int) -> Iterator[Planned]:
        """Plan operating points over the prefix; in place of an impossible config, the reason."""
        for stages in self.funnels:
            if all(stages[0][0] <= prefix for prefix in self.prefixes):
                name = f"funnel {_stages(stages).removeprefix(' → ')}"
                yield name, Kind.FUNNEL, "its first stage is no wider than any prefix"
        for structure, code, prefix in product(self.structures, self.codes, self.prefixes):
            shapes = [*product(self.shortlists, [()]), *self._funnels(prefix)]
            for (size, stages), effort in product(shapes, self._efforts(structure, rows)):
                kind = Kind.FUNNEL if stages else Kind.CASCADE
                name = f"{structure} {code} {prefix} → {size}" + _stages(stages)
                try:
                    config = replace(
                        base,
                        structure=structure,
                        code=code,
                        prefix=prefix,
                        shortlist=size,
                        stages=stages,
                        effort=effort,
                    )
                except SegmentConfigError as error:
                    yield name + _effort(structure, effort), kind, str(error)
                    continue
                yield point_name(config), kind, config

    def truncated(self, base: SegmentConfig, rows: int) -> Iterator[Planned]:
        """Plan the cascades of one structure without rotation; of HNSW if it is in the grid."""
        structure = Structure.HNSW if Structure.HNSW in self.structures else self.structures[0]
        bare = replace(base, rotation=RotationKind.IDENTITY)
        only = replace(self, structures=(structure,), codes=self.codes[:1], funnels=())
        for name, _, config in only.cascades(bare, rows):
            yield name, Kind.TRUNCATED, config

    def full(self, base: SegmentConfig, dim: int) -> Iterator[Planned]:
        """Plan HNSW and IVF over the full width in float16, with several efforts."""
        for structure, efforts in FULL_EFFORTS.items():
            for effort in efforts:
                config = replace(
                    base,
                    structure=structure,
                    code=Code.FP16,
                    prefix=dim,
                    rotation=RotationKind.IDENTITY,
                    shortlist=self.k,
                    effort=effort,
                    stages=(),
                )
                yield point_name(config, dim), Kind.FULL, config

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


def _default_funnel(
    prefixes: Sequence[int], sizes: Sequence[int], dim: int, k: int
) -> list[Stages]:
    """A funnel stage: four times the shortest prefix, keeping a fifth of the longest shortlist."""
    width, keep = 4 * min(prefixes), max(sizes) // 5
    return [((width, keep),)] if width < dim and k <= keep < max(sizes) else []


def point_name(config: SegmentConfig, dim: int | None = None, shortlist: str = "") -> str:
    """The name of an operating point.

    `dim`: for a structure over the full width. `shortlist`: text in place of the number.
    """
    name = f"{config.structure} {config.code} {config.prefix}"
    if config.prefix != dim:
        name += f" → {shortlist or config.shortlist}{_stages(config.stages)}"
    name += _effort(config.structure, config.effort)
    if config.rotation is RotationKind.IDENTITY and config.prefix != dim:
        name += ", not rotated"
    return name


def _stages(stages: Stages) -> str:
    return "".join(f" → {width}: {keep}" for width, keep in stages)


def _effort(structure: Structure, effort: int) -> str:
    if not effort:
        return ""
    return f", ef {effort}" if structure is Structure.HNSW else f", lists {effort}"


@dataclass(frozen=True, slots=True)
class Searcher:
    """A way to search the data set that is measured.

    Attributes:
        point: views of its segments, and a shortlist.
        fields: the fields of its results.Row that are known before the measurement.
    """

    point: OperatingPoint
    fields: dict[str, Any]


class Searchers:
    """Builder of the searchers over the data set's segments.

    Attributes:
        searchers: the searchers; exact search is the first.
        now: the name of the one that searches as the collection does.
        missing: names of searchers that could not be built, and why.
    """

    def __init__(self, dataset: Dataset, grid: Grid, progress: Progress) -> None:
        self.searchers: list[Searcher] = []
        self.now = EXACT
        self.missing: dict[str, str] = {}
        self._dataset, self._grid, self._progress = dataset, grid, progress
        self._config = max(dataset.segments, key=lambda segment: segment.rows).config
        self._room = _MEMORY_SHARE * _memory()
        self._built: dict[SegmentConfig, tuple[Views, float]] = {}

    def build(self) -> None:
        """Build the searchers of the grid."""
        segments, rows, grid = self._dataset.segments, self._dataset.rows, self._grid
        dim, config = segments[0].dim, self._config
        self._add_exact()
        self._add_now()
        if rows < FLAT_BELOW:
            self.missing["graphs, lists and baselines"] = (
                f"fewer than {FLAT_BELOW:,} rows are searched exactly"
            )
        for planned in grid.cascades(config, rows):
            self._add(planned, segments)
        if not grid.baselines:
            return
        if config.rotation is not RotationKind.IDENTITY:
            for planned in grid.truncated(config, rows):
                self._add(planned, segments)
        for planned in grid.full(config, dim):
            self._add(planned, segments)

    def _add_exact(self) -> None:
        """Add exact search: a scan of all rows at full width."""
        config = replace(self._config.scanned(), shortlist=ALL_ROWS, stages=())
        views = tuple(
            segment.over(replace(segment.config, shortlist=ALL_ROWS, stages=()))
            for segment in self._dataset.segments
        )
        point = OperatingPoint(views, self._dataset.live, self._grid.k, None)
        fields = self._fields(EXACT, Kind.EXACT, config, point, None)
        size = fields["cold_bytes"]  # every query reads all rows
        fields |= {"hot_bytes": size, "cold_bytes": 0}
        self.searchers.append(Searcher(point, fields))

    def _add_now(self) -> None:
        """Add the operating point of the collection, unless that is exact search."""
        dataset, k, config = self._dataset, self._grid.k, self._config
        dim = dataset.segments[0].dim
        sizes = [max(segment.config.shortlist, k) for segment in dataset.segments]
        if all(size >= rows for size, rows in zip(sizes, dataset.sizes, strict=True)):
            return
        kind = Kind.FUNNEL if config.stages else Kind.CASCADE
        if config.prefix == dim and config.code is Code.FP16 and config.shortlist <= k:
            kind = Kind.FULL
        low, high = min(sizes), max(sizes)
        if low != high:  # measured segment by segment
            config = replace(config, shortlist=0)
        several = "" if low == high else f"{low}–{high}"
        self.now = point_name(config, dim if kind is Kind.FULL else None, several)
        point = OperatingPoint(dataset.segments, dataset.live, k, 0)
        self.searchers.append(Searcher(point, self._fields(self.now, kind, config, point, None)))

    def _add(self, planned: Planned, segments: Views) -> None:
        """Add a searcher over segments; build its coarse stage unless it is built already."""
        name, kind, config = planned
        if isinstance(config, str):
            self.missing[name] = config
        if isinstance(config, str) or name == self.now:
            return
        key = config.coarse_stage()
        if key not in self._built:
            reason = self._no_room(config)
            if reason is not None:
                self.missing[name] = reason
                return
            step = f"building {config.structure} {config.code} over {config.prefix}"
            self._progress(step, 0, 1)
            begin = time.perf_counter()
            views = tuple(segment.over(config) for segment in segments)
            self._built[key] = views, time.perf_counter() - begin
            self._progress(step, 1, 1)
        stages, seconds = self._built[key]
        views = tuple(segment.over(config) for segment in stages)  # they share the coarse stage
        point = OperatingPoint(views, self._dataset.live, self._grid.k, config.shortlist)
        self.searchers.append(Searcher(point, self._fields(name, kind, config, point, seconds)))

    def _no_room(self, config: SegmentConfig) -> str | None:
        """Reserve memory for a coarse stage; if too little is left, return why it is not built."""
        hot = sum(
            hot_bytes(config, segment.rows, segment.dim) for segment in self._dataset.segments
        )
        if hot > self._room:
            return (
                f"it needs {hot >> 20:,} MiB, and {max(0, round(self._room)) >> 20:,} MiB are left "
                "of half the available memory"
            )
        self._room -= hot
        return None

    def _fields(
        self,
        name: str,
        kind: Kind,
        config: SegmentConfig,
        point: OperatingPoint,
        build_s: float | None,
    ) -> dict[str, Any]:
        """Return the fields of a row that are known before it is measured."""
        views = point.segments
        return {
            "name": name,
            "kind": kind,
            "config": config,
            "hot_bytes": sum(hot_bytes(view.config, view.rows, view.dim) for view in views),
            "cold_bytes": sum(view.rows * cold_row(view.config, view.dim) for view in views),
            "build_s": build_s,
        }


def _memory() -> int:
    """Bytes of available memory."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return 1024 * int(next(line for line in lines if "MemAvailable" in line).split()[1])
    except (OSError, StopIteration, ValueError):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
