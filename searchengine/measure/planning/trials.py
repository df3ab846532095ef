"""A trial: some documents of a collection in a new one of their own, measured.

The vectors are copied, so nothing is encoded but questions.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from searchengine.engine import Mode, SearchEngine, contract
from searchengine.errors import QueryError
from searchengine.indexer.arrays import Floats

PASSES = 3  # of all questions; the fastest counts
Progress = Callable[[str, int, int | None], None]


@dataclass(frozen=True, slots=True)
class Questions:
    """What is asked: texts, or nothing if vectors are asked for, and vectors (q, D) float32."""

    texts: tuple[str, ...]
    vectors: Floats

    def __len__(self) -> int:
        return len(self.vectors)

    @property
    def asked(self) -> Sequence[Any]:
        """What a search is given."""
        return self.texts or tuple(self.vectors)


@dataclass(frozen=True, slots=True)
class Cost:
    """What a question costs: all of it, and the parts that grow, `vectors` and `words`."""

    whole: float
    parts: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Trial:
    """What was measured at one size.

    Attributes:
        documents, passages: the size.
        disk: bytes of all files or tables.
        memory: bytes of what every question reads: the indexes of vectors and of words.
        shortlist: rows compared at full width for the recall; None: not even all suffice.
        recall: mean recall@k at this shortlist.
        search_ms: processor milliseconds of a question without its encoding; on a server only what
            the server does.
        client_ms: those of the process that asks a server; None: a folder.
        reads: pages of 8 KiB that a question reads, from memory or disk; None: a folder, whose
            files are mapped.
    """

    documents: int
    passages: int
    disk: float
    memory: float
    shortlist: int | None
    recall: float
    search_ms: Cost
    client_ms: float | None
    reads: Cost | None


def run(
    source: SearchEngine,
    keys: Sequence[str],
    place: str | None,
    questions: Questions,
    mode: Mode,
    k: int,
    recall: float,
    report: Progress,
) -> Trial:
    """Build a collection of the documents with these keys, measure it, and remove it.

    `place`: the URL of a server, whose fragment is replaced; None: a temporary folder. Raises
    QueryError for a server that runs on another machine, or spreads its tables over several.
    """
    with source.trial(keys, place, report) as engine:
        check_one_machine(engine.collection)
        stats = engine.stats()
        with engine.collection.reading() as snapshot:
            memory = snapshot.index_bytes()
            shortlist, reached = needed(
                lambda size: _recall(snapshot, questions.vectors, k, size),
                recall,
                k,
                stats.passages,
            )
        cost = _cost(engine, questions, mode, k, shortlist or stats.passages)
        return Trial(
            stats.documents,
            stats.passages,
            float(stats.bytes),
            float(memory),
            shortlist,
            reached,
            *cost,
        )


def needed(
    recall_at: Callable[[int], float], target: float, k: int, rows: int
) -> tuple[int | None, float]:
    """The smallest shortlist with a recall, and that recall; None if all rows do not suffice.

    Between two steps of √2 it is interpolated, as recall rises with the logarithm of the shortlist.
    """
    below: tuple[int, float] | None = None
    for step in range(2 * math.ceil(math.log2(max(2, rows / k))) + 1):
        size = min(rows, math.ceil(k * 2 ** (step / 2)))
        reached = recall_at(size)
        if reached >= target:
            if below is None or reached == below[1]:
                return size, reached
            part = (target - below[1]) / (reached - below[1])
            between = math.exp(
                (1 - part) * math.log(below[0]) + part * math.log(size),
            )
            return math.ceil(between - 1e-9), target  # rounding may exceed a whole number
        below = size, reached
    return None, 0.0 if below is None else below[1]


def check_one_machine(backend: contract.Backend) -> None:
    """Raise QueryError for a server whose costs cannot be measured from here."""
    if backend.settings.get("citus"):
        raise QueryError(
            f"{backend.path} spreads its tables over several nodes (Citus), and how their number "
            "changes memory, processor and reads is not known: nothing is planned for it; plan "
            "for a database without Citus"
        )
    if backend.processor_seconds() is None:
        raise QueryError(
            f"{backend.path} is on another machine, whose processor cannot be measured from here; "
            "run plan there, or for a server on this machine"
        )


def _recall(snapshot: Any, vectors: Floats, k: int, size: int) -> float:
    """Mean recall@k of searches by vectors with a shortlist."""
    exact = snapshot.search(vectors, k, exact=True).rows
    found = snapshot.search(vectors, k, shortlist=size).rows
    shares = [
        len({*a} & {*b} - {-1}) / k for a, b in zip(exact.tolist(), found.tolist(), strict=True)
    ]
    return float(np.mean(shares))


def _cost(
    engine: SearchEngine, questions: Questions, mode: Mode, k: int, shortlist: int
) -> tuple[Cost, float | None, Cost | None]:
    """Processor milliseconds where the collection is, those here beside a server, and reads."""
    collection = engine.collection
    on_server = bool(_seconds_there(collection))
    # Small trials lack words of the questions, and would spend most of their time replacing them.
    options: Any = {"mode": mode, "shortlist": shortlist, "typo_tolerance": False}

    def whole(i: int) -> None:
        engine.search(questions.asked[i], k, **options)

    def by_vectors(i: int) -> None:
        with collection.reading() as snapshot:
            snapshot.search(questions.vectors[i : i + 1], k, shortlist=shortlist)

    def by_words(i: int) -> None:
        with collection.reading() as snapshot:
            snapshot.by_words(questions.texts[i], k)

    def milliseconds(ask: Callable[[int], None]) -> tuple[float, float]:
        passes = []
        for _ in range(PASSES + 1):  # the first one does what only the first ones do
            there, here = _seconds_there(collection), time.process_time()
            for i in range(len(questions)):
                ask(i)
            here = time.process_time() - here
            used = _seconds_there(collection)
            passes.append((here, sum(s - there.get(pid, 0.0) for pid, s in used.items())))
        here, there_ms = (
            1e3 * min(part) / len(questions) for part in zip(*passes[1:], strict=True)
        )
        return here, there_ms

    asked = {"vectors": by_vectors, "words": by_words}
    parts = {name: milliseconds(asked[name])[on_server] for name in _parts_of(mode)}
    here, there = milliseconds(whole)
    if not on_server:
        return Cost(here, parts), None, None
    return Cost(there, parts), here, _reads(engine, questions, k, options)


def _seconds_there(collection: contract.Backend) -> Mapping[int, float]:
    return collection.processor_seconds() or {}


def _parts_of(mode: Mode) -> tuple[str, ...]:
    return {Mode.VECTOR: ("vectors",), Mode.TEXT: ("words",)}.get(mode, ("vectors", "words"))


def _reads(engine: SearchEngine, questions: Questions, k: int, options: Any) -> Cost:
    """Pages that a question reads on a server: the whole, and its parts."""
    mode, shortlist, count = options["mode"], options["shortlist"], len(questions)

    def pages(ask: Callable[[Any, int], object]) -> float:
        with engine.collection.reading() as snapshot:
            before = snapshot.pages_read() or 0
            for i in range(count):
                ask(snapshot, i)
                snapshot.store.forget()
            return float((snapshot.pages_read() or 0) - before) / count

    def whole(snapshot: Any, i: int) -> None:
        vectors = questions.vectors[i : i + 1]
        (keys,) = engine.rank(snapshot, questions.texts[i : i + 1], vectors, k, **options)
        snapshot.store.documents(snapshot.store.ids_of(keys).values())

    asked: dict[str, Callable[[Any, int], object]] = {
        "vectors": lambda snapshot, i: snapshot.search(
            questions.vectors[i : i + 1], k, shortlist=shortlist
        ),
        "words": lambda snapshot, i: snapshot.by_words(questions.texts[i], k),
    }
    return Cost(pages(whole), {name: pages(asked[name]) for name in _parts_of(mode)})
