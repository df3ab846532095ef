"""Environments with the built wheel and what one install line brings, and no more.

`install` is the line itself, as pip does it: a minute and 1.5 GB for each. `View` takes a second: a
process of the environment that runs the tests, which finds of its packages only those that the line
requires, by pyproject.toml and the packages' metadata.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from importlib import metadata
from pathlib import Path
from typing import Any

from conftest import REPOSITORY
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

BUILT_FROM = ("indexer", "searchengine", "trainer", "data")
ENVIRONMENT = re.compile(r"(?i)PATH|LANG|LC_\w+|TMPDIR|(PIP|SSL|OPENBLAS)_\w+|\w+_PROXY")
Done = subprocess.CompletedProcess[str]


def project() -> dict[str, Any]:
    """The table `project` of pyproject.toml."""
    table: dict[str, Any] = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    return table


def build_wheel(folder: Path) -> Path:
    """Build the wheel of this repository in `folder`."""
    source = copy_source(folder / "source")
    pip("wheel", "--quiet", "--no-deps", "--wheel-dir", folder, source)
    (wheel,) = folder.glob("*.whl")
    shutil.rmtree(source)
    return wheel


def copy_source(source: Path) -> Path:
    """Copy what a wheel is built from: the build compiles in place."""
    source.mkdir(parents=True)
    for name in ("pyproject.toml", "hatch_build.py", "README.md", "LICENSE"):
        shutil.copy(REPOSITORY / name, source)
    for name in BUILT_FROM:
        ignored = shutil.ignore_patterns("__pycache__", "kernel.so*")
        shutil.copytree(REPOSITORY / name, source / name, symlinks=True, ignore=ignored)
    return source


def pip(*arguments: str | Path, python: Path | None = None) -> None:
    """Run the pip of this environment, for another one if `python` is given."""
    command = [sys.executable, "-m", "pip", *(("--python", python) if python else ()), *arguments]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@dataclass
class Environment:
    """A virtual environment with the wheel, in a folder."""

    folder: Path

    @property
    def home(self) -> Path:
        """The home of its processes, empty at first."""
        return self.folder / "home"

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return self.folder / "bin" / "python"

    def variables(self, **extra: str) -> dict[str, str]:
        """The variables of a process in it: of this process's, only those that find programs."""
        kept = {name: value for name, value in os.environ.items() if ENVIRONMENT.fullmatch(name)}
        single = {"OMP_NUM_THREADS": "1"}  # other tests run meanwhile
        return {**kept, **single, "HOME": str(self.home), **extra}

    def command(self, *arguments: str | Path) -> list[str]:
        """The words of a searchengine command."""
        return [str(self.folder / "bin" / "searchengine"), *map(str, arguments)]

    def run(self, *arguments: str | Path, cwd: Path) -> Done:
        """Run a searchengine command in a process of its own."""
        return subprocess.run(
            self.command(*arguments),
            cwd=cwd,
            env=self.variables(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=300,
        )

    def program(self, text: str, cwd: Path) -> Done:
        """Run a Python program in a process of its own."""
        return subprocess.run(
            [self.python, "-c", text],
            cwd=cwd,
            env=self.variables(),
            capture_output=True,
            text=True,
            timeout=300,
        )

    @property
    def sample(self) -> Path:
        """The sample data of the wheel."""
        (sample,) = self.folder.glob("lib/python3*/site-packages/searchengine/sample")
        return sample

    def distributions(self) -> set[str]:
        """The names of all that is installed in it."""
        return {
            canonicalize_name(path.name.split("-")[0])
            for path in self.folder.glob("lib/python3*/site-packages/*.dist-info")
        }


# sitecustomize.py of a view, behind `hidden`, the modules of distributions that are not in it.
HIDE = """
import importlib.machinery, sys
class Finder(importlib.machinery.PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        top = name.partition(".")[0]
        found = None if top in hidden else super().find_spec(name, path, target)
        if found is None and path is None:
            cls.missing = top
        return found
sys.meta_path[sys.meta_path.index(importlib.machinery.PathFinder)] = Finder
"""
# Reads commands as [words, folder] and writes [exit code, stdout, stderr], each a line of JSON.
COMMANDS = """
import json, os, sys, traceback
from click.testing import CliRunner
from searchengine.cli import cli
replies = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
for line in sys.stdin:
    words, folder = json.loads(line)
    os.chdir(folder)
    result = CliRunner().invoke(cli, words, prog_name="searchengine")
    stderr = result.stderr
    if result.exception and not isinstance(result.exception, SystemExit):
        stderr += "".join(traceback.format_exception(*result.exc_info))
    print(json.dumps([result.exit_code, result.stdout, stderr]), file=replies, flush=True)
"""


class View(Environment):
    """What a line brings, without an installation; views of a folder share a home.

    Its commands run one after the other in one process: each would import torch again, for seconds.
    """

    python = Path(sys.executable)
    sample = REPOSITORY / "data"

    def __init__(self, folder: Path, extras: Iterable[str] = (), alone: Iterable[str] = ()) -> None:
        super().__init__(folder)
        self.home.mkdir(parents=True, exist_ok=True)
        self._names = closure(requirements(extras)).union(alone)
        known, tops = self._names | {"searchengine"}, metadata.packages_distributions()
        hidden = {top for top, of in tops.items() if not known & {*map(canonicalize_name, of)}}
        self._path = Path(tempfile.mkdtemp(dir=folder))
        (self._path / "sitecustomize.py").write_text(f"hidden = {hidden}{HIDE}")

    def variables(self, **extra: str) -> dict[str, str]:
        """Where the packages of this repository are imported, and no other pip is found."""
        path = f"{self._path}:{REPOSITORY}"
        return super().variables(PYTHONPATH=path, PATH=os.defpath, **extra)

    @cached_property
    def _process(self) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [self.python, "-c", COMMANDS],
            env=self.variables(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, *arguments: str | Path, cwd: Path) -> Done:
        """Run a searchengine command."""
        words = list(map(str, arguments))
        assert self._process.stdin is not None and self._process.stdout is not None
        print(json.dumps([words, str(cwd)]), file=self._process.stdin, flush=True)
        reply = self._process.stdout.readline()
        assert reply, f"{words} ended the process"
        return Done(words, *json.loads(reply))

    def distributions(self) -> set[str]:
        """The names of all that it finds."""
        return self._names

    def close(self) -> None:
        """End the process."""
        if "_process" in vars(self):
            with self._process as process:
                process.communicate()


def requirements(extras: Iterable[str]) -> list[Requirement]:
    """What pyproject.toml says that searchengine needs with these extras."""
    table = project()
    lines = [*table["dependencies"]]
    for extra in extras:
        lines += table["optional-dependencies"][extra]
    return [Requirement(line) for line in lines]


def closure(wanted: Sequence[Requirement]) -> set[str]:
    """The names of all distributions that requirements bring, by the metadata of those here."""
    table = project()["optional-dependencies"]
    todo, seen = [line for line in wanted if holds(line, ())], set()
    while todo:
        requirement = todo.pop()
        name, extras = canonicalize_name(requirement.name), frozenset(requirement.extras)
        if (name, extras) in seen:
            continue
        if name == "searchengine":
            lines = [line for extra in extras for line in table[extra]]
        else:
            seen.add((name, extras))
            lines = []
            with suppress(metadata.PackageNotFoundError):
                lines = metadata.requires(name) or []
        todo += [needed for needed in map(Requirement, lines) if holds(needed, extras)]
    return {name for name, _ in seen}


def holds(requirement: Requirement, extras: Iterable[str]) -> bool:
    """Whether a requirement applies here, if its distribution is installed with these extras."""
    marker = requirement.marker
    return marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *extras))


def install(
    wheel: Path, extras: Sequence[str], folder: Path, alone: Sequence[str] = ()
) -> Environment:
    """The environment that pip makes of the wheel with these extras, as the Makefile calls it."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    environment = Environment(folder)
    environment.home.mkdir()
    constraints = REPOSITORY / "constraints.txt"
    torch = re.search(r"^torch==.*$", constraints.read_text(), re.MULTILINE)
    assert torch is not None
    lines = [[f"{wheel}[{','.join(extras)}]" if extras else wheel]]
    if "torch" in closure(requirements(extras)):
        lines.insert(0, [torch[0]])
    if alone:
        lines.append(["--no-deps", *alone])
    for words in lines:
        pip("install", "--quiet", "-c", constraints, *words, python=environment.python)
    return environment


def distribution(requirement: str) -> str:
    """The normalized name of what a requirement asks for."""
    return canonicalize_name(Requirement(requirement).name)
