"""docs/server.md: its commands, run as written against a server of the sample data."""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import pytest
import yaml
from conftest import REPOSITORY
from server_process import TOKEN, running
from tiny_model import write_model2vec

from searchengine import SearchEngine
from searchengine.cli import cli

PAGE = (REPOSITORY / "docs" / "server.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.skipif(shutil.which("curl") is None, reason="no curl")
def test_curl_and_python(tmp_path: Path) -> None:
    model = write_model2vec(tmp_path / "model")
    with SearchEngine.create(tmp_path / "papers.index", model) as engine:
        text = "A whale rests one half of its brain at a time."
        engine.add([{"_id": "whales", "text": text, "year": 2016}])
    with running(tmp_path, [tmp_path / "papers.index"]) as server:
        port = server.url.rsplit(":", 1)[1]

        def mine(program: str) -> str:
            program = program.replace(":8080", f":{port}").replace(
                "Bearer TOKEN", f"Bearer {TOKEN}"
            )
            return program.replace("curl ", f'curl -sS -H "Authorization: Bearer {TOKEN}" ')

        commands = [block for block in blocks("bash") if block.startswith("curl")]
        assert len(commands) == 2
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
        (program,) = (block for block in blocks("python") if "import httpx2" in block)
        done = subprocess.run(
            [sys.executable, "-c", mine(program)], capture_output=True, text=True, check=True
        )
        assert "whales" in done.stdout


def test_the_image_installs_extras_that_exist() -> None:
    dockerfile = (REPOSITORY / "docs" / "Dockerfile").read_text()
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    (extras,) = re.findall(r'"\.\[(.*)\]"', dockerfile)
    assert set(extras.split(",")) <= set(project["optional-dependencies"])
    known = {name for parameter in cli.commands["serve"].params for name in parameter.opts}
    started = dockerfile.split("ENTRYPOINT")[1] + re.findall("ExecStart=.*", PAGE)[0]
    assert set(re.findall(r"--[a-z-]+", started)) <= known


def test_the_image_has_what_it_installs_and_nothing_else() -> None:
    """Not the tests, and above all no tokens or collections that are stored in the checkout."""
    everything, *lines = [
        line
        for line in (REPOSITORY / ".dockerignore").read_text().splitlines()
        if not line.startswith("#")
    ]
    assert everything == "*"
    copied = {line[1:] for line in lines if line.startswith("!")}
    assert all((REPOSITORY / name).exists() for name in copied)
    build = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    wheel = build["tool"]["hatch"]["build"]["targets"]["wheel"]
    needed = {"pyproject.toml", build["project"]["readme"], *wheel["packages"]}
    needed |= {"indexer", "trainer"}  # where the links in searchengine lead
    needed |= {*wheel["force-include"], "constraints.txt", "LICENSE"}
    assert copied == needed and not {"tests", "tokens.txt"} & copied
    dockerfile = (REPOSITORY / "docs" / "Dockerfile").read_text()
    assert re.findall(r"^COPY (.*)", dockerfile, re.MULTILINE) == [". ."]
    left_out = [line.removeprefix("**/") for line in lines if not line.startswith("!")]
    assert any(fnmatch("__pycache__", pattern) for pattern in left_out)


def test_the_container_may_read_its_tokens() -> None:
    """Docker mounts a file with its owner and mode: 600 is for its owner alone."""
    (compose,) = (yaml.safe_load(block) for block in blocks("yaml"))
    (service,) = compose["services"].values()
    assert re.fullmatch(r"\d+:\d+", service["user"])
    dockerfile = (REPOSITORY / "docs" / "Dockerfile").read_text()
    assert f"/run/secrets/{service['secrets'][0]}" in dockerfile
    (cache,) = (volume.split(":")[1] for volume in service["volumes"] if volume.startswith("cache"))
    assert f"install -d -m 1777 {cache}" in dockerfile and f"HOME={cache}" in dockerfile


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd")
def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    (unit,) = blocks("ini")
    command = "/srv/search/.venv/bin/searchengine"
    assert command in unit
    path = tmp_path / "searchengine.service"
    path.write_text(unit.replace(command, sys.executable))  # it must exist
    done = subprocess.run(
        ["systemd-analyze", "verify", path], capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
