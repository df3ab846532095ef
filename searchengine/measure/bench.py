"""The points of a bench over rows of a collection or of a file, measured in turns.

A tuning finds them and chooses the one to use (searchengine.indexer.tuning.tune), so `bench` names
the point that `tune` applies. The bench adds exact search and what the collection does now, and
measures what a tuning does not: the slowest queries, nDCG.
"""

import platform
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from searchengine.engine import (
    Mode,
    SearchEngine,
    in_folder,
    rank_keys,
    tuning,
)
from searchengine.errors import QueryError
from searchengine.indexer.arrays import BLOCK_ROWS, Doubles, Floats, RowNumbers, evenly, unit_rows
from searchengine.indexer.building import Progress
from searchengine.indexer.config import RotationKind, SegmentConfig, Structure
from searchengine.indexer.errors import TuneError, VectorError
from searchengine.indexer.search.scoring import Allowed
from searchengine.indexer.segment import Segment
from searchengine.indexer.threads import available_cores, threads
from searchengine.indexer.tuning.tune import (
    AS_FAST,
    Goal,
    OperatingPoint,
    Point,
    Tuning,
    cold_row,
    hot_bytes,
    in_turns,
    shares,
    tune,
)
from searchengine.ingest.supplied import read_vectors
from searchengine.measure.judgements import Qrels, default_mode, read_questions
from searchengine.measure.metrics import ndcg
from searchengine.measure.results import Results, Row
from searchengine.measure.retrieval import task
from searchengine.measure.significance import EXACT, intervals

SELF_QUERIES = 500
"""Maximum number of rows used as queries if there are none; at most a tenth of the rows."""
TIMED = 100
"""Queries timed one at a time in a round."""
PREFIXES, SHORTLISTS = (64, 128, 256), (2, 5, 10, 20, 50)
"""Measured where too few queries are there for a tuning; SHORTLISTS in multiples of k."""


@dataclass(frozen=True, slots=True)
class Dataset:
    """Segments that are searched together, and the queries.

    Attributes:
        name: name of the collection or file.
        segments: the segments to search.
        live: per segment the rows that may be returned; None: all.
        queries: float32 (q, D).
        path: the collection, as it was opened; None for bare vectors.
        encoding_ms: milliseconds to encode a question; None for bare vectors.
        judge: function from views of the segments to the nDCG@10 of every query, by documents, in
            the mode `mode`. None without judgements.
        notes: sentences about questions that were left out, and the like.
        mode: the mode of nDCG: that of a search of the collection that names none, but vector where
            that is text, which no operating point matters to. None for bare vectors.
    """

    name: str
    segments: tuple[Segment, ...]
    live: tuple[Allowed | None, ...]
    queries: Floats
    path: str | None = None
    encoding_ms: float | None = None
    judge: Callable[[Sequence[Segment]], Doubles] | None = None
    notes: tuple[str, ...] = ()
    mode: Mode | None = None

    @property
    def config(self) -> SegmentConfig:
        """The config of the largest segment."""
        return max(self.segments, key=lambda segment: segment.rows).config

    @property
    def sizes(self) -> list[int]:
        """Number of rows of each segment that may be returned."""
        pairs = zip(self.segments, self.live, strict=True)
        return [segment.rows if live is None else live.size for segment, live in pairs]

    @property
    def rows(self) -> int:
        """Number of rows that may be returned."""
        return sum(self.sizes)


@contextmanager
def collection_dataset(
    engine: SearchEngine, questions: Mapping[str, str], qrels: Qrels | None = None
) -> Iterator[Dataset]:
    """The rows of a collection, open for a block. With `qrels`, only judged questions are queries.

    Raises QueryError if the collection is empty, CorpusError if no question is judged.
    """
    judged = None if qrels is None else task(engine, questions, qrels)
    typed = [*(questions if judged is None else judged.queries).values()]
    mode = Mode.VECTOR if default_mode(engine) is Mode.TEXT else default_mode(engine)
    read, texts = read_questions(engine, typed, mode)
    folder = in_folder(engine.collection)
    with folder.reading() as snapshot:
        if not snapshot.rows:
            raise QueryError(f"{engine.collection.path} is empty; add documents before measuring")
        vectors = engine.encode(texts)
        _ = snapshot.words, snapshot.unrelated  # computed here once, for all views

        def judge(segments: Sequence[Segment]) -> Doubles:
            assert judged is not None
            view, names = copy(snapshot), [each.text for each in read]
            view.segments = dict(zip(snapshot.segments, segments, strict=True))
            return ndcg(judged, rank_keys(view, names, vectors, judged.depth, mode))

        yield Dataset(
            folder.path.name,
            tuple(snapshot.segments.values()),
            tuple(snapshot.live[row] for row in snapshot.segments),
            vectors,
            str(folder.path),
            tuning.encoding_ms(engine.encoder.load(), typed),
            None if judged is None else judge,
            () if judged is None else judged.notes,
            mode,
        )


@contextmanager
def vectors_dataset(
    vectors: Path, queries: Path | None, config: SegmentConfig, scratch: Path
) -> Iterator[Dataset]:
    """Vectors (n, D) of a .npy file, built into a segment in `scratch`, open for a block.

    Without queries (q, D), a sample of the rows is used as queries and not indexed. A prefix wider
    than the vectors is shortened. Raises QueryError.
    """
    rows = read_vectors(vectors)
    source, array = (vectors, rows) if queries is None else (queries, read_vectors(queries))
    taken = evenly(len(array), len(array) if queries else min(SELF_QUERIES, len(rows) // 10))
    if not taken.size:
        raise QueryError(
            f"rows can be queries if there are 10 or more, but {vectors} has {len(rows)}; "
            "name a file of queries: --query-vectors"
        )
    indexed = np.setdiff1d(np.arange(len(rows)), [] if queries else taken)
    dim = rows.shape[1]

    def blocks() -> Iterator[Floats]:
        for start in range(0, len(indexed), BLOCK_ROWS):
            yield _checked(vectors, rows, indexed[start : start + BLOCK_ROWS], dim)

    query_rows = _checked(source, array, taken, dim)
    config = replace(config, prefix=min(config.prefix, dim))
    with Segment.build(scratch / "rows", blocks(), config) as segment:
        yield Dataset(vectors.name, (segment,), (None,), query_rows)


def _checked(path: Path, array: Floats, numbers: RowNumbers, dim: int) -> Floats:
    """Read rows of a file as float32. Raises QueryError for another width, or no direction."""
    rows = np.asarray(array[numbers], np.float32)
    try:
        unit_rows(rows, dim=dim, numbers=numbers)
    except VectorError as error:
        raise QueryError(f"{path}: {error}") from error
    return rows


@dataclass(eq=False, slots=True)
class _Entry:
    """A point and its measurements so far.

    Attributes:
        recall: mean share of the exact rows found, and its 95 % interval.
        ndcg: mean nDCG@10; None without judgements.
        rounds: seconds of the queries, per round.
    """

    name: str
    config: SegmentConfig
    point: OperatingPoint
    recall: tuple[float, float, float] = (0.0, 0.0, 0.0)
    ndcg: float | None = None
    rounds: list[Doubles] = field(default_factory=list)

    def row(self) -> Row:
        """The row of the results."""
        ms, p99 = np.median(np.median(self.rounds, axis=1)), np.percentile(self.rounds, 99)
        times, views = (1e3 * float(ms), 1e3 * float(p99)), self.point.segments
        memory = sum(hot_bytes(view.config, view.rows, view.dim) for view in views)
        if self.point.shortlist is None:  # each query reads all rows
            memory = sum(view.rows * cold_row(view.config, view.dim) for view in views)
        return Row(self.name, self.config, *self.recall, self.ndcg, *times, memory)


def bench(
    dataset: Dataset, goal: Goal, progress: Progress, *, repeats: int = 5
) -> Iterator[Results]:
    """Tune without writing anything, then measure the points worth showing.

    Yields the results after each round, so that an interruption leaves a report.
    """
    started = datetime.now(UTC).isoformat(timespec="seconds")
    goal = replace(goal, k=min(goal.k, dataset.rows))
    tuning = _tuned(dataset, goal, progress)
    entries = _present(dataset, goal.k)
    now = entries[-1].name
    configs = {_name(dataset, each): each for each in _configs(dataset, goal.k, tuning)}
    others = {name: each for name, each in configs.items() if name not in (EXACT, now)}
    entries += _views(dataset, goal.k, others, progress)
    _measure_recall(dataset, entries, progress)
    recommended, why = None, str(tuning)
    curve: tuple[Point, ...] = ()
    if isinstance(tuning, Tuning):
        recommended, curve = _name(dataset, tuning.config), tuning.curve
        why = (
            f"{tuning.held_out:,} held-out queries show that recall@{goal.k} exceeds "
            f"{goal.recall:g} (confidence {goal.confidence:g})."
        )
    subject = {
        **{name: getattr(dataset, name) for name in ("name", "path", "rows", "mode")},
        "dim": dataset.segments[0].dim,
        "queries": len(dataset.queries),
        "k": goal.k,
        "judged": 0 if dataset.judge is None else len(dataset.queries),
    }
    machine = {"processor": processor_name(), "cores": available_cores(), "threads": threads.limit}
    points, total = [entry.point for entry in entries], len(entries) * repeats
    for done, (i, seconds) in enumerate(in_turns(points, dataset.queries[:TIMED], repeats), 1):
        entries[i].rounds.append(seconds)
        progress("measuring", 1, total)
        if done % len(points) == 0:
            yield Results(
                measured_at=started,
                complete=done == total,
                subject=subject,
                machine=machine,
                settings={"repeats": repeats, **asdict(goal)},
                encoding_ms=dataset.encoding_ms,
                now=now,
                recommended=recommended,
                why=why,
                rows=tuple(entry.row() for entry in entries),
                curve=tuple(point.as_dict() for point in curve),
            )


def _tuned(dataset: Dataset, goal: Goal, progress: Progress) -> Tuning | TuneError:
    """The tuning of the queries, or why none of its points holds the goal."""
    pairs = zip(dataset.segments, dataset.live, strict=True)
    filled = [pair for pair in pairs if pair[1] is None or pair[1].size]
    try:
        return tune(
            [segment for segment, _ in filled],
            dataset.queries,
            goal,
            live=[live for _, live in filled],
            on_step=lambda step: progress(step, 1, 1),
            question_ms=dataset.encoding_ms or 0,
        )
    except TuneError as error:
        return error


def _configs(dataset: Dataset, k: int, tuning: Tuning | TuneError) -> Iterator[SegmentConfig]:
    """The configs to measure: of a tuning, the chosen one and those that find most in a time.

    Without a tuning, usual prefixes and shortlists in the structure that there is.
    """
    if isinstance(tuning, Tuning):
        yield tuning.config
        yield from (point.config for point in frontier(tuning.curve))
        return
    rows, dim = dataset.rows, dataset.segments[0].dim
    for prefix in [width for width in PREFIXES if width < dim] or [dim]:
        for shortlist in [k * times for times in SHORTLISTS if k * times <= rows] or [rows]:
            yield replace(dataset.config, stages=(), effort=0, prefix=prefix, shortlist=shortlist)


def _present(dataset: Dataset, k: int) -> list[_Entry]:
    """Exact search, and the point of the collection unless that is exact search."""
    config, segments = dataset.config, dataset.segments
    views = tuple(segment.over(segment.config.exact_from(0)) for segment in segments)
    point = OperatingPoint(views, dataset.live, k, None)
    exact = _Entry(EXACT, config.scanned().exact_from(0), point)
    sizes = [max(segment.config.shortlist, k) for segment in segments]
    if all(size >= rows for size, rows in zip(sizes, dataset.sizes, strict=True)):
        return [exact]
    several = "" if min(sizes) == max(sizes) else f"{min(sizes)}–{max(sizes)}"
    if several:  # measured segment by segment
        config = replace(config, shortlist=0)
    name = point_name(config, segments[0].dim, several)
    return [exact, _Entry(name, config, OperatingPoint(segments, dataset.live, k, 0))]


def _views(
    dataset: Dataset, k: int, configs: Mapping[str, SegmentConfig], progress: Progress
) -> Iterator[_Entry]:
    """The points of configs by name, each coarse stage built once."""
    built: dict[SegmentConfig, list[Segment]] = {}
    for name, config in configs.items():
        key = config.coarse_stage()
        if key not in built:
            built[key] = [segment.over(config) for segment in dataset.segments]
            progress(f"building {config.structure} over {config.prefix}", 1, 1)
        views = tuple(segment.over(config) for segment in built[key])  # they share it
        yield _Entry(name, config, OperatingPoint(views, dataset.live, k, config.shortlist))


def _measure_recall(dataset: Dataset, entries: Sequence[_Entry], progress: Progress) -> None:
    """Measure recall and nDCG of every point; the first one is exact search."""
    queries, judge = dataset.queries, dataset.judge
    found = []
    for entry in entries:
        found.append(entry.point.search(queries))
        entry.ndcg = None if judge is None else float(judge(entry.point.segments).mean())
        progress("measuring recall", 1, len(entries))
    recalls = [shares(each, found[0], queries.shape[1]) for each in found]
    for entry, recall, (low, high) in zip(entries, recalls, intervals(recalls), strict=True):
        entry.recall = float(recall.mean()), low, high


def _name(dataset: Dataset, config: SegmentConfig) -> str:
    """The name of a config, which is exact search if it passes on all rows."""
    every = all(config.shortlist >= rows for rows in dataset.sizes)
    return EXACT if every else point_name(config, dataset.segments[0].dim)


def frontier(points: Iterable[Point]) -> list[Point]:
    """The points with more recall than all faster ones; of two about as fast, the better one."""
    best: list[Point] = []
    for point in sorted(points, key=lambda point: (point.ms, -point.recall)):
        if not best or point.recall > best[-1].recall:
            if best and point.ms <= AS_FAST * best[-1].ms:
                best.pop()
            best.append(point)
    return best


def point_name(config: SegmentConfig, dim: int, shortlist: str = "") -> str:
    """The name of an operating point; `shortlist`: text in place of the number."""
    stages = "".join(f" → {width}: {keep}" for width, keep in config.stages)
    name = f"{config.structure} {config.code} {config.prefix}"
    name += f" → {shortlist or config.shortlist}{stages}"
    if config.effort:
        name += f", {'ef' if config.structure is Structure.HNSW else 'lists'} {config.effort}"
    bare = config.rotation is RotationKind.IDENTITY and config.prefix != dim
    return name + (", not rotated" if bare else "")


def processor_name() -> str:
    """The processor's name, from the system; "unknown" if it gives none."""
    cpuinfo = Path("/proc/cpuinfo")  # of Linux
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor()) or "unknown"
