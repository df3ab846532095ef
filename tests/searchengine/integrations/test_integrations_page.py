"""The programs of docs/server.md for frameworks, each run where its framework is installed."""

import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from command_line import shared_encoder
from conftest import REPOSITORY

from searchengine.trainer.encoder import Encoder

PAGE = (REPOSITORY / "docs" / "server.md").read_text()
SECTION = PAGE[PAGE.index("## LangChain") : PAGE.index("## FastAPI")]
FIRST, *PROGRAMS = re.findall(r"```python\n(.*?)```", SECTION, re.DOTALL)
PRINTED = {
    "langchain_core": "whales A whale rests one half of its brain at a time.",
    "llama_index": "moths 0.",
    "haystack": "eels Eels swim to the Sargasso Sea.",
}


def test_the_programs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In this process, which loads the packaged encoder once."""
    assert len(PROGRAMS) == len(PRINTED)
    ready = {name: each for name, each in zip(PRINTED, PROGRAMS, strict=True) if find_spec(name)}
    if not ready:
        pytest.skip("no framework is installed")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HAYSTACK_TELEMETRY_ENABLED", "False")
    with mock.patch.object(Encoder, "load", shared_encoder):
        exec(FIRST, {})
        for name, program in ready.items():
            capsys.readouterr()
            names: dict[str, Any] = {}
            exec(program, names)
            assert capsys.readouterr().out.startswith(PRINTED[name])
            if "engine" in names:
                names["engine"].close()
