"""The command that adds an extra, for every kind of environment."""

import sys
from pathlib import Path

import pytest

from searchengine.trainer import errors
from searchengine.trainer.errors import install_line


def pip_at(folder: Path) -> str:
    (folder / "pip").write_text("#!/bin/sh\n")
    (folder / "pip").chmod(0o755)
    return str(folder)


@pytest.fixture
def python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An interpreter whose path has a space, and which is not on PATH."""
    folder = tmp_path / "my env" / "bin"
    folder.mkdir(parents=True)
    monkeypatch.setattr(sys, "executable", str(folder / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    return folder / "python"


def test_in_an_active_environment(python: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", pip_at(python.parent))
    assert install_line("serve") == "pip install 'searchengine[serve]'"


def test_where_pip_is_that_of_another_environment(python: Path, tmp_path: Path) -> None:
    pip_at(tmp_path)
    assert install_line("serve") == f"'{python}' -m pip install 'searchengine[serve]'"


def test_in_an_environment_without_pip(python: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(errors, "find_spec", lambda name: None)
    assert install_line("plots") == f"uv pip install --python '{python}' 'searchengine[plots]'"
