"""Progress displays that an error ends: the error is the last line, with nothing half-drawn."""

import subprocess
import sys

import pytest

PROGRAM = """
import time
from types import SimpleNamespace
from searchengine.cli import cli
from searchengine.cli.console import note, steps
from searchengine.errors import QueryError

@cli.command()
def indexes():
    with steps() as report:
        report("Indexing", 2, 5)
        report("Building", 1, 5)
        note("a remark")
        time.sleep(0.3)  # drawn several times
        raise QueryError("it broke")

@cli.command()
def trains():
    from searchengine.cli.train import display
    with display(resume=True) as on_report:
        on_report(SimpleNamespace(
            step=2, steps=5, loss=0.5, examples=9, excluded=0, scores=None, base={},
            unjudged="",
        ))
        time.sleep(0.3)
        raise QueryError("it broke")

cli()
"""
COMMANDS = {
    "indexes": ["a remark", "Error: it broke"],
    "trains": ["9 examples", "Error: it broke"],
}


@pytest.mark.parametrize("command", COMMANDS)
def test_an_error_leaves_no_bar_in_a_file(command: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, command], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr.splitlines() == COMMANDS[command]
