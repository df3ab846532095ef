"""What a bench measures, made ready: coarse stages are built, other engines started."""

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from indexer.arrays import Doubles, Floats, RowNumbers
from indexer.building.build import Progress
from indexer.config import FLAT_BELOW, Code, RotationKind, SegmentConfig, Structure
from indexer.segment import Segment
from indexer.tuning.cost import cost, exhaustive, footprint
from indexer.tuning.points import OperatingPoint
from searchengine.bench.grid import Grid, Recipe, kind_of
from searchengine.bench.results import CONFIGURED, Kind
from searchengine.bench.subject import Subject

_COUNTED = 100  # queries whose multiply-adds are counted
_BLOCK = 1 << 14  # rows turned back at a time
_SHARE = 0.5  # of the memory there is, that coarse stages may fill together

Views = tuple[Segment, ...]


class Contestant(Protocol):
    """Whatever is measured."""

    @property
    def about(self) -> dict[str, Any]:
        """The fields of its results.Row that are known before anything is measured."""

    def one_by_one(self, count: int) -> tuple[RowNumbers, Doubles]:
        """Rows (count, k) and seconds (count,) of the first queries, one at a time."""

    def at_once(self, count: int) -> tuple[RowNumbers, float]:
        """Rows (count, k) and seconds of the first queries in one call."""


@dataclass(frozen=True, slots=True)
class Ours:
    """An operating point of this engine.

    Attributes:
        point: how to search.
        queries: float32 (q, D).
        about: as Contestant.
        numbers: what the subject calls the rows; None where the point numbers them alike.
    """

    point: OperatingPoint
    queries: Floats
    about: dict[str, Any]
    numbers: RowNumbers | None = None

    def one_by_one(self, count: int) -> tuple[RowNumbers, Doubles]:
        """As Contestant."""
        found, seconds = self.point.one_by_one(self.queries[:count])
        return self._named(found), seconds

    def at_once(self, count: int) -> tuple[RowNumbers, float]:
        """As Contestant."""
        found, seconds = self.point.at_once(self.queries[:count])
        return self._named(found), seconds

    def _named(self, found: RowNumbers) -> RowNumbers:
        if self.numbers is None:
            return found
        return np.where(found < 0, -1, self.numbers[found])


class Field:
    """Everybody who takes part; exact search is the first.

    Attributes:
        contestants: in the order they were made.
        missing: the names of those who do not, and why.
    """

    def __init__(self, subject: Subject, grid: Grid, scratch: Path, heard: Progress) -> None:
        self.contestants: list[Contestant] = []
        self.missing: dict[str, str] = {}
        self._subject, self._grid, self._heard = subject, grid, heard
        self._scratch = scratch
        self._own = max(subject.segments, key=lambda segment: segment.rows).config
        self._room = _SHARE * _memory()
        self._built: dict[tuple[Any, ...], tuple[Views, float]] = {}

    def gather(self) -> None:
        """Build all that the grid asks for."""
        subject, grid = self._subject, self._grid
        dim = subject.segments[0].dim
        self._add_exact()
        self._add_configured()
        if subject.rows < FLAT_BELOW:
            self.missing["graphs, lists and baselines"] = (
                f"fewer than {FLAT_BELOW:,} rows are scanned one and all"
            )
        for recipe in grid.cascades(self._own, subject.rows):
            self._add(recipe, subject.segments, None)
        if not grid.baselines:
            return
        if self._own.rotation is RotationKind.IDENTITY:
            for recipe in grid.full(self._own, dim):
                self._add(recipe, subject.segments, None)
            return
        try:
            bare, numbers = self._unrotated()
        except OSError as error:
            self.missing["baselines"] = f"the rows cannot be copied: {error.strerror}"
            return
        # The full width gains nothing by a rotation, so it need not pay for one.
        for recipe in (*grid.full(bare.config, dim), *grid.truncated(self._own, subject.rows)):
            self._add(recipe, (bare,), numbers)

    def _add_exact(self) -> None:
        views = tuple(segment.unbounded() for segment in self._subject.segments)
        point = OperatingPoint(views, self._subject.live, self._grid.k, None)
        about = self._about("exact", Kind.EXACT, point, None)
        named = {"structure": "exact", "code": str(self._own.storage), "effort": 0}
        width = {"prefix": views[0].dim, "shortlist": self._subject.rows, "stages": ()}
        rows = about["cold_bytes"]  # any query touches all of them
        about |= named | width | {"hot_bytes": rows, "cold_bytes": 0}
        self.contestants.append(Ours(point, self._subject.queries, about))

    def _add_configured(self) -> None:
        """The collection as it is searched."""
        own = self._own
        size = max(own.shortlist, self._grid.k)
        if size >= self._subject.rows:
            return  # which is exact search
        point = OperatingPoint(self._subject.segments, self._subject.live, self._grid.k, 0)
        name = f"{CONFIGURED}: {own.structure} {own.code} {own.prefix} → {size}"
        about = self._about(name, kind_of(own), point, None)
        self.contestants.append(Ours(point, self._subject.queries, about))

    def _add(
        self, recipe: Recipe | tuple[str, str], over: Views, numbers: RowNumbers | None
    ) -> None:
        """An operating point over some segments, whose coarse stage is built if it is not yet."""
        if isinstance(recipe, tuple):
            self.missing[recipe[0]] = recipe[1]
            return
        config, subject = recipe.config, self._subject
        key = (*config.coarse_stage(), config.rotation)
        if key not in self._built:
            reason = self._no_room(config)
            if reason is not None:
                self.missing[recipe.name] = reason
                return
            self._heard(f"building {config.structure} {config.code} over {config.prefix}", 0, 1)
            begin = time.perf_counter()
            views = tuple(segment.over(config) for segment in over)
            self._built[key] = views, time.perf_counter() - begin
            self._heard(f"building {config.structure} {config.code} over {config.prefix}", 1, 1)
        built, seconds = self._built[key]
        views = tuple(segment.over(config) for segment in built)  # which shares what is built
        live = subject.live if numbers is None else (None,)
        point = OperatingPoint(views, live, self._grid.k, config.shortlist)
        about = self._about(recipe.name, recipe.kind, point, seconds)
        self.contestants.append(Ours(point, subject.queries, about, numbers))

    def _no_room(self, config: SegmentConfig) -> str | None:
        """Why a coarse stage is not built, if it would not fit beside the others."""
        hot = sum(footprint(config, each.rows, each.dim).hot for each in self._subject.segments)
        if hot > self._room:
            return (
                f"it would take {hot >> 20:,} MiB, and {max(0, round(self._room)) >> 20:,} MiB are "
                "left of half the memory there is"
            )
        self._room -= hot
        return None

    def _unrotated(self) -> tuple[Segment, RowNumbers]:
        """The rows in the encoder's own basis, and what the subject calls them."""
        numbers = live_numbers(self._subject)
        config = SegmentConfig(
            prefix=1,
            rotation=RotationKind.IDENTITY,
            storage=self._own.storage,
            structure=Structure.FLAT,
            code=Code.FP16,
        )
        self._heard("undoing the rotation", 0, 1)
        bare = Segment.build(self._scratch / "unrotated", unrotated(self._subject), config)
        self._heard("undoing the rotation", 1, 1)
        return bare, numbers

    def _about(
        self, name: str, kind: Kind, point: OperatingPoint, build_s: float | None
    ) -> dict[str, Any]:
        """What of a row is known before it is measured."""
        subject = self._subject
        config = max(point.segments, key=lambda segment: segment.rows).config
        counted = cost(point, subject.queries[:_COUNTED])
        sizes = [footprint(each.config, each.rows, each.dim) for each in point.segments]
        rows, dim = subject.rows, subject.segments[0].dim
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
            "multiply_adds": None if counted is None else counted.multiply_adds,
            "bytes_read": None if counted is None else counted.bytes_read,
            "theoretical": None
            if counted is None
            else exhaustive(rows, dim) / counted.multiply_adds,
            "hot_bytes": sum(size.hot for size in sizes),
            "cold_bytes": sum(size.cold for size in sizes),
            "build_s": build_s,
        }


def live_numbers(subject: Subject) -> RowNumbers:
    """The rows that may be found, numbered through the segments, rising."""
    parts, start = [], 0
    for segment, live in zip(subject.segments, subject.live, strict=True):
        parts.append(start + (np.arange(segment.rows) if live is None else live.rows))
        start += segment.rows
    return np.concatenate(parts)


def unrotated(subject: Subject) -> Iterator[Floats]:
    """Those rows in the encoder's own basis, in blocks (n, D) float32."""
    for segment, live in zip(subject.segments, subject.live, strict=True):
        rows = np.arange(segment.rows) if live is None else live.rows
        for start in range(0, len(rows), _BLOCK):
            yield segment.vectors(rows[start : start + _BLOCK])


def _memory() -> int:
    """Bytes of memory that may be had."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return 1024 * int(next(each for each in lines if "MemAvailable" in each).split()[1])
    except (OSError, StopIteration, ValueError):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
