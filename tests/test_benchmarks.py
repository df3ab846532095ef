"""Every benchmark starts: what it imports exists, and its options are in order."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import REPOSITORY

BENCHMARKS = sorted(
    path
    for path in (REPOSITORY / "benchmarks").glob("*.py")
    if "click.command" in path.read_text(encoding="utf-8")
)


@pytest.mark.long
@pytest.mark.parametrize("path", BENCHMARKS, ids=lambda path: path.stem)
def test_help(path: Path) -> None:
    done = subprocess.run(
        [sys.executable, path, "--help"],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert "Usage:" in done.stdout
