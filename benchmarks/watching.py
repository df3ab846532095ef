"""Time from a change of a folder until a search finds it, with `searchengine index --watch`.

    python benchmarks/watching.py --files 1000 --changes 200

Another process opens the collection and asks again every hundredth of a second. Every tenth change
is a hundred files at once; every fiftieth kills the watching process by SIGKILL before, which then
is started again (its start is not counted). At the end the collection is compared with a new one.
"""

import argparse
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from searchengine import SearchEngine
from searchengine.corpus.files import read_corpus

WORDS = "whale dough lava moss quartz violin harbour tunnel maple comet ledger saddle".split()
BURST = 100
Found = Callable[[SearchEngine], bool]


def text(random_: random.Random) -> str:
    return " ".join(random_.choices(WORDS, k=60))


class Watch:
    """The watching process."""

    def __init__(self, folder: Path, index: Path, encoder: str) -> None:
        command = [Path(sys.executable).with_name("searchengine"), "index", folder, index]
        self._command = [*map(str, command), "--watch", "--encoder", encoder]
        self.start()

    def start(self) -> float:
        """Start it; returns the seconds until its first pass is done."""
        began = time.perf_counter()
        self.process = subprocess.Popen(self._command, stderr=subprocess.PIPE, text=True)
        assert self.process.stderr is not None
        while "watching" not in (line := self.process.stderr.readline()):
            if not line:
                raise RuntimeError("the watching process ended")
        return time.perf_counter() - began

    def end(self, how: signal.Signals) -> None:
        self.process.send_signal(how)
        self.process.communicate()


def until(condition: Callable[[], bool]) -> float:
    """Seconds until it holds."""
    began = time.perf_counter()
    while not condition():
        if time.perf_counter() - began > 60:
            raise RuntimeError("not found within a minute")
        time.sleep(0.01)
    return time.perf_counter() - began


def followed(engine: SearchEngine, found: Found) -> bool:
    engine.refresh()
    return found(engine)


def contents(engine: SearchEngine) -> dict[str, str]:
    engine.refresh()
    return {document.key: document.text for document in engine.documents()}


def change(
    folder: Path, kind: str, number: int, rng: random.Random
) -> Callable[[SearchEngine], bool]:
    """Change the folder; returns what tells whether a collection has followed."""
    files = sorted(folder.rglob("*.txt"))
    path = rng.choice(files)
    key = path.relative_to(folder).as_posix()
    if kind == "burst":
        for i in range(BURST):
            (folder / f"burst{number}-{i}.txt").write_text(text(rng))
        return lambda e: f"burst{number}-{BURST - 1}.txt" in e and f"burst{number}-0.txt" in e
    if kind == "added":
        (folder / f"new{number}.txt").write_text(text(rng))
        return lambda e: f"new{number}.txt" in e
    if kind == "changed":
        written = text(rng)
        path.write_text(written)
        return lambda e: e[key].text == written
    if kind == "removed":
        path.unlink()
        return lambda e: key not in e
    target = folder / f"moved{number}" / path.name
    target.parent.mkdir()
    path.rename(target)
    return lambda e: f"moved{number}/{path.name}" in e and key not in e


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--files", type=int, default=1000)
    parser.add_argument("--changes", type=int, default=200)
    parser.add_argument("--encoder", default="starter")
    arguments = parser.parse_args()
    rng = random.Random(0)
    with TemporaryDirectory() as name:
        folder, index = Path(name, "notes"), Path(name, "notes.index")
        folder.mkdir()
        for i in range(arguments.files):
            (folder / f"{i}.txt").write_text(text(rng))
        watch = Watch(folder, index, arguments.encoder)
        times: dict[str, list[float]] = {}
        starts = []
        with SearchEngine.open(index) as engine:
            for number in range(arguments.changes):
                kind = (
                    "burst"
                    if number % 10 == 9
                    else rng.choice(["added", "changed", "removed", "moved"])
                )
                if number % 50 == 49:
                    watch.end(signal.SIGKILL)
                found = change(folder, kind, number, rng)
                if number % 50 == 49:
                    starts.append(watch.start())
                seconds = until(partial(followed, engine, found))
                if number % 50 != 49:
                    times.setdefault(kind, []).append(seconds)
                time.sleep(rng.uniform(0, 0.5))
            watch.end(signal.SIGINT)
            mirrored = contents(engine)
            engine.verify()
        with SearchEngine.create(Path(name, "new.index"), arguments.encoder) as new:
            new.add(read_corpus(folder))
            assert mirrored == contents(new), "the collection differs from a new one"
        shutil.rmtree(folder)
    single = [seconds for kind, each in times.items() if kind != "burst" for seconds in each]
    for kind, each in {**times, "one file": single}.items():
        p50, p95, most = np.percentile(each, [50, 95, 100])
        print(f"{kind:8} {len(each):4}: p50 {p50:.2f} s, p95 {p95:.2f} s, longest {most:.2f} s")
    if starts:  # one in fifty changes
        print(f"after SIGKILL: first pass in {min(starts):.1f}–{max(starts):.1f} s, {len(starts)}")
    print(f"{len(mirrored)} documents, equal to those of a new collection")


if __name__ == "__main__":
    main()
