"""Progress displays that an error ends: the error is the last line, with nothing half-drawn."""

import os
import pty
import re
import subprocess
import sys

import pytest

from searchengine.cli import console
from searchengine.cli.console import Pulse, stderr_console
from searchengine.cli.training.display import Display
from searchengine.trainer.training.loop import Report


def test_a_log_shows_that_a_run_goes_on(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where there is no terminal: the first update, then a line a minute."""
    clock = iter([0.0, 30.0, 70.0, 80.0, 200.0])
    monkeypatch.setattr(console.time, "monotonic", lambda: next(clock))
    pulse = Pulse()
    for done in (10, 20, 30, 40, 50):
        pulse("Training", done, 110, ", loss 0.5")
    assert capsys.readouterr().err.splitlines() == [
        "Training: 10 of 110, loss 0.5",
        "Training: 30 of 110, loss 0.5, 5 min left",
        "Training: 50 of 110, loss 0.5, 5 min left",
    ]


PROGRAM = """
import time
from types import SimpleNamespace
from searchengine.cli import cli
from searchengine.cli.console import note, steps, stderr_console
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
    from searchengine.cli.training.display import Display
    with Display(stderr_console(), resume=True) as display:
        display(SimpleNamespace(
            step=2, steps=5, loss=0.5, examples=9, excluded=0, scores=None, alignment=None,
            unjudged="", fold=0,
        ))
        time.sleep(0.3)
        raise QueryError("it broke")

cli()
"""
COMMANDS = {
    "indexes": ["a remark", "Error: it broke"],
    "trains": ["9 examples", "Error: it broke"],
}


def screen(output: str) -> list[str]:
    """The lines of a terminal after this output: moves up and erased lines take effect."""
    lines, row = [""], 0
    for part in re.findall(r"\x1b\[[?\d;]*[A-Za-z]|\r|\n|[^\x1b\r\n]+", output):
        if part == "\n":
            row += 1
            lines += [""] * (row + 1 - len(lines))
        elif part == "\x1b[1A":
            row -= 1
        elif part == "\x1b[2K":
            lines[row] = ""
        elif part[0] not in "\x1b\r":
            lines[row] = part if lines[row] == "" else lines[row] + part
    while lines and not lines[-1].strip():
        lines.pop()
    return [line.rstrip() for line in lines]


def in_a_terminal(command: str) -> str:
    controller, terminal = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
    arguments = [sys.executable, "-c", PROGRAM, command]
    with subprocess.Popen(
        arguments, stdin=terminal, stdout=terminal, stderr=terminal, env=environment
    ) as process:
        os.close(terminal)
        output = b""
        try:
            while part := os.read(controller, 1 << 16):
                output += part
        except OSError:  # the end of a terminal
            pass
        os.close(controller)
    assert process.returncode == 2
    return output.decode()


@pytest.mark.parametrize("command", COMMANDS)
def test_an_error_leaves_no_bar_in_a_terminal(command: str) -> None:
    output = in_a_terminal(command)
    assert "2/5" in output  # it was drawn
    assert screen(output) == COMMANDS[command]


@pytest.mark.parametrize("command", COMMANDS)
def test_an_error_leaves_no_bar_in_a_file(command: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, command], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    log = ["Training: 2 of 5, loss 0.500"] if command == "trains" else []
    assert done.stderr.splitlines() == [*log, *COMMANDS[command]]


@pytest.mark.parametrize(("excluded", "line"), [(0, "9 examples"), (2, "9 examples; 2 left out")])
def test_left_out_examples_are_counted(
    excluded: int, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with Display(stderr_console(), resume=True) as display:
        display(Report(0, 5, None, 0.1, None, None, None, 0, 9, excluded))
    first = capsys.readouterr().err.splitlines()[0]
    assert first.removesuffix(", for they are in an exclude file").strip() == line
