"""Recorded figures, and the collections that the tests share."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from filelock import FileLock

from public.judged_sets import REPOSITORY, SETS, JudgedSet
from searchengine import Encoder, SearchEngine

FIGURES = Path(__file__).with_name("figures.json")
RECORDS = bool(os.environ.get("RECORD_FIGURES"))
NATIVE = {"SEARCHENGINE_RUNTIME": "native"}
"""What a user of the base install gets: encoders run without torch."""


class Figures:
    """The figures of figures.json: group → value by name, with a tolerance and a note each."""

    def __init__(self) -> None:
        self.groups: dict[str, dict[str, Any]] = json.loads(FIGURES.read_text(encoding="utf-8"))

    def check(self, group: str, name: str, value: float) -> None:
        """The value is the recorded one, within the noise of its group. Or record it."""
        if RECORDS:
            self.record(group, name, round(value, 4))
            return
        recorded, tolerance = self.groups[group]["values"][name], self.tolerance(group, name)
        assert abs(value - recorded) <= tolerance, (
            f"{group} of {name} was {recorded} ± {tolerance}, is {value:.4f}"
        )

    def tolerance(self, group: str, name: str) -> float:
        """Of this figure, or of its whole group."""
        entry = self.groups[group]
        tolerance: float = entry.get("tolerances", {}).get(name, entry["tolerance"])
        return tolerance

    def record(self, group: str, name: str, value: Any) -> None:
        """Write one value, by one worker; its tolerance and note stay."""
        values = self.groups[group].setdefault("values", {})
        values[name] = value
        self.groups[group]["values"] = dict(sorted(values.items()))
        text = json.dumps(self.groups, indent=1, ensure_ascii=False)
        FIGURES.write_text(f"{text}\n", encoding="utf-8")


@pytest.fixture(scope="session")
def figures() -> Figures:
    return Figures()


@cache
def encoder(name: str) -> Encoder:
    """A packaged encoder, loaded once."""
    return Encoder.load(name, runtime="native")


@pytest.fixture(scope="session")
def starter() -> Encoder:
    return encoder("starter")


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all workers of a run see."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "public"
    folder.mkdir(exist_ok=True)
    return folder


Judged = Callable[[str], tuple[SearchEngine, JudgedSet]]


@pytest.fixture(scope="session")
def judged(shared_folder: Path) -> Iterator[Judged]:
    """Opens a collection by its kind, with its questions; it is encoded once for all workers."""
    with ExitStack() as stack:

        @cache
        def opened(name: str) -> tuple[SearchEngine, JudgedSet]:
            data, folder = SETS[name](), shared_folder / f"{name}.index"
            with FileLock(f"{folder}.lock"):
                engine = SearchEngine.open_or_create(folder, encoder(data.encoder))
                stack.enter_context(engine).add(data.documents)
            return engine, data

        yield opened


@pytest.fixture(scope="session")
def sample(judged: Judged) -> SearchEngine:
    """The collection of the sample data; no test changes it."""
    return judged("sample")[0]


def command(*arguments: object) -> Any:
    """What a command prints with --json, run in this process; it must succeed."""
    from searchengine.cli import cli

    words = [*map(str, arguments), "--json"]
    result = CliRunner().invoke(cli, words, env=NATIVE, prog_name="searchengine")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def start(*arguments: object, before: str = "") -> subprocess.Popen[str]:
    """`searchengine` with these arguments, as a process of its own. `before`: what runs first."""
    ingest = "from searchengine.ingest import ingestion, pipeline"
    program = f"{ingest}; from searchengine.cli import cli; {before}\ncli()"
    words = [sys.executable, "-c", program, *map(str, arguments)]
    environ = {**os.environ, "PYTHONPATH": str(REPOSITORY), **NATIVE}
    pipe = subprocess.PIPE
    return subprocess.Popen(words, stdout=pipe, stderr=pipe, text=True, env=environ)
