"""Crashes, power cuts, failing disks and damaged files, by the thousand, on one small collection.

    python tests/campaign.py kill --scenario long --points 2000 --seed 1
    python tests/campaign.py cut | fail | damage …
    python tests/campaign.py kill --points 200 --seeds 0:50 --results found.jsonl   # in pieces
    python tests/campaign.py kill --results found.jsonl --summary
    python tests/campaign.py --serve    # for tests, see faults.serve

Whatever happens to a scenario (tests/scenarios.py), the collection must hold what was acknowledged,
or that and the commit in flight, whole; its searches must give what brute force gives; `verify`
must pass; and the next writer must succeed and leave nothing behind. Prints a summary as JSON, one
line a seed with `--seeds`, and ends with status 1 if anything was not so. `--results` appends what
each seed found, with a digest of the source; seeds that this source has finished are left out.
"""

import argparse
import errno
import gc
import json
import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from bench import Bench, Sample, Tally
from campaign_results import Piece, Results, seed_range, source_digest
from conftest import WordLengths
from damage import damage
from faults import Action, in_child, serve, under_faults
from powercut import Disk, Lost
from scenarios import (
    SCENARIOS,
    Say,
    answers_as_brute_force,
    create,
    stored,
)

from searchengine import SearchEngine
from searchengine.errors import CollectionError, SearchEngineError

_CAMPAIGN = "faults"
_NAMED = ("what", "scenario", "points", "errno", "once", "unsynced", "file")


def kill(name: str, folder: Path, sample: Sample) -> Tally:
    """SIGKILL at every call, and half way through every write."""
    bench = Bench(SCENARIOS[name], folder)
    calls = [call for call in bench.calls() if call.kind != "k"]
    tally = Tally(name, len(calls))
    tries = [(number, Action.KILL) for number in range(1, len(calls) + 1)]
    tries += [(number, Action.TEAR) for number, _ in tries if calls[number - 1].kind == "w"]
    for number, action in (tries[i] for i in sample.of(len(tries))):

        def run(say: Say, number: int = number, action: Action = action) -> None:
            bench.library.arm(bench.work, number, action)
            bench.run(say)

        bench.fresh()
        ended = in_child(run)
        where = f"{action.name} at call {number} ({calls[number - 1]})"
        tally.faults += 1
        tally.kinds[f"{action.name.lower()} {calls[number - 1].what}"] += 1
        if ended.signal != 9:
            tally.wrong(where, ended.problem or "it was not killed")
        bench.check(ended.said[-1] if ended.said else bench.begun, where, tally)
    return tally


def cut(name: str, folder: Path, sample: Sample) -> Tally:
    """Cut the power before every call: what was not synced is lost, wholly or in part."""
    bench = Bench(SCENARIOS[name], folder)
    calls = bench.calls()
    tally = Tally(name, sum(call.kind != "k" for call in calls))
    ways = [*((lost, 0) for lost in Lost), (Lost.SOME, 1), (Lost.SOME, 2)]
    wanted: dict[int, list[tuple[Lost, int]]] = {}
    for i in sample.of(len(ways) * (len(calls) + 1)):
        wanted.setdefault(i // len(ways), []).append(ways[i % len(ways)])
    disk, acknowledged = Disk(bench.base, seen_as=bench.work), bench.begun
    for number in range(len(calls) + 1):
        for lost, extra in wanted.get(number, []):
            shutil.rmtree(bench.work, ignore_errors=True)
            disk.write_after_cut(bench.work, lost, seed=1000 * sample.seed + 10 * number + extra)
            before = calls[number] if number < len(calls) else "the end"
            tally.faults += 1
            tally.kinds[lost.value] += 1
            where = f"cut before call {number} ({before}), lost {lost.value} {extra}"
            bench.check(acknowledged, where, tally)
        if number < len(calls):
            disk.apply(calls[number])
            acknowledged = calls[number].at if calls[number].kind == "k" else acknowledged
    return tally


def fail(name: str, folder: Path, sample: Sample, error: int, *, once: bool = False) -> Tally:
    """Let every call fail with an errno, once or from then on; then go on without faults.

    A step may be refused by an error of our own, and then it has changed nothing; nothing else may
    happen. Taken again when the fault is over, it succeeds.
    """
    bench = Bench(SCENARIOS[name], folder)
    calls = [call for call in bench.calls() if call.kind != "k"]
    tally = Tally(name, len(calls))
    action = Action.FAIL_ONCE if once else Action.FAIL_FROM
    for number in (i + 1 for i in sample.of(len(calls))):

        def run(say: Say, number: int = number) -> None:
            bench.library.arm(bench.work, number, action, error)
            _go_on_after(bench, say, error in (errno.EROFS, errno.EACCES))

        bench.fresh()
        ended = in_child(run)
        where = f"{errno.errorcode[error]} at call {number} ({calls[number - 1]})"
        tally.faults += 1
        tally.kinds[calls[number - 1].what] += 1
        tally.refused += len(ended.said)
        tally.wrong(where, ended.problem)
        if ended.problem is None:
            bench.check(len(bench.scenario.steps), where, tally)
    return tally


def _go_on_after(bench: Bench, say: Say, reopen: bool) -> None:
    """Take the steps; one that is refused is taken again without faults.

    `reopen`: by an engine opened again, as a folder must be that could not be written.
    """

    def refused(doing: str, error: SearchEngineError) -> None:
        bench.library.disarm()
        assert isinstance(error, CollectionError), f"{doing}: {error!r}"
        say(f"{doing}: {error}")

    def begin() -> SearchEngine:
        if bench.scenario.creates and not bench.path.exists():
            return create(bench.path)
        return SearchEngine.open(bench.path, WordLengths())

    try:
        engine = begin()
    except SearchEngineError as error:
        refused("create" if bench.scenario.creates else "open", error)
        engine = begin()
    for number, step in enumerate(bench.scenario.steps, start=1):
        try:
            step.act(engine)
        except SearchEngineError as error:
            refused(step.name, error)
            held = stored(bench.path)
            unchanged = [bench.states[number - 1][-1], *bench.states[number][:-1]]
            assert held in unchanged, f"{step.name} was refused, and has changed something"
            if reopen:
                engine.close()
                engine = begin()
            engine.refresh()
            answers_as_brute_force(engine, held)
            step.act(engine)
    bench.library.disarm()
    answers_as_brute_force(engine, bench.states[-1][-1])
    with suppress(SearchEngineError):
        engine.close()


def main(arguments: Sequence[str]) -> int:
    """Run a campaign and print what it found."""
    parser = argparse.ArgumentParser(description="Faults by the thousand.")
    parser.add_argument("what", choices=["kill", "cut", "fail", "damage"])
    parser.add_argument("--scenario", choices=sorted(SCENARIOS), default="changes")
    parser.add_argument("--points", type=int, help="number of random faults; default: all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seeds", type=seed_range, help="A:B, without B: one after the other")
    parser.add_argument("--results", type=Path, help="file to append to, and to resume from")
    parser.add_argument("--summary", action="store_true", help="print totals and end")
    parser.add_argument("--errno", default="ENOSPC", help="for fail: ENOSPC, EIO, EROFS, …")
    parser.add_argument("--once", action="store_true", help="for fail: only one call fails")
    parser.add_argument("--unsynced", action="store_true", help="our own syncs do nothing")
    parser.add_argument("--file", default="", help="for damage: only files named like this")
    options = parser.parse_args(arguments)
    if options.unsynced:
        os.fsync = lambda descriptor: None
    gc.freeze()  # collecting would copy every page that a child shares
    results = Results(options.results)
    if options.summary:
        print(results.summary())
        return 0
    named = {name: getattr(options, name) for name in _NAMED}
    failed = False
    for seed in results.unfinished(
        _CAMPAIGN, named, options.seeds or range(options.seed, options.seed + 1)
    ):
        begun = time.monotonic()
        tally = run(options, seed)
        results.append(_piece(tally, named, seed, time.monotonic() - begun))
        indent = None if options.seeds else 1
        print(json.dumps(vars(tally), indent=indent, ensure_ascii=False), flush=True)
        failed |= bool(tally.problems)
    return 1 if failed else 0


def run(options: argparse.Namespace, seed: int) -> Tally:
    """One seed of a campaign."""
    with tempfile.TemporaryDirectory(prefix="campaign-") as name:
        folder, sample = Path(name), Sample(options.points, seed)
        if options.what == "kill":
            return kill(options.scenario, folder, sample)
        if options.what == "cut":
            return cut(options.scenario, folder, sample)
        if options.what == "fail":
            error = getattr(errno, options.errno)
            return fail(options.scenario, folder, sample, error, once=options.once)
        return damage(folder, sample, options.file)


def _piece(tally: Tally, named: dict[str, Any], seed: int, seconds: float) -> Piece:
    counts = Counter(tally.kinds)
    counts.update(faults=tally.faults, in_flight=tally.in_flight, refused=tally.refused)
    problems = [{"kind": named["what"], "what": problem} for problem in tally.problems]
    return Piece(_CAMPAIGN, named, seed, round(seconds, 2), counts, problems, source_digest())


if __name__ == "__main__":
    under_faults()
    if sys.argv[1:] == ["--serve"]:
        gc.freeze()
        serve(main)
    else:
        sys.exit(main(sys.argv[1:]))
