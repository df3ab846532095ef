"""Bytes that nobody meant, against every reader: coverage-guided fuzzing (libFuzzer, by atheris).

pip install 'searchengine[fuzz]'; python benchmarks/fuzz.py --seconds 60 [TARGET …]

The targets are those of tests/fuzz_targets.py. Each runs in a process of its own with limits on
memory and on time an input; one that takes the process with it is started again. A finding is an
error that is none of the project's own, a crash, a hang or a process out of memory; its input is
kept under --out.
"""

import json
import resource
import subprocess
import sys
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

import click

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(REPOSITORY), str(REPOSITORY / "tests")]

_MEMORY_MB = 2048  # a process may grow by so much
_INPUT_SECONDS = 10
_EVERY = 200  # executions between two notes of what was counted
_LAST_FRAMES = 3


def fuzz(target: str, seconds: int, folder: Path) -> None:
    """Run one target in this process until its time is over. Never returns."""
    import atheris

    with atheris.instrument_imports(include=["searchengine"]):
        from fuzz_targets import TARGETS, emptied
    chosen = TARGETS[target]
    corpus, findings = folder / "corpus", folder / "findings"
    for part in (corpus, findings):
        part.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(chosen.seeds()):
        (corpus / f"seed-{number}").write_bytes(seed)
    (folder / "words").write_text("\n".join(f'"{_escaped(token)}"' for token in chosen.tokens))
    scratch, counted, kinds = folder / "scratch", Counter[str](), dict[str, str]()

    def one(data: bytes) -> None:
        counted["executions"] += 1
        if counted["executions"] % _EVERY == 0:
            _note(folder, counted, kinds)
        try:
            chosen.run(data, emptied(scratch))
        except Exception as error:
            kind = _kind(error)
            counted["failures"] += 1
            if kind not in kinds:
                name = f"{len(list(findings.iterdir())):03}"
                kinds[kind] = f"{name}: {str(error)[:200]!a}"
                (findings / name).write_bytes(data)
                _note(folder, counted, kinds)

    for seed in chosen.seeds():
        chosen.run(seed, emptied(scratch))  # loads what is loaded once, before memory is limited
    _limit_memory()
    options: dict[str, Any] = {
        "max_total_time": seconds,
        "timeout": _INPUT_SECONDS,
        "rss_limit_mb": _MEMORY_MB + 1024,
        "artifact_prefix": f"{findings}/native-",
        "max_len": 1 << 14,
        "verbosity": 0,
        "print_final_stats": 0,
    }
    if chosen.tokens:
        options["dict"] = folder / "words"
    flags = [f"-{name}={value}" for name, value in options.items()]
    atheris.Setup([sys.argv[0], *flags, str(corpus)], one)
    atheris.Fuzz()


def _kind(error: Exception) -> str:
    """The error and the last places in this project that it came through."""
    frames = [
        f"{Path(frame.filename).name}:{frame.lineno}"
        for frame in traceback.extract_tb(error.__traceback__)
        if str(REPOSITORY) in frame.filename and ".venv" not in frame.filename
    ]
    return f"{type(error).__name__} at {' > '.join(frames[-_LAST_FRAMES:])}"


def _escaped(token: bytes) -> str:
    return "".join(f"\\x{byte:02x}" for byte in token)


def _note(folder: Path, counted: Counter[str], kinds: dict[str, str]) -> None:
    (folder / "counted.json").write_text(json.dumps({**counted, "kinds": kinds}))


def _limit_memory() -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + _MEMORY_MB * 2**20
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def watched(target: str, seconds: int, folder: Path) -> dict[str, Any]:
    """Run a target in processes of its own until its time is over, and add up what they found."""
    started, executions, crashes, kinds = time.monotonic(), 0, Counter[str](), dict[str, str]()
    while (left := seconds - (time.monotonic() - started)) > 1:
        (folder / "counted.json").unlink(missing_ok=True)
        command = [sys.executable, __file__, target, "--child", f"--seconds={left:.0f}"]
        with open(folder / "log", "wb") as log:
            ended = subprocess.run([*command, "--out", folder.parent], stdout=log, stderr=log)
        counted = {"executions": 0, "kinds": {}}
        if (folder / "counted.json").exists():
            counted = json.loads((folder / "counted.json").read_text())
        executions += counted["executions"]
        kinds = counted["kinds"] | kinds
        if ended.returncode:
            crashes[_why(folder / "log", ended.returncode)] += 1
    seconds_taken = time.monotonic() - started
    return {
        "seconds": round(seconds_taken, 1),
        "executions": executions,
        "executions_per_second": round(executions / seconds_taken),
        "crashes": dict(crashes),
        "findings": kinds,
    }


def _why(log: Path, code: int) -> str:
    """The line in which libFuzzer says what happened, and the first place in a library."""
    lines = log.read_text(errors="replace").splitlines()
    reason = next((line for line in lines if "ERROR: libFuzzer" in line), f"exit status {code}")
    place = next((line for line in lines if line.strip().startswith("#") and "faiss" in line), "")
    return f"{reason.split('libFuzzer: ')[-1]} {place.strip()[:120]}".strip()


@click.command()
@click.argument("targets", nargs=-1)
@click.option("--seconds", default=60, show_default=True, help="Time for each target.")
@click.option(
    "--out",
    default=REPOSITORY / "fuzzed",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder for corpora and findings.",
)
@click.option("--child", is_flag=True, hidden=True)
def main(targets: tuple[str, ...], seconds: int, out: Path, child: bool) -> None:
    """Fuzz each target (all by default) for some time, and print what was found."""
    if child:
        fuzz(targets[0], seconds, out / targets[0])
    from fuzz_targets import TARGETS
    from record import record

    figures = {}
    for target in targets or TARGETS:
        (out / target).mkdir(parents=True, exist_ok=True)
        figures[target] = found = watched(target, seconds, out / target)
        rate = found["executions_per_second"]
        click.echo(f"{target:10} {found['executions']:>9,} executions, {rate:>6,} a second")
        for what, example in found["findings"].items():
            click.echo(f"    {what}, {example}")
        for what, times in found["crashes"].items():
            click.echo(f"    {times} x {what}")
    record("fuzz", figures)


if __name__ == "__main__":
    main()
