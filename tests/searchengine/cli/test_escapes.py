"""Nothing that a document, a question or a file name holds reaches the terminal as it is."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import command_line
import pytest
from conftest import WordLengths

from searchengine import SearchEngine
from searchengine.cli import console

EVIL = "\x1b]0;owned\x07 \x9b31m \r \x7f \u202egnp\u2069"
SHOWN = r"\x1b]0;owned\x07 \x9b31m \r \x7f \u202egnp\u2069"
FIELD = "\u202ename\x9b"
FORBIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def run(*arguments: str | Path) -> command_line.Done:
    """Run a command; whatever it prints must be harmless."""
    done = command_line.run(*arguments)
    assert not FORBIDDEN.search(done.stdout + done.stderr), repr(done)
    return done


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an evil name, and in it an evil collection, its questions and judgements."""
    folder = tmp_path_factory.mktemp("evil") / f"a{EVIL}"
    folder.mkdir()
    documents = [
        {"_id": f"{EVIL}{i}", "title": EVIL, "text": f"whales sleep {EVIL} {i}", FIELD: EVIL}
        for i in range(3)
    ]
    corpus = folder / f"{EVIL}.jsonl"
    corpus.write_text("".join(json.dumps(document) + "\n" for document in documents))
    done = run("index", corpus, folder / "c.index", "--field", f"`{FIELD}`")
    assert done.returncode == 0, done.stderr
    assert f"3 added in {folder.parent}" in done.stderr
    assert SHOWN in done.stderr
    question = {"_id": f"q{EVIL}".replace("\r", ""), "text": f"whales {EVIL}"}
    (folder / "queries.jsonl").write_text(json.dumps(question) + "\n")
    (folder / "qrels.tsv").write_text(
        f"query-id\tcorpus-id\tscore\nq{EVIL}\t{EVIL}1\t2\n".replace("\r", ""), newline=""
    )
    return folder


def test_escaped_are_controls_and_overrides_and_nothing_else() -> None:
    assert console.printable(EVIL) == SHOWN
    plain = "a\tb\nc é 말 \u200d👩\u00a0–"
    assert console.printable(plain) == plain
    assert console.printable("\udc9b\x00") == r"\udc9b\x00"
    assert FORBIDDEN.sub("", console.printable("".join(map(chr, range(0x110000))))) == (
        console.printable("".join(map(chr, range(0x110000))))
    )


@pytest.mark.parametrize(
    "arguments",
    [
        ("search", "c.index", "whales"),
        ("search", "c.index", "whales", "--mode", "text"),
        ("search", "c.index", "whales", "--exact"),
        ("similar", "c.index", f"{EVIL}0"),
        ("explain", "c.index", "whales", f"{EVIL}0"),
        ("explain", "c.index", "whales", f"gone{EVIL}"),
        ("info", "c.index"),
        ("verify", "c.index"),
        ("update", "c.index", f"{EVIL}0", f"x={EVIL}"),
        ("delete", "c.index", f"gone{EVIL}"),
        ("delete", "c.index", "--where", f"`{FIELD}` = '{EVIL}x'"),
        ("bench", "c.index", "--queries", "queries.jsonl"),
        ("evaluate", "retrieval", "c.index", "--queries", "queries.jsonl", "--qrels", "qrels.tsv"),
        ("search", f"gone{EVIL}", "x"),
        ("index", f"gone{EVIL}.jsonl", "n"),
        ("search", "c.index", "x", "-k", f"{EVIL}"),
        ("search", "c.index", "x", "--group-by", f"{EVIL}"),
        ("similar", "c.index", f"gone{EVIL}"),
        ("backup", "c.index", "c.index"),
        (f"gone{EVIL}",),
        (f"--gone{EVIL}",),
    ],
    ids=lambda arguments: " ".join(arguments[::2]).encode("ascii", "ignore").decode()[:30],
)
def test_what_commands_print_is_escaped(folder: Path, arguments: tuple[str, ...]) -> None:
    paths = [folder / name if (folder / name).exists() else name for name in arguments]
    done = run(*paths)
    assert (done.stdout + done.stderr).strip()
    if done.returncode == 2:
        assert r"\x1b]0;owned\x07" in done.stderr


def test_hits_are_shown_escaped_and_json_keeps_their_values(folder: Path) -> None:
    shown = run("search", folder / "c.index", "whales")
    assert f"  {SHOWN}0  {SHOWN}\n" in shown.stdout
    hits = json.loads(run("search", folder / "c.index", "whales", "--json").stdout)["hits"]
    assert {hit["title"] for hit in hits} == {EVIL}
    with SearchEngine.open(folder / "c.index", command_line.shared_encoder("starter")) as engine:
        (hit, *_) = engine.search("whales", k=1)
        assert EVIL in str(hit), "print(hit) in Python shows the document as it is"


def test_a_terminal_that_cannot_encode_a_text_shows_it_escaped(tmp_path: Path) -> None:
    with SearchEngine.create(tmp_path / "c", WordLengths()) as engine:
        engine.add([{"_id": "고래", "text": "👩 é"}])
    command = [Path(sys.executable).with_name("searchengine"), "list", tmp_path / "c"]
    environment = {**os.environ, "PYTHONIOENCODING": "cp1252"}
    plain, as_json = (
        subprocess.run([*command, *more], capture_output=True, env=environment, check=True).stdout
        for more in ((), ("--json",))
    )
    assert plain.decode("cp1252").strip() == r"\uace0\ub798  \U0001f469 é"
    assert json.loads(as_json)[0]["_id"] == "고래"


def test_progress_and_tables_escape_and_read_no_markup(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # bars, as on a terminal
    with console.steps() as progress:
        progress(f"[red]{EVIL}", 1, 2)
    console.show_rows([{f"[b]{EVIL}": f"[/]{EVIL}", "n": 1.5}], EVIL)
    console.note(f"[/]{EVIL}")
    # Without the colours and cursor movements of rich itself.
    out, err = (re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text) for text in capsys.readouterr())
    assert not FORBIDDEN.search(out) and not FORBIDDEN.search(err.replace("\r", ""))
    assert f"[b]{SHOWN}" in out and f"[/]{SHOWN}" in out and f"[/]{SHOWN}" in err
    assert "[red]" in err


def test_log_messages_are_escaped() -> None:
    program = (
        "import logging, sys; from searchengine.cli import cli\n"
        "cli.commands['verify'].callback = lambda **_: "
        "logging.getLogger('x').warning(sys.argv[1])\n"
        "cli(['verify', 'x'])"
    )
    done = subprocess.run([sys.executable, "-c", program, EVIL], capture_output=True)
    assert SHOWN in done.stderr.decode() and b"\x1b" not in done.stderr
