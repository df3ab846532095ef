"""Damaged files: a bit flipped, the end cut off, the file taken away."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random

from bench import Bench, Sample, Tally
from conftest import WordLengths
from faults import in_child
from scenarios import SCENARIOS, Say, answers_as_brute_force

from searchengine import SearchEngine
from searchengine.errors import CollectionError, SearchEngineError

_ANOTHER = {"_id": "another", "text": "xxx xxxx"}


def damage(folder: Path, sample: Sample, only: str = "") -> Tally:
    """Flip a bit, cut a file short or take it away; then open, search, verify and add.

    Everything must work rightly or raise an error of our own; what is wrong with a segment's files
    must be found, by `open` or by `verify`. `kinds` says who found it, for each file.

    Args:
        folder: where to work.
        sample: how many bits to flip in each file, 100 by default.
        only: the files whose names end like this.
    """
    scenario = SCENARIOS["adds"]
    bench = Bench(scenario, folder)
    tally = Tally("adds")
    child = in_child(lambda say: _make_wal(bench, folder / "wal"))
    assert child.problem is None, child.problem
    sources = [(bench.base, file) for file in _files(bench.base)]
    sources += [(folder / "wal", file) for file in _files(folder / "wal") if file.endswith("-wal")]
    flips = sample.points or 100
    random = Random(sample.seed)
    for source, name in (each for each in sources if each[1].endswith(only)):
        size = (source / name).stat().st_size
        ways: list[tuple[str, int]] = [("cut to", n) for n in sorted({0, 1, size // 2, size - 1})]
        ways += [("taken away", 0)]
        # Half of them where something is written: most of a database page is not.
        data = (source / name).read_bytes()
        used = [place for place, byte in enumerate(data) if byte]
        for places in (range(size), used):
            ways += [("bit flipped", 8 * random.choice(places) + i % 8) for i in range(flips // 2)]
        for way, place in ways:
            shutil.rmtree(bench.work, ignore_errors=True)
            shutil.copytree(source, bench.work)
            _damage_file(bench.work / name, way, place)
            where = f"{name} {way} {place} (of {size} bytes)"
            outcome = in_child(lambda say, name=name: _use_damaged(bench, name, say))
            tally.faults += 1
            found = outcome.said[0] if outcome.said else "nobody"
            tally.kinds[f"{Path(name).name} {way}: found by {found}"] += 1
            tally.wrong(where, outcome.problem)
    return tally


def _files(folder: Path) -> list[str]:
    return sorted(str(f.relative_to(folder)) for f in folder.rglob("*") if f.is_file())


def _make_wal(bench: Bench, folder: Path) -> None:
    """A copy of the collection whose last commits lie in the write-ahead log."""
    bench.fresh()
    engine = SearchEngine.open(bench.path, WordLengths())
    for step in bench.scenario.steps:
        step.act(engine)
    shutil.copytree(bench.work, folder)
    engine.close()


def _damage_file(path: Path, way: str, place: int) -> None:
    if way == "taken away":
        path.unlink()
    elif way == "cut to":
        os.truncate(path, place)
    else:
        data = bytearray(path.read_bytes())
        data[place // 8] ^= 1 << place % 8
        path.write_bytes(data)


def _use_damaged(bench: Bench, name: str, say: Say) -> None:
    """Use a damaged collection; says who found that it is."""
    path, finders = bench.path, []
    in_segment = "segments/" in name
    held = [state[-1] for state in bench.states]

    def attempt(who: str, act: Callable[[], object]) -> None:
        try:
            act()
        except SearchEngineError as error:
            finders.append(who)
            assert isinstance(error, CollectionError), f"{who}: {error!r}"
            assert str(error), f"{who}: {error!r} says nothing"

    def search(engine: SearchEngine) -> None:
        hits = engine.search("x xx", k=20)
        if in_segment and "vectors" not in name:
            answers_as_brute_force(engine, held[0])
        elif name.endswith("-wal"):
            assert {hit.key for hit in hits} in [set(model) for model in held]

    def use() -> None:
        with SearchEngine.open(path, WordLengths()) as engine:
            attempt("search", lambda: search(engine))
            attempt("search where", lambda: engine.search("x xx", k=20, where="even = true"))
            attempt("verify", engine.verify)
            attempt("stats", engine.stats)
            assert not in_segment or "verify" in finders, "verify has not found it"
            attempt("add", lambda: engine.add([_ANOTHER]))

    attempt("open", use)
    say(finders[0] if finders else "nobody")
