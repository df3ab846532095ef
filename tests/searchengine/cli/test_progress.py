"""Progress displays that an error ends: the error is the last line, with nothing half-drawn."""

import subprocess
import sys

import pytest

from searchengine.cli import console
from searchengine.cli.console import Pulse


def test_a_log_shows_that_a_run_goes_on(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where there is no terminal: a line a minute, and of steps a total that they have together."""
    clock = iter([0.0, 0.0, 30.0, 70.0, 80.0, 200.0, 270.0])
    monkeypatch.setattr(console.time, "monotonic", lambda: next(clock))
    pulse = Pulse()
    for _ in range(5):
        pulse("Training", 10, 110, "loss 0.5")
    pulse("Building", 7, 5)
    assert capsys.readouterr().err.splitlines() == [
        "Training: 30 of 110, loss 0.5, 0.3/s, 5 min left",
        "Training: 50 of 110, loss 0.5, 0.2/s, 5 min left",
        "Training: 50 of 110, loss 0.5, 0.2/s, 5 min left; Building: 7 of 5",
    ]


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
