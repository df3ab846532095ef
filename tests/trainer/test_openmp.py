"""How long the threads of torch spin, as OpenMP itself reports it."""

import os
import subprocess
import sys

import pytest

PROGRAM = "from searchengine.trainer.encoder import Encoder; import torch"


def reported(**environment: str) -> str:
    """What OpenMP prints of its settings when torch is loaded."""
    kept = {k: v for k, v in os.environ.items() if k not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**kept, "OMP_DISPLAY_ENV": "verbose", **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    if "GOMP_" not in done.stderr:
        pytest.skip("torch is not built with GNU's OpenMP here")
    return done.stderr


def test_threads_spin_briefly() -> None:
    assert "GOMP_SPINCOUNT = '1000'" in reported()


@pytest.mark.parametrize(
    "setting", [{"GOMP_SPINCOUNT": "77"}, {"OMP_WAIT_POLICY": "ACTIVE"}], ids=lambda s: min(s)
)
def test_what_a_user_sets_stays(setting: dict[str, str]) -> None:
    assert "GOMP_SPINCOUNT = '1000'" not in reported(**setting)
