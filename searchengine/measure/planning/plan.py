"""Memory, disk, processors and machines for a number of documents, a rate and a recall.

Trials of three sizes are built of a collection's documents, each four times as large as the one
before (less where there are few documents). The two small ones fix how each figure grows, the large
one tells its error. A figure that is farther off than MAX_ERROR there is not extrapolated, and
nothing is planned beyond MAX_FACTOR times the largest trial.
"""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from searchengine.engine import Mode, SearchEngine, contract, is_url
from searchengine.errors import QueryError
from searchengine.indexer.config import FLAT_BELOW, Structure
from searchengine.indexer.threads import available_cores
from searchengine.measure.planning import trials
from searchengine.measure.planning.laws import Figure, Shape
from searchengine.measure.planning.trials import Cost, Progress, Questions, Trial
from searchengine.trainer.runtimes.runtime_config import processor_name

MAX_TRIAL = 32_000
"""Documents of the largest trial, by default."""
MIN_TRIAL = FLAT_BELOW
"""Documents of the smallest trial: fewer are searched in another way."""
STEP, SERVER_STEP = 4.0, 2.0
"""Ratio of a trial's documents to those of the one before. A server reads small collections in
another way: its trials begin at a fourth of the largest, not at a sixteenth."""
MAX_ERROR = 0.3
MAX_FACTOR = 100
QUESTIONS = 100
"""Documents whose beginnings are asked where there are no questions; no trial has them."""
BUSY = 0.6
"""Share of a processor's time that questions may take: beyond it they wait for each other."""
_TOO_LITTLE = "too little to be measured"
_WORDS = 12  # words of a document that are asked


@dataclass(frozen=True, slots=True)
class Demand:
    """What is planned for.

    Attributes:
        documents: number of documents.
        rate: questions a second.
        recall: mean recall@k of the searches by vectors, above 0 and at most 1.
        k: hits of a question.
        cores: processors of a machine, like the one that measures; None: as many as it has.

    Raises QueryError.
    """

    documents: int
    rate: float
    recall: float = 0.95
    k: int = 10
    cores: int | None = None

    def __post_init__(self) -> None:
        """Check."""
        for name, ok, expected in (
            ("documents", self.documents >= 1, "1 or more"),
            ("rate", 0 < self.rate < math.inf, "above 0"),
            ("recall", 0 < self.recall <= 1, "above 0 and at most 1"),
            ("k", self.k >= 1, "1 or more"),
            ("cores", self.cores is None or self.cores >= 1, "1 or more"),
        ):
            if not ok:
                raise QueryError(f"{name} must be {expected}, got {getattr(self, name)!r}")


@dataclass(frozen=True, slots=True)
class Planned:
    """A figure of a plan.

    Attributes:
        name, unit: what it is.
        value: for the documents of the demand; None: not known, and `reason` says why.
        error: the largest error at a size that was not fitted, as a fraction.
        shape: how it grows with the passages; None: it follows from others.
        measured: passages → value.
        reason: why it is not known.
    """

    name: str
    unit: str
    value: float | None
    error: float | None = None
    shape: str | None = None
    measured: Mapping[int, float] | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan for a demand.

    Attributes:
        place: "a folder" or "PostgreSQL".
        demand: the demand.
        passages: of the documents, as many for each as in the trials.
        factor: passages / those of the largest trial.
        processor: the one that was measured, and that the machines are of.
        figures: what is needed. Machines of a folder each have a copy of it; servers of PostgreSQL
            are the primary and its replicas, and each holds everything.
        notes: what the figures do not cover.
    """

    place: str
    demand: Demand
    passages: int
    factor: float
    processor: str
    figures: tuple[Planned, ...]
    notes: tuple[str, ...]

    def __getitem__(self, name: str) -> Planned:
        """The figure with a name."""
        return next(figure for figure in self.figures if figure.name == name)

    def as_dict(self) -> dict[str, Any]:
        """All of it, for JSON."""
        return asdict(self)


def plan(
    engine: SearchEngine,
    demand: Demand,
    on: str | None = None,
    *,
    questions: Sequence[str] | None = None,
    sizes: Sequence[int] | None = None,
    progress: Progress | None = None,
) -> Plan:
    """Plan for a demand, by trials with the documents of a collection.

    Args:
        engine: the collection whose documents are typical; nothing in it changes.
        demand: documents, rate of questions and recall.
        on: the URL of a PostgreSQL server on this machine, to plan for PostgreSQL; each trial has a
            schema there, which is dropped. None: for a folder.
        questions: typical questions; None: the beginnings of documents.
        sizes: documents of the trials, at least three; the two smallest are fitted.
        progress: progress callback: step, documents just done, all of them.

    Raises QueryError (too few documents, too large a demand, no questions, no server or one that
    cannot be measured) and as opening a collection on the server.
    """
    if on is not None and not is_url(on):
        raise QueryError(
            f"on must be the URL of a server, such as postgresql:///search, got {on!r}; leave it "
            "out to plan for a folder"
        )
    if questions is not None and not questions:
        raise QueryError(
            "a plan needs a question at least, got none; leave questions out to ask the beginnings "
            "of documents"
        )
    report = progress or (lambda *_: None)
    mode = engine.default_mode
    ids = _shuffled(engine.collection)
    asked = QUESTIONS if questions is None else 0
    chosen = trial_sizes(len(ids) - asked, sizes, STEP if on is None else SERVER_STEP)
    _check_documents(demand, chosen[0], chosen[-1])
    keys = _keys(engine.collection, ids)
    built = keys[asked:]
    about = _questions(engine, keys[:asked], questions)
    encoding = _encoding_ms(engine, about) if about.texts and mode is not Mode.TEXT else None
    runs = [
        trials.run(engine, built[:size], on, about, mode, demand.k, demand.recall, report)
        for size in chosen
    ]
    structure = Structure(engine.collection.settings["index"]["structure"])
    walks = on is not None or structure is Structure.HNSW
    return planned(demand, runs, Shape.POWER if walks else Shape.LINEAR, encoding)


def trial_sizes(
    documents: int, sizes: Sequence[int] | None = None, step: float = STEP
) -> list[int]:
    """The sizes of the trials of so many documents, rising. Raises QueryError.

    `step`: the largest ratio of one to the next, where no sizes are given."""
    if sizes is None:
        largest = min(documents, MAX_TRIAL)
        step = min(step, math.sqrt(largest / MIN_TRIAL)) if largest >= MIN_TRIAL else 1.0
        sizes = [round(largest / step**2), round(largest / step), largest]
        if step < 2:
            raise QueryError(
                f"a plan needs {4 * MIN_TRIAL:,} documents, besides {QUESTIONS} to ask, for trials "
                f"of three sizes, got {documents:,}; add documents, or plan by another collection "
                "with documents like yours"
            )
    rising = sorted(set(sizes))
    if len(rising) < 3 or rising[0] < MIN_TRIAL or rising[-1] > documents:
        raise QueryError(
            f"trials need three sizes or more, from {MIN_TRIAL:,} to {documents:,} documents, got "
            f"{', '.join(map(str, sizes))}"
        )
    return rising


def planned(demand: Demand, runs: Sequence[Trial], walk: Shape, encoding_ms: float | None) -> Plan:
    """The plan that follows from trials.

    Args:
        demand: documents, rate of questions and recall.
        runs: the trials, by rising size.
        walk: how a search by vectors grows: a scan is linear, a walk through a graph a power.
        encoding_ms: processor milliseconds of encoding a question; None: none is encoded.

    Raises QueryError if the demand is smaller than the smallest trial, or MAX_FACTOR times larger
    than the largest.
    """
    largest = runs[-1]
    passages = round(demand.documents * largest.passages / largest.documents)
    factor = passages / largest.passages
    _check_documents(demand, runs[0].documents, largest.documents)
    server = runs[0].client_ms is not None
    # A server reads all postings of a word, a folder skips most of them.
    shapes = {"vectors": walk, "words": Shape.LINEAR if server else Shape.POWER}
    figures = [
        _figure("disk", "bytes", Shape.LINEAR, runs, passages),
        _figure("memory", "bytes", Shape.LINEAR, runs, passages),
        _shortlist(runs, passages, demand),
        _cost("search_ms", "ms", shapes, runs, passages),
    ]
    if server:
        figures.append(_cost("reads", "pages of 8 KiB", shapes, runs, passages))
        figures.append(_figure("client_ms", "ms", Shape.POWER, runs, passages))
    if encoding_ms is not None:
        figures.append(Planned("encoding_ms", "ms", encoding_ms))
    cores = demand.cores or available_cores()
    asking = ("search_ms", "encoding_ms")
    if server:
        searching = ("search_ms",)
        figures += _machines("server_processors", "servers", figures, searching, demand, cores)
        asking = ("client_ms", "encoding_ms")
    figures += _machines("processors", "machines", figures, asking, demand, cores)
    return Plan(
        "PostgreSQL" if server else "a folder",
        demand,
        passages,
        factor,
        processor_name(),
        tuple(figures),
        _notes(server),
    )


def _check_documents(demand: Demand, smallest: int, largest: int) -> None:
    """Raise QueryError if a demand is too far from the trials of these sizes."""
    if not smallest <= demand.documents <= MAX_FACTOR * largest:
        raise QueryError(
            f"the trials have {smallest:,} to {largest:,} documents, and a plan is made for "
            f"{smallest:,} to {MAX_FACTOR * largest:,}, got {demand.documents:,}; measure trials "
            "nearer to it"
        )


def _notes(server: bool) -> tuple[str, ...]:
    common = (
        "while all that questions read is in memory; how long they take when it is not, and what "
        "writing costs meanwhile, was not measured",
        "without the replacement of words that no document has, which takes some milliseconds",
    )
    if server:
        return (
            *common,
            "reads say how many pages a question fetches at most from a disk",
            "for servers that each hold everything; nothing is known about Citus",
        )
    return (*common, "reads are not known: a folder's files are mapped")


def _figure(name: str, unit: str, shape: Shape, runs: Sequence[Trial], passages: int) -> Planned:
    measured = {run.passages: float(getattr(run, name)) for run in runs}
    if min(measured.values()) <= 0:
        return Planned(name, unit, None, None, shape, measured, _TOO_LITTLE)
    figure = Figure.fitted(shape, measured)
    return _within_error(Planned(name, unit, figure.at(passages), figure.error, shape, measured))


def _within_error(figure: Planned) -> Planned:
    """The figure, without its value if that is too far off."""
    if figure.error is None or figure.error <= MAX_ERROR:
        return figure
    reason = f"it does not grow as expected ({figure.shape})"
    return replace(figure, value=None, reason=reason)


def _cost(
    name: str, unit: str, shapes: Mapping[str, Shape], runs: Sequence[Trial], passages: int
) -> Planned:
    """What a question costs: searches by vectors and by words, and the rest.

    The error is that of the whole, or that of a part by its share of the plan, if that is more.
    """
    costs: dict[int, Cost] = {run.passages: getattr(run, name) for run in runs}
    measured = {rows: cost.whole for rows, cost in costs.items()}
    if min(value for cost in costs.values() for value in cost.parts.values()) <= 0:
        return Planned(name, unit, None, None, None, measured, _TOO_LITTLE)
    parts = {
        part: Figure.fitted(shapes[part], {rows: cost.parts[part] for rows, cost in costs.items()})
        for part in runs[0].search_ms.parts
    }
    rest = {rows: cost.whole - sum(cost.parts.values()) for rows, cost in costs.items()}
    if min(rest.values()) > 0:  # else it is too little to be told from the parts
        parts["rest"] = Figure.fitted(Shape.POWER, rest)

    def at(rows: int) -> float:
        return sum(part.at(rows) for part in parts.values())

    errors = [abs(at(rows) / whole - 1) for rows, whole in [*measured.items()][2:]]
    errors += [part.error * part.at(passages) / at(passages) for part in parts.values()]
    shape = " + ".join(f"{name} {part.shape}" for name, part in parts.items())
    return _within_error(Planned(name, unit, at(passages), max(errors), shape, measured))


def _shortlist(runs: Sequence[Trial], passages: int, demand: Demand) -> Planned:
    """The rows to compare at full width, at most all."""
    lacking = next((run for run in runs if run.shortlist is None), None)
    if lacking is not None:
        reason = (
            f"recall@{demand.k} is {lacking.recall:.3f} at most with {lacking.passages:,} passages"
        )
        return Planned("shortlist", "passages", None, reason=reason)
    figure = _figure("shortlist", "passages", Shape.POWER, runs, passages)
    if figure.value is None:
        return figure
    return replace(figure, value=float(min(math.ceil(figure.value), passages)))


def _machines(
    processors: str,
    machines: str,
    figures: Sequence[Planned],
    names: Sequence[str],
    demand: Demand,
    cores: int,
) -> list[Planned]:
    """Processors for the rate, each busy for the share BUSY, and machines that have them."""
    parts = [figure for figure in figures if figure.name in names]
    unknown = next((part for part in parts if part.value is None), None)
    if unknown is not None:
        reason = f"{unknown.name} is not known"
        return [Planned(name, name, None, reason=reason) for name in (processors, machines)]
    milliseconds = sum(part.value or 0.0 for part in parts)
    error = max(part.error or 0.0 for part in parts)
    needed = demand.rate * milliseconds / 1000 / BUSY
    return [
        Planned(processors, "processors", needed, error),
        Planned(machines, f"of {cores} processors", float(math.ceil(needed / cores)), error),
    ]


def _shuffled(collection: contract.Backend) -> list[int]:
    """The ids of all documents in a random order, always the same one."""
    with collection.reading() as snapshot:
        ids = snapshot.store.ids_after(-1, None, max(1, snapshot.store.count()))
    return [int(i) for i in np.random.default_rng(0).permutation(ids)]


def _keys(collection: contract.Backend, ids: Sequence[int]) -> list[str]:
    with collection.reading() as snapshot:
        return snapshot.store.keys_of(ids)


def _questions(
    engine: SearchEngine, keys: Sequence[str], questions: Sequence[str] | None
) -> Questions:
    """The questions to ask: those given, or the beginnings of documents, or their vectors."""
    if questions is None:
        entries = engine.collection.entries(keys)
        texts = [
            " ".join((entry.document.title or entry.document.text).split()[:_WORDS])
            for entry in entries
        ]
        if not engine.encodes:
            firsts = [entry.vectors[0] for entry in entries if len(entry.vectors)]
            words = engine.default_mode is not Mode.VECTOR
            return Questions(tuple(texts) if words else (), np.stack(firsts))
        questions = [text for text in texts if text]
    return Questions(tuple(questions), engine.encode_questions(questions))


def _encoding_ms(engine: SearchEngine, questions: Questions) -> float | None:
    """Processor milliseconds of encoding a question, one at a time."""
    if not engine.encodes:
        return None
    encoder = engine.query_encoder
    encoder.encode(questions.texts[:1], role="query")
    begin = time.process_time()
    for text in questions.texts:
        encoder.encode([text], role="query")
    return 1e3 * (time.process_time() - begin) / len(questions.texts)
