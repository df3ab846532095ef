"""What a corpus takes on machines of a kind: memory, disk, shards, machines and time.

Every figure follows from the formulas here and from measured constants. docs/scaling.md shows both,
and how they were measured.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, exp, log, sqrt
from statistics import NormalDist

import numpy as np

from indexer.config import SegmentConfig, Structure
from indexer.errors import TuneError
from indexer.tuning.cost import footprint

# Seconds of one question alone, vector in and rows out, at recall@10 0.95, by rows of a shard.
SECONDS_ALONE = {
    Structure.IVF: ((1e4, 0.12e-3), (1e5, 0.14e-3), (1e6, 0.19e-3), (1e7, 0.39e-3)),
    Structure.HNSW: ((1e4, 0.14e-3), (1e5, 0.18e-3), (1e6, 0.45e-3)),
}
# Processor seconds to build a shard, by rows.
SECONDS_TO_BUILD = {Structure.IVF: 208e-6, Structure.HNSW: 100e-6}
MEMORY_MARGIN = 1.3  # the process, the system, and rows that were added and not merged yet
DISK_MARGIN = 2.0  # a merge writes the new segment before it removes the old ones
LOAD = 0.6  # share of the processors that questions may use
PAGE = 4096


@dataclass(frozen=True, slots=True)
class Growth:
    """The shortlist that holds a share of the true top 10: K(N) = length · (N / rows)^exponent.

    Attributes:
        rows, length: a measured size and its shortlist.
        exponent: a, the slope of log K over log N.
        low, high: the smallest and largest a that are likely.
    """

    rows: int
    length: float
    exponent: float
    low: float
    high: float

    def at(self, rows: int) -> tuple[float, float, float]:
        """The shortlist for a number of rows, and its interval."""
        times = rows / self.rows
        ends = sorted(self.length * times**exponent for exponent in (self.low, self.high))
        return self.length * times**self.exponent, ends[0], ends[1]


# By prefix and target recall: the shortlist of 111,700 real sentences of 768 dimensions, and the
# growth of synthetic ones from 100,000 to ten million.
MEASURED_GROWTH = {
    (64, 0.95): Growth(111_700, 306, 0.40, 0.27, 0.51),
    (64, 0.99): Growth(111_700, 1536, 0.39, 0.29, 0.71),
    (128, 0.95): Growth(111_700, 40, 0.20, 0.14, 0.23),
    (128, 0.99): Growth(111_700, 111, 0.26, 0.17, 0.28),
    (192, 0.95): Growth(111_700, 16, 0.09, 0.03, 0.11),
    (192, 0.99): Growth(111_700, 28, 0.12, 0.11, 0.13),
}


def measured(prefix: int, target: float) -> Growth:
    """The growth that was measured for a prefix and a target recall.

    Raises:
        TuneError: for another prefix or target.
    """
    growth = MEASURED_GROWTH.get((prefix, target))
    if growth is None:
        widths = sorted({width for width, _ in MEASURED_GROWTH})
        raise TuneError(
            f"the growth of the shortlist was measured for the prefixes {widths}, got {prefix}; "
            "give shortlists of your own corpus"
        )
    return growth


def fitted(points: Sequence[tuple[int, int]]) -> Growth:
    """The growth through measured (rows, shortlist); a's interval is that of the fit, 95 %.

    Raises:
        TuneError: fewer than two sizes.
    """
    sizes = {rows for rows, _ in points}
    if len(sizes) < 2 or min(*sizes, *(length for _, length in points)) < 1:
        raise TuneError("the growth of the shortlist needs two sizes, such as 10000:50 100000:80")
    logs = np.log(np.array(points, np.float64))
    slope, start = np.polyfit(logs[:, 0], logs[:, 1], 1)
    left = logs[:, 1] - (start + slope * logs[:, 0])
    spread = ((logs[:, 0] - logs[:, 0].mean()) ** 2).sum()
    error = sqrt((left @ left) / max(len(points) - 2, 1) / spread)
    largest = max(sizes)
    length = exp(start + slope * log(largest))
    return Growth(largest, length, slope, slope - 1.96 * error, slope + 1.96 * error)


@dataclass(frozen=True, slots=True)
class Demand:
    """What is to be served.

    Attributes:
        rows, dim: vectors, and their width.
        k: results of a question.
        copies: of every shard, at least.
        rate: questions per second.
        shard_rows: maximum rows of a shard.
        encode: seconds to encode a question.
        round_trip: seconds between the machines.
        tail: p99 of one machine's time, as a multiple of its median.
    """

    rows: int
    dim: int = 768
    k: int = 10
    copies: int = 2
    rate: float = 100.0
    shard_rows: int = 10_000_000
    encode: float = 2e-3
    round_trip: float = 0.5e-3
    tail: float = 3.0


@dataclass(frozen=True, slots=True)
class Machine:
    """Bytes of memory and disk, and processors, of one machine."""

    ram: int
    disk: int
    cores: int


@dataclass(frozen=True, slots=True)
class Plan:
    """What a demand takes. Bytes and seconds; totals are over all copies.

    Attributes:
        shortlist: (expected, low, high) candidates of one question in all shards.
        shard_shortlist: candidates of one shard, which keep those of the whole but once in 30,000.
        shards: of one copy.
        copies: those wanted, or more where the questions need them.
        machines: in all.
        memory, disk: with their margins.
        pages: of 4 KiB that one question reads at full width.
        busy: processor seconds of one question, in all shards.
        median, p99: seconds of a question, encoding and the slowest machine included.
        build: processor seconds to build one copy.
    """

    shortlist: tuple[float, float, float]
    shard_shortlist: int
    shards: int
    copies: int
    machines: int
    memory: int
    disk: int
    pages: float
    busy: float
    median: float
    p99: float
    build: float


def plan(config: SegmentConfig, demand: Demand, machine: Machine, growth: Growth) -> Plan:
    """The machines that a demand takes.

    Raises:
        TuneError: there are no measurements of the config's structure.
        SegmentConfigError: the config does not fit the vectors.
    """
    if config.structure not in SECONDS_ALONE:
        raise TuneError(f"plan knows ivf and hnsw, got {config.structure}")
    least = ceil(demand.rows / demand.shard_rows)
    size = footprint(config, ceil(demand.rows / least), demand.dim)
    memory = MEMORY_MARGIN * (demand.rows * size.hot_row + least * size.fixed)
    disk = DISK_MARGIN * demand.rows * (size.hot_row + size.cold_row)
    machines = max(ceil(memory / machine.ram), ceil(disk / machine.disk))
    each = ceil(least / machines)  # shards of a machine
    shards = each * machines
    alone = seconds_alone(config.structure, demand.rows / shards)
    busy = shards * alone
    copies = max(demand.copies, ceil(demand.rate * busy / (LOAD * machine.cores * machines)))
    shortlist = growth.at(demand.rows)
    of_shard = shard_shortlist(shortlist[0], shards, demand.k)
    width = size.cold_row
    of_machine = alone * ceil(each / machine.cores)
    times = NormalDist(log(of_machine), log(demand.tail) / NormalDist().inv_cdf(0.99))
    fixed = demand.encode + demand.round_trip
    return Plan(
        shortlist=shortlist,
        shard_shortlist=of_shard,
        shards=shards,
        copies=copies,
        machines=machines * copies,
        memory=ceil(copies * memory),
        disk=ceil(copies * disk),
        pages=shards * of_shard * (1 + (width - 1) / PAGE),
        busy=busy,
        median=fixed + exp(times.inv_cdf(0.5 ** (1 / machines))),
        p99=fixed + exp(times.inv_cdf(0.99 ** (1 / machines))),
        build=demand.rows * SECONDS_TO_BUILD[config.structure],
    )


def shard_shortlist(shortlist: float, shards: int, k: int) -> int:
    """Candidates of one shard, so that all shards together hold the shortlist of the whole.

    Rows are spread over the shards at random, so the number of candidates in one is binomial: its
    mean and four standard deviations, and at least k.
    """
    mean = shortlist / shards
    return ceil(max(k, mean + 4 * sqrt(mean * (1 - 1 / shards))))


def seconds_alone(structure: Structure, rows: float) -> float:
    """Of one question in a shard; beyond the measured sizes as between the last two."""
    sizes, seconds = np.log(np.array(SECONDS_ALONE[structure])).T
    if log(rows) <= sizes[-1]:
        return float(np.exp(np.interp(log(rows), sizes, seconds)))
    slope = (seconds[-1] - seconds[-2]) / (sizes[-1] - sizes[-2])
    return float(np.exp(seconds[-1] + slope * (log(rows) - sizes[-1])))
