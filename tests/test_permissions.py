"""Published files follow the umask; an error names a file that this user may not read."""

import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from conftest import WordLengths
from faults import in_child
from tiny_model import write_model2vec, write_sentence_transformer

from searchengine import SearchEngine
from searchengine.corpus.files import Unread, read_corpus
from searchengine.errors import SearchEngineError
from searchengine.trainer.encoder import Encoder
from searchengine.trainer.files import new_folder

NOBODY = 65534
DENIED = "this user may not read it; change its owner or its mode"


@pytest.mark.parametrize("umask", [0o027, 0o002], ids=oct)
def test_published_files_follow_the_umask(tmp_path: Path, umask: int) -> None:
    model = write_sentence_transformer(tmp_path / "tiny")
    before = os.umask(umask)
    try:
        Encoder.load(model).save(tmp_path / "saved")
        with new_folder(tmp_path / "static") as new:
            write_model2vec(new / "inside")
        with SearchEngine.create(tmp_path / "c.index", WordLengths()) as engine:
            engine.add([{"_id": str(i), "text": "x" * (i + 1)} for i in range(8)])
            engine.optimize()
            engine.backup(tmp_path / "copy.index")
            engine.export(tmp_path / "exported")
    finally:
        os.umask(before)
    for name in ("saved", "static", "c.index", "copy.index", "exported"):
        files = [each for each in (tmp_path / name).rglob("*") if each.is_file()]
        modes = {each.name: oct(stat.S_IMODE(each.stat().st_mode)) for each in files}
        assert modes
        for file, mode in modes.items():
            assert file.endswith(".lock") or mode == oct(0o666 & ~umask), file


@pytest.fixture
def shown() -> Iterator[Path]:
    """A folder that other users can enter, unlike pytest's."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        yield Path(folder)


def refused(work: Callable[[], Any]) -> str:
    """The error of `work`, done by a user who is not root, in a forked child."""

    def child(say: Callable[[Any], None]) -> None:
        if os.getuid() == 0:
            os.setgid(NOBODY)
            os.setuid(NOBODY)
        try:
            say(f"no error: {work()}")
        except SearchEngineError as error:
            say(str(error))

    ended = in_child(child)
    assert ended.problem is None, ended.problem
    (message,) = ended.said
    return str(message)


@pytest.mark.parametrize("name", ["", "model.safetensors", "config.json"])
@pytest.mark.parametrize("write", [write_sentence_transformer, write_model2vec])
def test_a_model_that_may_not_be_read(
    shown: Path, write: Callable[[Path], Path], name: str
) -> None:
    model = write(shown / "model")
    Encoder.load(model).encode(["a whale"])  # imports what this needs
    os.chmod(model / "model.safetensors", 0o644)
    os.chmod(model / name, 0)
    assert refused(lambda: Encoder.load(model)) == f"{model / name}: {DENIED}"
    os.chmod(model / name, 0o700)


@pytest.mark.parametrize("name", ["", "segments", "segments/000001/vectors.faiss", "documents.db"])
def test_a_collection_that_may_not_be_read(shown: Path, name: str) -> None:
    path = shown / "c.index"
    with SearchEngine.create(path, WordLengths()) as engine:
        engine.add([{"_id": str(i), "text": "x" * (i + 1)} for i in range(8)])
        engine.search("xx")
    os.chmod(path / name, 0)
    message = refused(lambda: SearchEngine.open(path, WordLengths()).search("xx"))
    os.chmod(path / name, 0o700)
    if name == "documents.db":  # which nobody but SQLite opens
        denied = f"this user cannot read {path / name}: change its owner or its mode"
        assert message == f"{path / name}: unable to open database file; {denied}"
    else:
        place, _, rest = message.partition(": ")
        assert Path(place).is_relative_to(path / name) and rest == DENIED


@pytest.mark.parametrize("name", ["a.jsonl", "b.txt", "c.csv"])
def test_a_corpus_that_may_not_be_read(shown: Path, name: str) -> None:
    (shown / name).write_text('{"_id": "1", "text": "x"}\n')
    with suppress(SearchEngineError):
        list(read_corpus(shown / name))  # imports what this needs
    (shown / name).chmod(0)
    assert refused(lambda: list(read_corpus(shown / name))) == f"{shown / name}: {DENIED}"


def test_a_folder_of_a_corpus_that_may_not_be_read(shown: Path) -> None:
    """Its files are named, not removed from a mirror: they may still be there."""
    (hidden := shown / "notes" / "two").mkdir(parents=True)
    for path in (hidden / "c.txt", shown / "notes" / "a.txt"):
        path.write_text("ccc")
    with SearchEngine.create(shown / "c.index", WordLengths()) as engine:
        engine.mirror(shown / "notes")
    hidden.chmod(0)

    def mirror() -> object:
        with SearchEngine.open(shown / "c.index", WordLengths()) as engine:
            return engine.mirror(shown / "notes")

    def read_others() -> object:
        unread = Unread()
        return [d.key for d in read_corpus(shown / "notes", unread)], unread.failed.first

    for work in (mirror, lambda: list(read_corpus(shown / "notes"))):
        assert refused(work) == f"{hidden}: {DENIED}"
    assert refused(read_others) == f"no error: {(['a.txt'], [f'{hidden}: {DENIED}'])}"
    hidden.chmod(0o700)
    with SearchEngine.open(shown / "c.index", WordLengths()) as engine:
        assert set(engine.keys()) == {"a.txt", "two/c.txt"}
