"""What a fresh process imports to answer a question: a cold answer must not wait for more."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import WordLengths

from searchengine import SearchEngine

HEAVY = {
    "huggingface_hub", "matplotlib", "pandas", "pyarrow", "rich", "scipy", "sklearn",
    "sqlite_utils", "tokenizers", "torch", "transformers",
}  # fmt: skip


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("startup") / "words.index"
    with SearchEngine.create(path, WordLengths()) as engine:
        engine.add(
            [{"_id": "a", "text": "the cat sat", "year": 2016}, {"_id": "b", "text": "a bee"}]
        )
        engine.index_fields("year")
    return path


def loaded(program: str, *arguments: object) -> set[str]:
    """The packages that a fresh process has imported when the program ends; argv[1:] are the
    arguments."""
    last = "import json, sys; print(json.dumps(list(sys.modules)))"
    command = [sys.executable, "-c", f"{program}\n{last}", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return {name.split(".")[0] for name in json.loads(done.stdout.splitlines()[-1])}


def test_a_question_imports_no_more_than_it_needs(path: Path) -> None:
    program = """
import sys
from searchengine.engine import SearchEngine
with SearchEngine.open(sys.argv[1]) as engine:
    hits = engine.search([1, 0, 1] + 13 * [0], where="year < 2020")
    assert [hit.key for hit in hits] == ["a"] and str(hits[0])
    assert [hit.key for hit in engine.search("a cat", mode="text", where="year < 2020")] == ["a"]
    assert engine.search([1, 0, 1] + 13 * [0], 1, exact=True)[0].as_dict()["key"] == "b"
"""
    packages = loaded(program, path)
    assert packages >= {"faiss", "numpy", "searchengine", "sqlite3"}
    assert not packages & {*HEAVY, "click"}


@pytest.mark.parametrize("arguments", [
    ("search", "PATH", "cat", "--mode", "text"),
    ("search", "PATH", "cat", "--mode", "text", "--json"),
    ("--help",),
])  # fmt: skip
def test_nor_does_the_command(path: Path, arguments: tuple[str, ...]) -> None:
    program = """
import sys
from searchengine.cli import cli
cli(sys.argv[1:], standalone_mode=False)
"""
    packages = loaded(program, *(path if word == "PATH" else word for word in arguments))
    assert not packages & (HEAVY if "search" in arguments else {*HEAVY, "faiss", "numpy"})


def test_a_missing_faiss_is_named(path: Path) -> None:
    program = "import sys; sys.modules['faiss'] = None; from searchengine.cli import cli; cli()"
    command = [sys.executable, "-c", program, "info", path]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2 and "pip install faiss-cpu" in done.stderr
