"""Progress displays that an error ends: the error is the last line, with nothing half-drawn."""

import subprocess
import sys

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


cli()
"""


def test_an_error_leaves_no_bar_in_a_file() -> None:
    command = [sys.executable, "-c", PROGRAM, "indexes"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.splitlines() == ["a remark", "Error: it broke"]
