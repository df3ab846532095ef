"""Figures: how they are summed up, and benchmarks/results/<commit>.json, where they go."""

import json
import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import fmean, median, quantiles, stdev
from typing import Any

import click

from searchengine.measure.bench import processor_name

REPOSITORY = Path(__file__).resolve().parents[1]
RESULTS = REPOSITORY / "benchmarks" / "results"
SEARCHENGINE = str(Path(sys.executable).with_name("searchengine"))

DATA = click.option(
    "--data",
    default=REPOSITORY.parent / "shared" / "data",
    show_default="../shared/data",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Folder of the evaluation sets.",
)


def record(section: str, figures: Any) -> None:
    """Write one benchmark's figures beside those of the same commit, and say where."""
    commit = _git("rev-parse", "--short=12", "HEAD")
    changed = _git("status", "--porcelain", "--untracked-files=no")
    path = RESULTS / f"{commit}{'-changed' if changed else ''}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    known = json.loads(path.read_text()) if path.exists() else {"machine": machine()}
    known[section] = figures
    path.write_text(json.dumps(known, indent=2) + "\n")
    click.echo(f"written to {os.path.relpath(path)}", err=True)


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    import torch

    packages = ("torch", "transformers", "faiss-cpu", "faiss-gpu", "numpy", "sentence-transformers")
    return {
        "processor": processor_name(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "versions": {name: version(name) for name in packages if _installed(name)},
    }


def _installed(package: str) -> bool:
    """Whether there is such a package; one of faiss-cpu and faiss-gpu is not."""
    with suppress(PackageNotFoundError):
        return bool(version(package))
    return False


def spread(values: list[float]) -> dict[str, float]:
    """Median and quartiles."""
    low, _, high = quantiles(values, n=4) if len(values) > 1 else (values[0],) * 3
    return {"median": median(values), "q1": low, "q3": high, "n": len(values)}


def times(theirs: Sequence[float], ours: Sequence[float]) -> dict[str, float]:
    """How many times as long theirs took, measured in pairs: median and quartiles."""
    return spread([a / b for a, b in zip(theirs, ours, strict=True)])


def percentiles(seconds: Sequence[float]) -> dict[str, float]:
    """Milliseconds that half, and 99 of 100, stay within."""
    ordered = sorted(seconds)
    last = ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))]
    return {"p50_ms": median(ordered) * 1e3, "p99_ms": last * 1e3, "n": len(ordered)}


def over_seeds(scores: list[float]) -> dict[str, Any]:
    """Mean, standard deviation (0 of one seed) and the scores themselves, to two decimals."""
    sd = stdev(scores) if len(scores) > 1 else 0.0
    return {"mean": round(fmean(scores), 2), "sd": round(sd, 2), "all": scores}


def run_json(*arguments: str | Path) -> Any:
    """Run the searchengine command with --json and read what it prints."""
    command = [SEARCHENGINE, *map(str, arguments), "--json"]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(REPOSITORY), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
