"""docs/server.md: its commands, run as written against a server of the sample data."""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from conftest import REPOSITORY
from server_process import TOKEN, running
from tiny_model import write_model2vec

from searchengine import SearchEngine
from searchengine.cli import cli
from searchengine.server import server_settings as limits

PAGE = (REPOSITORY / "docs" / "server.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.skipif(shutil.which("curl") is None, reason="no curl")
def test_curl_and_python(tmp_path: Path) -> None:
    model = write_model2vec(tmp_path / "model")
    with SearchEngine.create(tmp_path / "papers.index", model) as engine:
        text = "A whale rests one half of its brain at a time."
        engine.add([{"_id": "whales", "text": text, "year": 2016}])
    (tmp_path / "corpus.jsonl").write_text('{"_id": "bread", "text": "Dough rises."}\nbad\n')
    with running(tmp_path, [tmp_path / "papers.index"], "--log", "none") as server:
        port = server.url.rsplit(":", 1)[1]

        def mine(program: str) -> str:
            program = program.replace(":8080", f":{port}").replace('token="…"', f"token='{TOKEN}'")
            return program.replace("curl ", f'curl -sS -H "Authorization: Bearer {TOKEN}" ')

        commands = [block for block in blocks("bash") if block.startswith("curl")]
        assert len(commands) == 3
        answers = [
            subprocess.run(
                ["bash", "-c", mine(command)],
                cwd=tmp_path,
                env={**os.environ, "TOKEN": TOKEN},
                capture_output=True,
                text=True,
                check=True,
            ).stdout
            for command in commands
        ]
        found = json.loads(answers[0])
        (shown,) = (json.loads(block) for block in blocks("json") if "collection" in block)
        assert set(found) == set(shown) and set(found["hits"][0]) == set(shown["hits"][0])
        assert set(found["timing"]) == set(shown["timing"])
        assert found["hits"][0]["key"] == "whales"
        assert json.loads(answers[1]) == {"key": "owls", "result": "added"}
        assert [json.loads(line) for line in answers[2].splitlines()][-1]["errors"] == 1
        (program,) = (block for block in blocks("python") if "import Client" in block)
        done = subprocess.run(
            [sys.executable, "-c", mine(program)], capture_output=True, text=True, check=True
        )
        assert "whales" in done.stdout


def test_limits_that_the_page_names() -> None:
    assert (limits.MAX_K, limits.MAX_OFFSET, limits.MAX_SHORTLIST) == (1000, 10_000, 100_000)
    assert (limits.MAX_BATCH, limits.MAX_QUERY, limits.MAX_FILTER) == (256, 10_000, 10_000)
    for number in (limits.MAX_K, limits.MAX_OFFSET, limits.MAX_SHORTLIST, limits.MAX_BATCH):
        assert f"{number:,}" in PAGE


def test_the_image_installs_extras_that_exist() -> None:
    dockerfile = (REPOSITORY / "docs" / "Dockerfile").read_text()
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    (extras,) = re.findall(r'"\.\[(.*)\]"', dockerfile)
    assert set(extras.split(",")) <= set(project["optional-dependencies"])
    known = {name for parameter in cli.commands["serve"].params for name in parameter.opts}
    started = dockerfile.split("ENTRYPOINT")[1] + re.findall("ExecStart=.*", PAGE)[0]
    assert set(re.findall(r"--[a-z-]+", started)) <= known
