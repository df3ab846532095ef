"""Processes and threads that use one collection in random orders: tests/model.py, a few seeds."""

import os
import subprocess
import sys

import pytest
from conftest import REPOSITORY


@pytest.mark.parametrize(
    ("seeds", "steps"), [("0:1", 200), pytest.param("1:6", 4000, marks=pytest.mark.long)]
)
def test_processes_and_threads_lose_nothing(seeds: str, steps: int) -> None:
    program = [sys.executable, "tests/model.py", "--seeds", seeds, "--steps", str(steps)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(
        program, cwd=REPOSITORY, env=environment, capture_output=True, text=True, timeout=3000
    )
    assert ended.returncode == 0, ended.stdout[-4000:] + ended.stderr[-2000:]
