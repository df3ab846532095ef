"""Shared fixtures: where the real data lies, and an encoder a human can compute."""

from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]
SHARED = REPOSITORY.parent / "shared" / "data"


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real data beside the checkout; tests that need it are skipped without it."""
    if not SHARED.is_dir():
        pytest.skip(f"no real data at {SHARED}")
    return SHARED
