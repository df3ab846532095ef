"""What tests/campaign.py does to a collection, what it must hold then, and who judges that."""

import json
import os
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from conftest import WordLengths

from searchengine import Document, SearchEngine
from searchengine.backends.folder import collection as ahead
from searchengine.backends.folder import merging
from searchengine.indexer.segment import SegmentConfig

Model = Mapping[str, Document]
Say = Callable[[Any], None]
_CLOSE = 2e-3  # what float16 loses of a cosine


@dataclass(frozen=True)
class Step:
    """A change of a collection. `commits`: from what it held, what it holds after each commit."""

    name: str
    act: Callable[[SearchEngine], object]
    commits: Callable[[Model], list[Model]]


@dataclass(frozen=True)
class Scenario:
    """Steps taken in safety, then steps taken under faults.

    `creates`: the collection is made under faults too.
    """

    before: Sequence[Step]
    steps: Sequence[Step]
    creates: bool = False

    def states(self) -> list[list[Model]]:
        """What it holds when the steps begin, and after each commit of each step."""
        model: Model = {}
        for step in self.before:
            model = step.commits(model)[-1]
        states = [[model]]
        for step in self.steps:
            states.append(step.commits(states[-1][-1]))
        return states


def document(key: int, version: int = 0) -> Document:
    """A document of its own: its words' lengths are the binary digits of its number."""
    number = key + 1 + 256 * version
    text = " ".join("x" * (bit + 1) for bit in range(16) if number >> bit & 1)
    return Document(f"d{key}", text, metadata={"n": key, "version": version, "even": key % 2 == 0})


def add(*numbers: int, version: int = 0) -> Step:
    """Add documents, or replace those that are there."""
    documents = [document(number, version) for number in numbers]
    return Step(
        f"add {len(numbers)}",
        lambda engine: engine.add(documents),
        lambda model: [with_added(model, documents)],
    )


def add_ahead(*numbers: int) -> Step:
    """Add documents as if they were many: their segment is built before the transaction."""
    step = add(*numbers)

    def act(engine: SearchEngine) -> None:
        before, ahead.MIN_ROWS = ahead.MIN_ROWS, 1
        try:
            step.act(engine)
        finally:
            ahead.MIN_ROWS = before

    return Step(f"{step.name} ahead", act, step.commits)


def with_added(model: Model, documents: Sequence[Document]) -> Model:
    """What a model is with documents added: fields that only `update` has set stay."""
    added = {
        d.key: Document(d.key, d.text, metadata={**model[d.key].metadata, **d.metadata})
        if d.key in model
        else d
        for d in documents
    }
    return {**model, **added}


def add_by(size: int, *numbers: int) -> Step:
    """Add documents, `size` in each commit."""
    documents = [document(number) for number in numbers]

    def commits(model: Model) -> list[Model]:
        ends = range(size, len(documents) + size, size)
        return [with_added(model, documents[:end]) for end in ends]

    return Step(
        f"add {len(numbers)} by {size}",
        lambda engine: engine.add(documents, commit_every=size),
        commits,
    )


def delete(*numbers: int) -> Step:
    """Delete documents."""
    keys = [f"d{number}" for number in numbers]
    return Step(
        f"delete {len(numbers)}",
        lambda engine: engine.delete(keys=keys),
        lambda model: [{key: d for key, d in model.items() if key not in keys}],
    )


def update(*numbers: int, **metadata: Any) -> Step:
    """Merge metadata into that of documents."""
    keys = [f"d{number}" for number in numbers]

    def commits(model: Model) -> list[Model]:
        changed = {
            key: Document(key, model[key].text, metadata={**model[key].metadata, **metadata})
            for key in keys
        }
        return [{**model, **changed}]

    return Step(
        f"update {len(numbers)}",
        lambda engine: engine.update(dict.fromkeys(keys, metadata)),
        commits,
    )


def optimize() -> Step:
    """Write everything as one segment."""
    return Step("optimize", lambda engine: engine.optimize(), lambda model: [model])


def optimize_unlocked() -> Step:
    """Write everything as one segment as if it took long: named in `pending` first."""

    def act(engine: SearchEngine) -> None:
        merging.IN_ONE = 0
        engine.optimize()

    return Step("optimize unlocked", act, lambda model: [model])


def half_done() -> Step:
    """Two commits that pass for one: what a campaign must notice."""

    def act(engine: SearchEngine) -> None:
        for number in (8, 9):
            engine.add([document(number)])

    return Step("two adds", act, add(8, 9).commits)


def by_chance(seed: int = 0, steps: int = 24) -> Scenario:
    """Steps drawn by chance; enough small adds that segments are merged on the way."""
    random, known, taken = Random(seed), set(range(8)), []
    for position in range(steps):
        kind = random.choice(["add", "add", "add", "replace", "delete", "update", "optimize"])
        some, new = random.sample(sorted(known), 2), 8 + 3 * position
        if kind == "add" or len(known) < 5:
            numbers = range(new, new + random.randint(1, 3))
            known.update(numbers)
            taken.append(add(*numbers))
        elif kind == "replace":
            known.add(new)
            taken.append(add(*some, new, version=position + 1))
        elif kind == "delete":
            known.difference_update(some)
            taken.append(delete(*some))
        elif kind == "update":
            taken.append(update(*some, seen=position))
        else:
            taken.append(optimize())
    return Scenario([add(*range(8))], taken)


SCENARIOS: dict[str, Scenario] = {
    "add": Scenario([add(0, 1)], [add(2)]),
    "adds": Scenario([add(0, 1, 2)], [add(3, 4), add(5)]),
    "create": Scenario([], [add(0, 1)], creates=True),
    "stream": Scenario([add(0)], [add_by(2, 1, 2, 3, 4, 5)]),
    "changes": Scenario(
        [add(0, 1, 2), add(3)],
        [delete(1), update(0, seen=True), add(2, 4, version=1), optimize()],
    ),
    "merge": Scenario(
        [add(0, 1, 2), add(3), add(4, 5), delete(1)], [optimize_unlocked(), delete(3), add_ahead(6)]
    ),
    "long": by_chance(),
    "broken": Scenario([add(0)], [half_done()]),
}


def create(path: Path) -> SearchEngine:
    """An empty collection."""
    return SearchEngine.create(path, WordLengths(), SegmentConfig(prefix=8))


def stored(path: Path) -> dict[str, Document]:
    """What documents.db holds."""
    with closing(sqlite3.connect(path / "documents.db")) as connection:
        rows = connection.execute("SELECT key, text, title, metadata FROM documents").fetchall()
    return {r[0]: Document(r[0], r[1], r[2], json.loads(r[3])) for r in rows}


def judge(path: Path, allowed: Sequence[Model | None], say: Say) -> None:
    """Raise AssertionError unless a collection is one of the models (None: is not there).

    Says which. It must be so in every respect, and the next writer must do well.
    """
    if None in allowed and not path.exists():
        create(path).close()
    with SearchEngine.open(path, WordLengths()) as engine:
        held = stored(path)
        which = next((i for i, model in enumerate(allowed) if model == held), None)
        assert which is not None, f"holds {sorted(held)}, none of what it may"
        say(which)
        engine.verify()
        answers_as_brute_force(engine, held)
    more = document(255)
    with SearchEngine.open(path, WordLengths()) as engine:
        engine.add([more])
        engine.add([more])  # changes nothing, and removes what a merge has replaced
    assert not strays(path), f"left behind: {strays(path)}"
    with SearchEngine.open(path, WordLengths()) as engine:
        assert stored(path) == {**held, more.key: more}, "the next commit went wrong"
        engine.verify()
        answers_as_brute_force(engine, {**held, more.key: more})


def answers_as_brute_force(
    engine: SearchEngine, held: Model, encoder: WordLengths | None = None
) -> None:
    """Raise AssertionError where a search gives other hits or scores than the model's vectors."""
    every = list(held.values())
    questions = ["x", "xx xxx", every[-1].text if every else "xxxx"]
    encoder = encoder or WordLengths()
    vectors_of_questions = encoder.encode(questions)
    for where in (None, "even = true"):
        kept = [d for d in every if where is None or d.metadata["even"]]
        vectors = encoder.encode([d.text for d in kept]) if kept else np.empty((0, 16))
        scores = vectors_of_questions @ vectors.T
        answers = engine.search_batch(questions, k=len(held) + 5, where=where, mode="vector")
        best = engine.search_batch(questions, k=2, where=where, mode="vector")
        for question, hits, first, row in zip(questions, answers, best, scores, strict=True):
            expected = {d.key: float(score) for d, score in zip(kept, row, strict=True)}
            found = sorted(hit.key for hit in hits)
            assert found == sorted(expected), f"{question!r} where {where} found {found}"
            for hit in hits:
                known = held[hit.key]
                assert abs(hit.score - expected[hit.key]) < _CLOSE, f"{hit} has a wrong score"
                assert (hit.text, hit.metadata) == (known.text, known.metadata), f"{hit} is stale"
            assert np.allclose([h.score for h in first], [h.score for h in hits[:2]])


def open_files() -> set[str]:
    """The files that this process has open."""
    return {os.path.realpath(link) for link in Path("/proc/self/fd").iterdir()}


def strays(path: Path) -> list[str]:
    """Files and folders of a collection that no commit names."""
    with closing(sqlite3.connect(path / "documents.db")) as connection:
        segments = {f"{row[0]:06d}" for row in connection.execute("SELECT id FROM segments")}
    named = {"segments", "documents.db", "documents.db-wal", "documents.db-shm"}
    extra = [each.name for each in path.iterdir() if each.name not in {*named, "pending"}]
    extra += [f"pending/{each.name}" for each in path.glob("pending/*")]
    for folder in (path / "segments").iterdir():
        if folder.name not in segments:
            extra.append(f"segments/{folder.name}")
            continue
        files = {"manifest.json", *json.loads((folder / "manifest.json").read_text())["files"]}
        extra += [str(f.relative_to(path)) for f in folder.iterdir() if f.name not in files]
    return extra
