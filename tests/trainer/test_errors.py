"""The command that adds an extra, for every kind of environment."""

import sys
from pathlib import Path

import pytest

from searchengine.trainer import errors


@pytest.mark.parametrize(
    ("environment", "command"),
    [
        ("active", "pip install 'searchengine[serve]'"),
        ("another active", "'{python}' -m pip install 'searchengine[serve]'"),
        ("without pip", "uv pip install --python '{python}' 'searchengine[serve]'"),
    ],
)
def test_the_command_installs_here(
    environment: str, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of an interpreter whose path has a space."""
    for folder in (tmp_path / "my env", tmp_path / "other"):
        folder.mkdir()
        (folder / "pip").write_text("#!/bin/sh\n")
        (folder / "pip").chmod(0o755)
    python = tmp_path / "my env" / "python"
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.setenv("PATH", str(tmp_path / ("my env" if environment == "active" else "other")))
    if environment == "without pip":
        monkeypatch.setattr(errors, "find_spec", lambda name: None)
    assert errors.install_line("serve") == command.format(python=python)
