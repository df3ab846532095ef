"""The command line as a user runs it: results, messages, exit codes, streams, signals."""

import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TextIO

import pytest
from command_line import COMMAND, run, run_json
from conftest import limited
from tiny_model import write_model2vec

CORPUS = """\
{"_id": "whale", "title": "Whales", "text": "A whale rests one half of its brain.", "year": 2016}
{"_id": "bread", "text": "Dough rises while yeast makes gas.", "year": 2011}
{"_id": "volcano", "text": "Molten rock under pressure breaks through the crust.", "year": 2020}
{"_id": "empty", "text": ""}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a corpus, questions and judgements, and the collection made from them."""
    folder = tmp_path_factory.mktemp("cli")
    (folder / "corpus.jsonl").write_text(CORPUS)
    (folder / "qrels.tsv").write_text("query-id\tcorpus-id\tscore\nq1\twhale\t2\n")
    done = run("index", folder / "corpus.jsonl", folder / "c.index")
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    assert "3 added in" in done.stderr and "3 documents now" in done.stderr
    assert "1 without text, left out:\n  empty" in done.stderr
    return folder


def test_search(folder: Path) -> None:
    done = run("search", folder / "c.index", "how do whales sleep", "-k", "1")
    assert done.returncode == 0
    assert done.stdout.splitlines()[0].split()[1:] == ["whale", "Whales"]
    found = run_json("search", folder / "c.index", "how do whales sleep", "--where", "year < 2015")
    (hit,) = found["hits"]
    shown = "score key title text metadata start end snippet scores highlights"
    assert (hit["key"], {*hit}) == ("bread", {*shown.split()})


def test_info_and_verify(folder: Path) -> None:
    info = run_json("info", folder / "c.index")
    assert (info["documents"], info["segments"], info["dim"]) == (3, 1, 384)
    assert (info["encoder"], info["tuning"]) == ("starter", None)
    assert run("verify", folder / "c.index").stdout.strip().endswith("is whole")


def test_index_adds_to_a_collection_and_knows_what_is_there(folder: Path, tmp_path: Path) -> None:
    collection = tmp_path / "c"
    shutil.copytree(folder / "c.index", collection)
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.txt").write_text("Glaciers grind rock to flour.")
    report = run_json("index", tmp_path / "notes", collection)
    assert (report["added"], report["documents"], report["bad"]["count"]) == (1, 4, 0)
    again = run("index", tmp_path / "notes", collection)
    assert (again.returncode, again.stdout) == (0, "")
    assert f"1 unchanged in {collection}, 4 documents now" in again.stderr
    (tmp_path / "notes" / "a.txt").write_text("Glaciers carve valleys.")
    report = run_json("index", tmp_path / "notes", collection)
    assert (report["changed"], report["unchanged"], report["documents"]) == (1, 0, 4)
    (tmp_path / "twice.jsonl").write_text(2 * '{"_id": "a", "text": "one"}\n')
    twice = one_sentence(run("index", tmp_path / "twice.jsonl", collection))
    assert "twice.jsonl:2: the key 'a' occurs twice" in twice
    assert "--skip-bad skips malformed records" in twice
    other = run("index", tmp_path / "notes", collection, "--set", "prefix=32")
    assert other.returncode == 2
    assert "has prefix 128, got 32" in other.stderr
    assert run_json("info", collection)["documents"] == 4


def test_skip_bad(tmp_path: Path) -> None:
    (tmp_path / "c.jsonl").write_text(CORPUS + "{broken\n" + CORPUS.splitlines()[0] + "\n")
    whole = run("index", tmp_path / "c.jsonl", tmp_path / "c.index")
    assert whole.returncode == 2
    assert f"{tmp_path / 'c.jsonl'}:5: not JSON" in whole.stderr
    report = run_json("index", tmp_path / "c.jsonl", tmp_path / "c.index", "--skip-bad")
    assert (report["added"], report["without_text"]) == (3, {"count": 1, "first": ["empty"]})
    assert report["bad"]["count"] == 2
    places = [message.split(": ")[0] for message in report["bad"]["first"]]
    assert sorted(places) == [f"{tmp_path / 'c.jsonl'}:5", f"{tmp_path / 'c.jsonl'}:6"]


def test_nothing_to_index_says_why(tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    last = one_sentence(run("index", tmp_path / "notes", tmp_path / "c.index"))
    assert "no files to read in this folder; expected a .jsonl" in last
    assert "--skip-bad" not in last  # there is no record to skip
    (tmp_path / "c.jsonl").write_text("{broken\n[]\n" + "{broken\n" * 3)
    last = one_sentence(run("index", tmp_path / "c.jsonl", tmp_path / "c.index", "--skip-bad"))
    assert "no document to index" in last
    assert f"5 bad records, the first: {tmp_path / 'c.jsonl'}:1: not JSON" in last
    assert not (tmp_path / "c.index").exists()


def test_corpus_and_collection_are_apart(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    notes.mkdir()
    (notes / "a.txt").write_text("Glaciers grind rock to flour.")
    (tmp_path / "link").symlink_to(notes)
    for corpus, collection in ((notes, notes), (notes, tmp_path / "link"), (notes, tmp_path)):
        last = one_sentence(run("index", corpus, collection))
        assert "it is no collection, and not empty; choose another folder" in last
    assert run_json("index", notes, notes / "c.index")["added"] == 1
    assert run_json("index", notes, notes / "c.index")["unchanged"] == 1
    assert (notes / "a.txt").read_text() == "Glaciers grind rock to flour."


def test_fields_and_keys_of_a_table(tmp_path: Path) -> None:
    (tmp_path / "c.csv").write_text("title,Body\nWhales,They sleep by halves.\n")
    collection = tmp_path / "c.index"
    refused = one_sentence(run("index", tmp_path / "c.csv", collection))
    assert "no field 'text' (fields: 'title', 'Body')" in refused
    assert "--text-field body" in refused and not collection.exists()
    options = ("--text-field", "body", "--key-prefix", "papers:")
    assert run_json("index", tmp_path / "c.csv", collection, *options)["added"] == 1
    (tmp_path / "c.csv").write_text("title,Body\nBread,It rises.\nWhales,They sleep by halves.\n")
    report = run_json("index", tmp_path / "c.csv", collection, *options)
    assert (report["added"], report["changed"], report["unchanged"]) == (1, 0, 1)
    (hit,) = run_json("search", collection, "Whales", "-k", "1")["hits"]
    assert re.fullmatch(r"papers:[0-9a-f]{32}", hit["key"])
    assert (hit["title"], hit["text"]) == ("Whales", "They sleep by halves.")


def test_a_shell_sees_streams_and_exit_codes(folder: Path) -> None:
    def shell(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run([COMMAND, *arguments], capture_output=True, text=True, timeout=300)

    done = shell("search", folder / "c.index", "dough", "--mode", "text", "-k", "1")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[0].split()[1:] == ["bread"]
    assert "no such collection" in one_sentence(shell("search", folder / "gone", "x"))


def one_sentence(done: subprocess.CompletedProcess[str]) -> str:
    """The message of a run that must have failed cleanly."""
    assert done.returncode == 2, (done.returncode, done.stdout, done.stderr)
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    return done.stderr.strip().splitlines()[-1]


def test_bad_input_is_one_sentence_and_exit_code_2(folder: Path, tmp_path: Path) -> None:
    index, qrels = folder / "c.index", folder / "qrels.tsv"
    empty = tmp_path / "empty.jsonl"
    empty.write_text("")
    latin = tmp_path / "latin.csv"
    latin.write_bytes(b"_id,text\n1,caf\xe9\n")
    (tmp_path / "folder").mkdir()
    cases: list[tuple[tuple[str | Path, ...], str]] = [
        (("search", tmp_path / "gone", "x"), "no such collection"),
        (("search", tmp_path / "folder", "x"), "is not a collection"),
        (("search", index, "  "), "the query is empty"),
        (("search", index, "x", "-k", "0"), "k must be a whole number of at least 1"),
        (("search", index, "x", "--encoder", "starter-768"), "was built by the encoder starter"),
        (("search", index, "x", "--encoder", tmp_path / "gone"), "no model at"),
        (("index", tmp_path / "gone.jsonl", tmp_path / "n"), "no such file or folder"),
        (("index", empty, tmp_path / "n"), "no document to index"),
        (("index", empty, tmp_path / "n", "--prune"), "--prune needs a folder of files"),
        (("index", latin, tmp_path / "n"), "latin.csv:2: not UTF-8 (byte 0xe9)"),
        (
            ("index", folder / "corpus.jsonl", tmp_path / "n", "--set", "prefix=500"),
            "is wider than the vectors (384)",
        ),
        (("evaluate", "sts", tmp_path / "gone.tsv"), "no such file"),
        (("evaluate", "sts", qrels), "has the columns 'query-id, corpus-id, score'"),
    ]
    for arguments, message in cases:
        assert message in one_sentence(run(*arguments)), arguments
    mistaken = run("search", index, "x", "--where", "year >")
    assert mistaken.returncode == 2
    assert "expected a value, got the end (at its end)" in mistaken.stderr
    usage = run("search", index)
    assert usage.returncode == 2
    assert "Missing argument 'QUESTION'" in usage.stderr
    assert run_json("info", index)["documents"] == 3
    assert not (tmp_path / "n").exists()


def indexing(*arguments: str | Path, before: str = "") -> subprocess.Popen[str]:
    """An index command that goes on; end it by `interrupted`. `before`: what runs first."""
    ingest = "from searchengine.ingest import ingestion, pipeline"
    # A shell starts what runs in its background with SIGINT ignored.
    heeds = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    program = f"{heeds}; {ingest}; from searchengine.cli import cli; {before}\ncli()"
    command = [sys.executable, "-X", "faulthandler", "-c", program, "index", *map(str, arguments)]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)


def wait_until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@contextmanager
def feeding(fifo: Path, process: subprocess.Popen[str]) -> Iterator[TextIO]:
    """A FIFO to write to, once the process reads it; it waits for more throughout the block."""
    found: list[int] = []

    def read() -> bool:
        assert process.poll() is None, process.communicate()
        with suppress(OSError):  # nobody reads it yet
            found.append(os.open(fifo, os.O_WRONLY | os.O_NONBLOCK))
        return bool(found)

    wait_until(read)
    os.set_blocking(found[0], True)
    with open(found[0], "w") as stream:
        yield stream


def interrupted(
    process: subprocess.Popen[str], number: signal.Signals = signal.SIGINT, status: int = 130
) -> str:
    """Press Ctrl-C, or send another signal; the last line on stderr."""
    for _ in range(6):
        # Again if need be: a signal that comes in the instant before a read blocks is only
        # noticed when the read returns, in any Python program.
        process.send_signal(number)
        with suppress(subprocess.TimeoutExpired):
            _, stderr = process.communicate(timeout=30)
            break
    else:
        process.send_signal(signal.SIGABRT)  # faulthandler writes where each thread is
        _, stderr = process.communicate()
    assert process.returncode == status, stderr
    assert "Traceback" not in stderr
    return stderr.strip().splitlines()[-1]


def by_shell(script: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """What a shell script prints that calls the command, $1."""
    command = ["bash", "-c", script, "bash", COMMAND, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, errors="surrogateescape")


def test_errors_of_the_system_are_one_sentence_with_the_way_out(folder: Path) -> None:
    run("info", folder / "c.index")  # imports what this needs
    with limited(resource.RLIMIT_NOFILE, 3):
        done = run("info", folder / "c.index")
    assert "this process has as many files open as it may (3 of ulimit -n)" in one_sentence(done)
    full = by_shell('"$1" info "$2" > /dev/full', folder / "c.index")
    assert "No space left on device; free some space" in one_sentence(full)


def test_a_path_that_is_not_utf_8_is_refused(folder: Path, tmp_path: Path) -> None:
    path = os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9")
    done = by_shell('"$1" index "$2" "$3"', folder / "corpus.jsonl", path)
    assert "the name of a collection must be UTF-8" in one_sentence(done)
    assert list(tmp_path.iterdir()) == []
    shutil.copytree(folder / "c.index", path)
    done = by_shell('"$1" info "$2"', path)
    assert "the name of a collection must be UTF-8" in one_sentence(done)


@pytest.mark.long
def test_demo_leaves_a_model_and_a_collection(tmp_path: Path) -> None:
    first = run("demo", cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    answers = re.findall(r"^0\.\d{3}  (\S+)", first.stdout, re.MULTILINE)
    assert len(answers) == 9
    assert answers[0] == "whales-01"
    assert re.search(r"flat fp16 \d+ → [^│]+│ (1|0)\.\d+ +│", first.stdout), first.stdout
    model = json.loads((tmp_path / "demo/model/config_sentence_transformers.json").read_text())
    assert model["matryoshka_dims"][0] == 384  # the base is kept, unless training is better
    assert run_json("info", tmp_path / "demo" / "demo.index")["documents"] == 252
    assert "demo exists; remove it" in one_sentence(run("demo", cwd=tmp_path))


def test_a_folder_of_files(tmp_path: Path) -> None:
    folder, index = tmp_path / "notes", tmp_path / "n.index"
    folder.mkdir()
    (folder / "a.md").write_text("---\nyear: 2016\n---\n# Whales\n\nSea.\n\n## Sleep\n\nBy halves.")
    (folder / "b.html").write_text("<title>Bread</title>Dough rises.")
    (folder / "c.json").write_text('[{"id": 1, "text": "Owls hunt."}]')
    (folder / "broken.pdf").write_text("only text")
    (folder / "d.png").write_bytes(b"")
    (folder / "e.txt").write_bytes("고래는 뇌의 절반씩 번갈아 가며 잠을 잔다.".encode("cp949"))
    done = run("index", folder, index, "--key-prefix", "n/")
    assert done.returncode == 0, done.stderr
    assert "4 added in" in done.stderr
    assert f"1 unreadable, left out:\n  {folder}/broken.pdf: not a PDF file, or" in done.stderr
    assert done.stderr.endswith("1 entry of other kinds skipped: 1 .png\n")
    report = run_json("index", folder, index, "--key-prefix", "n/")
    assert (report["unchanged"], report["skipped"]) == (4, {".png": 1})
    assert report["unreadable"]["count"] == 1
    (hit,) = run_json("search", index, "halves", "-k", "1", "--mode", "text")["hits"]
    assert (hit["key"], hit["title"]) == ("n/a.md", "Whales")
    keys = [document["_id"] for document in run_json("list", index)]
    assert keys == ["n/a.md", "n/b.html", "n/c.json#1", "n/e.txt"]


def test_standard_input(tmp_path: Path) -> None:
    done = run("index", "-", tmp_path / "c", input='{"_id": "a", "text": "whales"}\n')
    assert done.returncode == 0 and "1 added in" in done.stderr
    assert [document["text"] for document in run_json("list", tmp_path / "c")] == ["whales"]


def test_json_has_the_same_keys_whatever_the_options(tmp_path: Path) -> None:
    """Lists of an answer may be empty; its names are the same."""
    encoder, path = write_model2vec(tmp_path / "static"), tmp_path / "c"
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.txt").write_text("whales sleep")
    (tmp_path / "notes" / "b.png").write_bytes(b"")
    search = ("search", path, "whales")
    rounds: list[tuple[tuple[str | Path, ...], tuple[tuple[str | Path, ...], ...]]] = [
        (
            ("index", tmp_path / "notes", path, "--encoder", encoder),
            ((), ("--prune",), ("--skip-bad",)),
        ),
        (search, ((), ("--facet", "path"), ("--exact",), ("--where", "size > 1000"))),
        (("reindex", path), (("--encoder", encoder), ("--discard",))),
        (("delete", path), (("x",), ("--where", "size = 0"))),
    ]
    for command, options in rounds:
        assert len({tuple(sorted(run_json(*command, *more))) for more in options}) == 1, command
    nothing: dict[str, Any] = {"hits": [], "facets": {}, "replaced": {}, "notes": []}
    assert run_json(*search, "--where", "size > 1000") == nothing | {"exact": False}
