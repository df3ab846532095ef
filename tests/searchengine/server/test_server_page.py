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

PAGE = (REPOSITORY / "docs" / "server.md").read_text()
DOCKERFILE = (REPOSITORY / "docs" / "Dockerfile").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.skipif(shutil.which("curl") is None, reason="no curl")
def test_curl_and_python(tmp_path: Path) -> None:
    model = write_model2vec(tmp_path / "model")
    with SearchEngine.create(tmp_path / "papers.index", model) as engine:
        text = "A whale rests one half of its brain at a time."
        engine.add([{"_id": "whales", "text": text, "year": 2016}])
    commands = [["bash", "-c", block] for block in blocks("bash") if block.startswith("curl")]
    assert len(commands) == 2
    commands += [[sys.executable, "-c", each] for each in blocks("python") if "httpx2.Cl" in each]
    with running(tmp_path, [tmp_path / "papers.index"]) as server:
        answers = []
        for *command, program in commands:
            program = program.replace(":8080", f":{server.url.rsplit(':', 1)[1]}")
            program = program.replace("Bearer TOKEN", f"Bearer {TOKEN}")
            program = program.replace("curl ", f'curl -sS -H "Authorization: Bearer {TOKEN}" ')
            environment = {**os.environ, "TOKEN": TOKEN}
            done = subprocess.run(
                [*command, program], env=environment, capture_output=True, text=True, check=True
            )
            answers.append(done.stdout)
    found = json.loads(answers[0])
    (shown,) = (json.loads(block) for block in blocks("json") if "collection" in block)
    assert set(found) == set(shown) and set(found["hits"][0]) == set(shown["hits"][0])
    assert found["hits"][0]["key"] == "whales"
    assert json.loads(answers[1]) == {"key": "owls", "result": "added"} and "whales" in answers[2]


def test_the_image_has_what_it_installs_and_nothing_else() -> None:
    """Not the tests, and above all no tokens or collections that are stored in the checkout."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    known = {name for parameter in cli.commands["serve"].params for name in parameter.opts}
    started = DOCKERFILE.split("ENTRYPOINT")[1] + re.findall("ExecStart=.*", PAGE)[0]
    assert set(re.findall(r"--[a-z-]+", started)) <= known
    rules = (REPOSITORY / ".dockerignore").read_text().splitlines()
    everything, *lines = [line for line in rules if not line.startswith("#")]
    assert everything == "*" and "**/__pycache__" in lines
    wheel = project["tool"]["hatch"]["build"]["targets"]["wheel"]
    needed = {"pyproject.toml", project["project"]["readme"], *wheel["packages"]}
    needed |= {"indexer", "trainer"}  # where the links in searchengine lead
    needed |= {*wheel["force-include"], "constraints.txt", "hatch_build.py", "LICENSE"}
    assert {line[1:] for line in lines if line.startswith("!")} == needed
