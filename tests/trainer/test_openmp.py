"""How long the threads of torch spin, as OpenMP itself reports it."""

import os
import subprocess
import sys

import pytest

PROGRAM = "from searchengine.trainer.encoder import Encoder; import torch"


@pytest.mark.parametrize(
    ("setting", "brief"),
    [({}, True), ({"GOMP_SPINCOUNT": "77"}, False), ({"OMP_WAIT_POLICY": "ACTIVE"}, False)],
)
def test_threads_spin_briefly_unless_a_user_says_otherwise(
    setting: dict[str, str], brief: bool
) -> None:
    kept = {k: v for k, v in os.environ.items() if k not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    environment = {**kept, "OMP_DISPLAY_ENV": "verbose", **setting}
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    if "GOMP_" not in done.stderr:
        pytest.skip("torch is not built with GNU's OpenMP here")
    assert ("GOMP_SPINCOUNT = '1000'" in done.stderr) is brief
