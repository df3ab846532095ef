"""The README's and the docs' code, run as written."""

import contextlib
import gc
import io
import json
import os
import re
import shlex
import sqlite3
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
from command_line import run, shared_encoder
from conftest import REPOSITORY, WordLengths
from tiny_model import write_model2vec

from searchengine import SearchEngine
from searchengine.cli import cli
from searchengine.corpus.files import read_corpus
from searchengine.trainer.encoder import Encoder
from searchengine.trainer.native.library import levels

README = (REPOSITORY / "README.md").read_text()
START = (REPOSITORY / "docs" / "start.md").read_text()
TUTORIAL = START[START.index("\n## A better search") :]


@pytest.fixture(autouse=True)
def as_users_have_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine that is best, where the other tests take the one that starts fastest."""
    monkeypatch.delenv("SEARCHENGINE_RUNTIME")


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The encoder that torch has loaded, which need not be compiled."""
    monkeypatch.setenv("SEARCHENGINE_RUNTIME", "torch")
    monkeypatch.setattr(Encoder, "load", shared_encoder)


def run_python(program: str, folder: Path, **names: Any) -> str:
    """What a page's program prints. `names`: what it finds defined."""
    output = io.StringIO()
    with (
        contextlib.chdir(folder),
        contextlib.redirect_stdout(output),
        warnings.catch_warnings(action="ignore", category=ResourceWarning),
    ):
        exec(program, {"__name__": "__main__", **names})
        gc.collect()  # what an example leaves open is closed by the end of its process
    return output.getvalue()


def run_alone(program: str, folder: Path) -> str:
    """What it prints in a process of its own."""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


NUMBER = re.compile(r"[-+]?\d+(?:[.,]\d+)*")


def check_output(shown: str, printed: str) -> None:
    """Compare what a page shows with what is printed: words as they are, numbers within 0.02.

    Seconds differ by machine, and blanks at the ends of lines by terminal.
    """

    def parts(text: str) -> tuple[list[str], list[float]]:
        text = re.sub(r"\bin [\d.]+ s\b", "in SECONDS", text)
        numbers = [float(number.replace(",", "")) for number in NUMBER.findall(text)]
        return NUMBER.sub("N", text).split(), numbers

    (words, numbers), (printed_words, printed_numbers) = parts(shown), parts(printed)
    assert printed_words == words
    assert printed_numbers == pytest.approx(numbers, abs=0.02)


def run_console(page: str, folder: Path) -> int:
    """Run a page's commands behind `$`, in their order, and compare what they print below each.

    Returns how many there are. Paths in `folder` are shown without it, and so is progress.
    """
    count = 0
    for block in blocks(page, "console"):
        for entry in block.removeprefix("$ ").split("\n$ "):
            command, _, shown = entry.partition("\n")
            _, *arguments = shlex.split(command)
            done = run(*arguments, cwd=folder)
            assert done.returncode == 0, (command, done.stderr)
            printed = done.stdout or done.stderr.splitlines()[-1]
            check_output(shown, printed.replace(f"{folder}/", ""))
            count += 1
    return count


@pytest.mark.parametrize("runs", [run_python, pytest.param(run_alone, marks=pytest.mark.long)])
@pytest.mark.usefixtures("loaded")
def test_readme_python(tmp_path: Path, runs: Callable[[str, Path], str]) -> None:
    """It prints what is shown below it, also when it is run again."""
    (program,), (shown,) = blocks(README, "python"), blocks(README, "text")
    for _ in range(2):
        check_output(shown, runs(program, tmp_path))


@pytest.mark.usefixtures("loaded")
def test_readme_commands(tmp_path: Path) -> None:
    (tmp_path / "data").symlink_to(REPOSITORY / "data")
    assert run_console(README, tmp_path) == 3


@pytest.mark.long
def test_start_page(tmp_path: Path) -> None:
    """Every command of the first search, in its order, then its Python code."""
    page, _ = START.split("\n## A better search")
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "whales.txt").write_text("A whale rests one half of its brain.")
    assert run_commands(page, tmp_path) == 7
    (program,) = blocks(page, "python")
    assert re.match(r"0\.\d+ whales.txt A whale rests", run_alone(program, tmp_path))


PRINTED = (
    "Which answer it?",
    "No point is recommended",
    "pairs with 1 negative",
    "The model is in my-model. ",
)
"""What the tutorial shows and prints, between numbers that differ."""


@pytest.mark.long
def test_tutorial(tmp_path: Path) -> None:
    """Its commands and programs as written, in order: each prints the rows that the page shows."""
    (tmp_path / "searchengine").symlink_to(REPOSITORY)
    output, compared = "", 0
    for language, block in re.findall(r"```(\w+)\n(.*?)```", TUTORIAL, re.DOTALL):
        if language == "python":
            (tmp_path / block.split()[1]).write_text(block)
        elif language == "sh":
            output = ""
            for line in block.splitlines():
                output += run_line(line, tmp_path)
        else:
            rows = re.compile(r"^│ (\S+) .*│$", re.MULTILINE)
            assert rows.findall(block) in ([], rows.findall(output))
            for words in PRINTED:
                assert words not in block or words in output
            compared += 1
    assert compared == 7
    judged = (tmp_path / "mine" / "qrels" / "test.tsv").read_text().splitlines()
    assert judged[1:] == ["q1\tsearching.md\t1", "q2\tserver.md\t1"]
    (excerpt,) = re.findall(r"^only papers.*?\? \d+$", TUTORIAL, re.MULTILINE | re.DOTALL)
    assert f"{excerpt.split()[-1]:>3}  searching.md" in excerpt


def run_line(line: str, folder: Path) -> str:
    """Run a line of the tutorial in the folder; what it prints on a terminal."""
    words = shlex.split(line)
    if words[0] == "python":
        return run_python((folder / words[1]).read_text(), folder, input=choose_answer)
    if words[0] != "searchengine":
        subprocess.run(line, shell=True, cwd=folder, check=True)
        return ""
    file = words.pop() if words[-2] == ">" else None

    done = run(*(word for word in words[1:] if word != ">"), cwd=folder)
    assert done.returncode == (2 if words[1] == "tune" else 0), (line, done.stderr)
    if file is None:
        return done.stdout + done.stderr
    (folder / file).write_text(done.stdout)
    return done.stderr


def choose_answer(prompt: str) -> str:
    """The number of the page that answers the last question that was printed."""
    shown = sys.stdout.getvalue()  # type: ignore[attr-defined]
    question = "LangChain retriever" if "LangChain retriever" in shown else "only papers"
    key = {"only papers": "searching.md", "LangChain retriever": "server.md"}[question]
    answer: str = re.findall(rf"^ +(\d+)  {key}", shown[shown.index(question) :], re.MULTILINE)[0]
    print(f"{prompt}{answer}")
    return answer


@pytest.mark.usefixtures("loaded")
def test_guides_of_indexing_and_searching(tmp_path: Path) -> None:
    """Their commands, the one page after the other, then their Python code.

    The second program of the page on indexing computes the key that a record gets.
    """
    for name, text in (
        ("notes/whales.txt", "A whale rests one half of its brain."),
        ("alice/readme.md", "About alice."),
        ("bob/readme.md", "About bob."),
        ("src/lines.py", "def lines(path):\n    return open(path).readlines()\n"),
        ("papers.csv", "DOI,Heading,Abstract,year\n10/1,Whales,They sleep.,2016\n"),
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    np.save(tmp_path / "vectors.npy", np.random.default_rng(0).standard_normal((1000, 16)))
    keys = "".join(f'{{"_id": "{i}"}}\n' for i in range(1000))
    (tmp_path / "keys.jsonl").write_text(keys)
    with closing(sqlite3.connect(tmp_path / "app.db")) as database, database:
        database.execute("CREATE TABLE posts (id INTEGER, body TEXT)")
        database.execute("INSERT INTO posts VALUES (1, 'Owls hunt by night.')")
    page = (REPOSITORY / "docs" / "indexing.md").read_text()
    assert run_commands(page, tmp_path) == 16
    (piped,) = re.findall("^sqlite-utils .*", page, re.MULTILINE)
    folders = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    subprocess.run(piped, shell=True, check=True, cwd=tmp_path, env=os.environ | {"PATH": folders})
    with SearchEngine.open(tmp_path / "notes.index") as engine:
        assert {"alice/readme.md", "bob/readme.md"} <= set(engine.keys())
    adding, hashing, passages, vectors, _ = blocks(page, "python")
    run_python(f"{adding}\n{passages}\n{vectors}", tmp_path)
    names: dict[str, object] = {}
    exec(hashing, names)
    (tmp_path / "c.jsonl").write_text(json.dumps(names["record"]))
    (document,) = read_corpus(tmp_path / "c.jsonl")
    assert names["key"] == document.key
    assert f"{json.dumps(names['record'])}`: `{document.key}" in page
    page = (REPOSITORY / "docs" / "searching.md").read_text()
    assert run_commands(page, tmp_path) == 8
    programs = [block for block in blocks(page, "python") if "rerank" not in block]
    run_python("\n".join(programs), tmp_path)


def test_programs_of_servers_and_upkeep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The app, the scripts and the workers, in one folder.

    The encoder is a static model: many processes start, and each would load torch.
    """
    client = pytest.importorskip("fastapi.testclient")
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "whales.txt").write_text("how do whales sleep")
    (tmp_path / "notes" / "birds.txt").write_text("how do birds fly")
    encoder = ("--encoder", write_model2vec(tmp_path / "model"))
    assert run("index", "notes/", "notes.index", *encoder, cwd=tmp_path).returncode == 0
    page = (REPOSITORY / "docs" / "server.md").read_text()
    (app,) = blocks(page[page.index("## FastAPI") :], "python")
    page = (REPOSITORY / "docs" / "operating.md").read_text()
    mirroring, workers = blocks(page, "python")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "app"}
    exec(app, names)
    try:
        with client.TestClient(names["app"]) as server:
            (hit,) = server.get("/search", params={"q": "how do whales sleep", "k": 1}).json()
            assert hit["key"] == "whales.txt"
            refused = server.get("/search", params={"q": "x", "where": "year >"})
            assert refused.status_code == 422 and "year >" in refused.json()["detail"]
    finally:
        gc.unfreeze()
    exec(mirroring, {})
    path = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    for i in range(8):
        (tmp_path / "backups" / f"2001-01-0{i + 1}.index").mkdir(parents=True)
    for script in blocks(page, "bash"):
        name = re.findall(r"^# (\w+\.sh)$", script, re.MULTILINE)[0]
        (tmp_path / name).write_text(script)
        subprocess.run(["bash", tmp_path / name], check=True, env=path, capture_output=True)
    *old, today = sorted(folder.name for folder in (tmp_path / "backups").iterdir())
    assert old == [f"2001-01-0{i}.index" for i in range(3, 9)]
    with SearchEngine.open(tmp_path / "backups" / today) as engine:
        assert len(engine) == 2
    (tmp_path / "workers.py").write_text(workers)
    done = subprocess.run(
        [sys.executable, "workers.py"], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[['whales.txt'], ['birds.txt']]\n"


@pytest.mark.long
def test_measuring_page(tmp_path: Path) -> None:
    """Its commands in their order, on the sample data and vectors of the width of its encoder."""
    (tmp_path / "data").symlink_to(REPOSITORY / "data")
    (tmp_path / "questions.jsonl").symlink_to(REPOSITORY / "data" / "queries.jsonl")
    (tmp_path / "test.tsv").symlink_to(REPOSITORY / "data" / "qrels" / "test.tsv")
    assert run("index", "data", "my.index", cwd=tmp_path).returncode == 0
    texts = (REPOSITORY / "data" / "pairs.tsv").read_text().split()
    (tmp_path / "questions.txt").write_text("\n".join(sorted({*texts})[:200]))
    rows = np.random.default_rng(0).standard_normal((1400, 384))
    np.save(tmp_path / "vectors.npy", rows[:1200])
    np.save(tmp_path / "queries.npy", rows[1200:])
    page = (REPOSITORY / "docs" / "measuring.md").read_text()
    assert run_commands(page, tmp_path) == 8


def run_commands(page: str, folder: Path) -> int:
    """Run a page's searchengine commands in their order; how many there are."""
    lines = [line for block in blocks(page, "sh") for line in block.splitlines()]
    commands = [shlex.split(line) for line in lines if line.startswith("searchengine")]
    for _, *arguments in commands:
        done = run(*arguments, cwd=folder)
        assert done.returncode == 0, (arguments, done.stderr)
    return len(commands)


@pytest.mark.long
def test_encoding_page(tmp_path: Path) -> None:
    """Its commands and its code, on a collection as the README makes it."""
    if not levels():
        pytest.skip("the kernel is not compiled")
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "whales.txt").write_text("A whale rests one half of its brain.")
    assert run_commands("```sh\nsearchengine index notes/ notes.index\n```", tmp_path) == 1
    page = (REPOSITORY / "docs" / "encoders.md").read_text()
    assert run_commands(page, tmp_path) == 3
    programs = blocks(page.replace("my-model", "starter"), "python")
    own = 'SearchEngine.create("own", Letters()).add([{"_id": "1", "text": "a big cab"}])'
    printed = run_alone("\n".join((*programs, own)), tmp_path)
    assert printed.startswith("torch fp32 (1, 384)\n[Hit(")
    assert Encoder.load(tmp_path / "shallow").layers == 4


def test_the_install_lines_work_in_a_clone() -> None:
    """The clone's line comes before the one that needs a release; torch is the one it pins."""
    (pinned,) = re.findall(r"^torch==(.+)$", (REPOSITORY / "constraints.txt").read_text(), re.M)
    assert re.findall(r"torch==(\S+)", START) == [pinned]
    clone = "install -c constraints.txt ."
    assert START.index("whl/cpu") < START.index(f'{clone[:-1]}".[starter,train]"')
    for page in (README, START):
        assert page.index(clone) < page.index("`pip install searchengine`")


def pages() -> list[Path]:
    top = [REPOSITORY / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
    return [*top, *(REPOSITORY / "docs").glob("*.md")]


def anchors(page: Path) -> set[str]:
    """The names of a page's headings, as GitHub and the site make them."""
    without_code = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", without_code, re.MULTILINE)
    plain = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings)
    return {heading.replace(" ", "-") for heading in plain}


def test_local_links_lead_somewhere() -> None:
    for page in pages():
        for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
            if link.startswith("http"):
                continue
            name, _, anchor = link.partition("#")
            target = page.parent / name if name else page
            assert target.exists(), (page.name, link)
            if anchor and target.name != "cli.md":
                assert anchor in anchors(target), (page.name, link)


def commands_of(text: str) -> Iterator[list[str]]:
    """The words of every searchengine command in a page: blocks, indented lines and `code`."""
    text = text.replace("\\\n", " ")
    lines = re.findall(r"^(?: {4}|\$ )?(searchengine [a-z].*)$", text, re.MULTILINE)
    for line in [*lines, *re.findall(r"`(searchengine [a-z][^`]*)`", text)]:
        with contextlib.suppress(ValueError):  # a quotation mark that code in a sentence opens
            yield shlex.split(line, comments=True)[1:]


def test_commands_and_options_that_pages_name_exist() -> None:
    checked = 0
    for page in pages():
        for words in commands_of(page.read_text()):
            command: Any = cli
            while isinstance(command, click.Group) and words:
                name = words.pop(0)
                command = command.get_command(click.Context(command), name)
                assert command is not None, (page.name, name)
            params = command.get_params(click.Context(command))
            options = {name for param in params for name in (*param.opts, *param.secondary_opts)}
            for word in words:
                option = word.partition("=")[0]
                if re.fullmatch(r"--[a-z][a-z-]*", option):
                    assert option in options, (page.name, command.name, option)
                    checked += 1
    assert checked > 100


def test_format_page_reads_a_collection(tmp_path: Path) -> None:
    page = (REPOSITORY / "docs" / "format.md").read_text()
    (program,) = blocks(page[: page.index("## Segments")], "python")
    documents = [{"_id": str(i), "title": "x" * (i + 1), "text": "a bee"} for i in range(3)]
    with SearchEngine.create(tmp_path / "c", WordLengths()) as engine:
        engine.add(documents)
        engine.delete(["1"])
    names: dict[str, object] = {"collection": str(tmp_path / "c")}
    exec(program, names)
    texts = [f"{title} {text}" for _, title, text in names["texts"]]  # type: ignore[attr-defined]
    assert names["vectors"] == pytest.approx(WordLengths().encode(texts), abs=1e-3)
    names["db"].close()  # type: ignore[attr-defined]
