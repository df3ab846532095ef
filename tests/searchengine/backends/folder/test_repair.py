"""A damaged collection is mended from its texts, and then answers as a new one does."""

import json
import os
import re
import shutil
import sqlite3
import subprocess
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from conftest import REPOSITORY, WordLengths

from searchengine import SearchEngine
from searchengine.backends.filters.parser import moment
from searchengine.cli import cli
from searchengine.errors import CollectionBusy, CollectionError, EncoderMismatch
from searchengine.indexer.storage.files import _checksum
from searchengine.upkeep.repair import repair

FILLER = " ".join("abcdefgh"[i % 8] * (i % 3 + 1) for i in range(60))
DOCUMENTS: list[dict[str, Any]] = [
    {
        "_id": f"d{i}",
        "title": f"t{i}",
        "text": f"{'x' * (i % 11 + 1)} {'y' * (i % 7 + 1)} {FILLER}",
        "year": 1990 + i,
    }
    for i in range(90)
]
QUESTIONS = ["xxx yyyy", "xxxxxxxx", "yy x", "x"]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three segments that share a rotation; documents replaced and deleted; closed."""
    path = tmp_path_factory.mktemp("repair") / "words.index"
    with SearchEngine.create(path, WordLengths(), {"prefix": 8}) as engine:
        engine.index_fields("year")
        for start, end in ((0, 40), (40, 70), (70, 90)):
            engine.add(DOCUMENTS[start:end])
        engine.delete(["d3", "d50"])
        assert len(engine.collection.segments) == 3
    return path


@pytest.fixture
def path(source: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(source, tmp_path / "words.index"))


@pytest.fixture(scope="module")
def expected(source: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """What a collection built of the same documents answers."""
    path = tmp_path_factory.mktemp("new") / "words.index"
    with SearchEngine.create(path, WordLengths(), {"prefix": 8}) as engine:
        engine.add(each for each in DOCUMENTS if each["_id"] not in ("d3", "d50"))
        return answers(engine)


def answers(engine: SearchEngine, without: str | None = None) -> list[Any]:
    """Documents and their scores: by vector, with a filter, and by words."""
    found = []
    for question in QUESTIONS:
        for options in ({}, {"where": "year > 2030"}, {"mode": "text"}):
            hits = engine.search(question, k=200, **options)  # type: ignore[arg-type]
            scores = {hit.key: round(hit.score, 2) for hit in hits if hit.key != without}
            found.append(scores if "mode" not in options else set(scores))
    return found


def close(first: list[Any], second: list[Any]) -> bool:
    return all(
        one == two
        if isinstance(one, set)
        else one.keys() == two.keys() and all(abs(one[key] - two[key]) < 0.02 for key in one)
        for one, two in zip(first, second, strict=True)
    )


def check(path: Path, expected: list[Any]) -> None:
    """Whole, searchable, and it can be written to."""
    with SearchEngine.open(path, WordLengths()) as engine:
        engine.verify()
        assert close(answers(engine), expected)
        engine.add([{"_id": "new", "text": "zz"}])
        engine.optimize()
        engine.verify()
        assert engine.search("zz", mode="text")[0].key == "new"


def flip(file: Path, place: int = -2) -> None:
    data = bytearray(file.read_bytes())
    data[place] ^= 1
    file.write_bytes(data)


def in_segment(number: int, name: str, act: Callable[[Path], object]) -> Callable[[Path], object]:
    return lambda path: act(sorted((path / "segments").iterdir())[number] / name)


def sql(*statements: str) -> Callable[[Path], object]:
    def act(path: Path) -> None:
        with closing(sqlite3.connect(path / "documents.db")) as db:
            db.create_function("moment", 1, moment)
            for statement in statements:
                db.execute(statement)
            db.commit()

    return act


def flip_shared_rotation(path: Path) -> None:
    """Flip a bit where it is: the three segments name the same file."""
    with (path / "segments" / "000001" / "rotation.npy").open("r+b") as file:
        file.seek(500)
        byte = file.read(1)[0]
        file.seek(500)
        file.write(bytes([byte ^ 1]))
    for other in ("000002", "000003"):
        target = path / "segments" / other / "rotation.npy"
        target.unlink()
        os.link(path / "segments" / "000001" / "rotation.npy", target)


def setting(name: str, value: str) -> Callable[[Path], object]:
    return sql(f"INSERT OR REPLACE INTO settings VALUES ('{name}', '{value}')")


def pending(details: str) -> Callable[[Path], object]:
    return sql(f"INSERT INTO pending VALUES (7, 'reindex', 'f', '{details}')")


def encoder_setting(part: str, value: str) -> Callable[[Path], object]:
    changed = f"json_set(value, '$.{part}', {value})"
    return sql(f"UPDATE settings SET value = {changed} WHERE name = 'encoder'")


def both(*acts: Callable[[Path], object]) -> Callable[[Path], object]:
    return lambda path: [act(path) for act in acts]


def keep_vectors_only(folder: Path) -> None:
    for file in folder.iterdir():
        if file.name not in ("manifest.json", "vectors.faiss"):
            file.unlink()


DAMAGE: dict[str, tuple[Callable[[Path], object], int]] = {
    "vectors flipped": (in_segment(0, "vectors.faiss", flip), 39),
    "coarse flipped": (in_segment(1, "coarse.faiss", flip), 0),
    "coarse cut": (in_segment(0, "coarse.faiss", lambda f: os.truncate(f, 100)), 0),
    "words flipped": (in_segment(1, "words.safetensors", flip), 0),
    "words missing": (in_segment(0, "words.safetensors", Path.unlink), 0),
    "passages flipped": (in_segment(1, "passages.npy", flip), 0),
    "manifest flipped": (in_segment(0, "manifest.json", lambda f: flip(f, 100)), 39),
    "manifest missing": (in_segment(0, "manifest.json", Path.unlink), 39),
    "rotation missing": (in_segment(2, "rotation.npy", Path.unlink), 0),
    "all but the manifest and the vectors missing": (in_segment(0, "", keep_vectors_only), 0),
    "vectors and coarse flipped": (
        both(in_segment(0, "coarse.faiss", flip), in_segment(0, "vectors.faiss", flip)),
        39,
    ),
    "coarse of one and vectors of another flipped": (
        both(in_segment(0, "coarse.faiss", flip), in_segment(2, "vectors.faiss", flip)),
        20,
    ),
    "coarse flipped, passage missing": (
        both(in_segment(0, "coarse.faiss", flip), sql("DELETE FROM passages WHERE id = 20")),
        39,
    ),
    "vectors cut": (in_segment(0, "vectors.faiss", lambda f: os.truncate(f, 700)), 39),
    "a segment missing": (in_segment(2, "", shutil.rmtree), 20),
    "the rotation of all flipped": (flip_shared_rotation, 0),
    "all segments missing": (lambda path: shutil.rmtree(path / "segments"), 88),
    "fields damaged": (sql("DELETE FROM field_values WHERE document < 9"), 0),
    "digest changed": (sql("UPDATE documents SET digest = x'00' WHERE key = 'd7'"), 1),
    "passage missing": (sql("DELETE FROM passages WHERE id = 20"), 0),
    "passage outside": (sql("UPDATE passages SET end = 99999 WHERE id = 20"), 0),
    "passage without row": (sql("UPDATE passages SET id = 5000 WHERE id = 20"), 1),
    "passage of nobody": (
        sql("PRAGMA foreign_keys = OFF", "UPDATE passages SET document = 7777 WHERE id = 20"),
        0,
    ),
    "live and deleted": (sql("INSERT INTO tombstones VALUES (20)"), 0),
    "the last segment elsewhere": (sql("UPDATE segments SET base = base + 7 WHERE id = 3"), 7),
    "passages file damaged, passage missing": (
        both(in_segment(0, "passages.npy", flip), sql("DELETE FROM passages WHERE id = 20")),
        39,
    ),
    "no next ids": (sql("DELETE FROM ids"), 0),
    "a next id that is no number": (sql("UPDATE ids SET next = 'x' WHERE kind = 'passages'"), 0),
    "segments not named": (sql("DELETE FROM segments"), 88),
    "a mode that is none": (setting("mode", '"nearly"'), 0),
    "settings that are no JSON": (setting("mode", "{"), 0),
    "pending work without details": (pending("[]"), 0),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_every_kind_of_damage_is_mended(path: Path, expected: list[Any], kind: str) -> None:
    act, encoded = DAMAGE[kind]
    act(path)
    encoder = WordLengths()
    done = repair(path, encoder)
    assert (done.whole, done.complaint, done.lost) == (True, None, ())
    assert done.damage and done.encoded == encoded
    assert sum(map(len, encoder.calls)) == encoded, "only what is damaged is encoded"
    check(path, expected)
    again = repair(path)  # nothing to do: no encoder is needed
    assert (again.damage, again.whole) == ((), True)


@pytest.mark.parametrize("name", ["rotation.npy", "coarse.faiss", "words.safetensors"])
@pytest.mark.parametrize("act", [flip, Path.unlink, lambda file: os.truncate(file, 90)])
def test_vectors_without_an_encoder_outlive_the_files_made_of_them(
    tmp_path: Path, name: str, act: Callable[[Path], object]
) -> None:
    path = tmp_path / "bare.index"
    rows = np.random.default_rng(0).standard_normal((1500, 16)).astype(np.float32)
    with SearchEngine.create(path, None, {"prefix": 8}, dim=16) as engine:
        engine.add(({"_id": f"k{i}", "text": f"word{i} bee"} for i in range(1500)), vectors=rows)
        engine.delete(["k3", "k700"])
    vectors = (path / "segments" / "000001" / "vectors.faiss").read_bytes()
    tables = dump(path)
    act(path / "segments" / "000001" / name)
    shown = CliRunner().invoke(cli, ["repair", str(path)])
    assert shown.exit_code == 0, shown.output
    assert f"000001/{name}" in shown.stdout and "lost" not in shown.stdout
    assert dump(path) == tables, "the same passages, rows and deleted rows"
    assert (path / "segments" / "000002" / "vectors.faiss").read_bytes() == vectors
    assert not (path / "segments" / "000001").exists()
    with SearchEngine.open(path) as engine:
        engine.verify()
        hits = engine.search(rows[40], k=3)
        assert hits[0].key == "k40" and hits[0].score > 0.999
        assert engine.search("word41", mode="text")[0].key == "k41"
        assert engine.search("word3", mode="text")[0].score < 1e-5  # by "word", which all have
        assert len(engine.search(rows[3], k=1500)) == 1498


def dump(path: Path) -> list[list[Any]]:
    """What the tables say of documents, passages and rows."""
    with closing(sqlite3.connect(path / "documents.db")) as db:
        return [
            db.execute(f"SELECT {columns} FROM {table} ORDER BY 1").fetchall()
            for table, columns in (
                ("documents", "*"),
                ("passages", "*"),
                ("tombstones", "*"),
                ("segments", "base, rows"),
            )
        ]


def test_a_text_that_was_changed_is_kept_and_encoded(path: Path) -> None:
    sql("UPDATE documents SET text = 'zzzzzzzzzzzzzz' WHERE key = 'd7'")(path)
    done = repair(path, WordLengths())
    assert done.whole and done.encoded == 1
    assert "('d7') have another text than was stored" in done.damage[0]
    with SearchEngine.open(path, WordLengths()) as engine:
        assert engine.search("z" * 14 + " t7", k=1)[0].key == "d7"
        assert engine.search("z" * 14, k=1, mode="text")[0].key == "d7"


def test_a_text_that_was_changed_keeps_the_vector_that_came_with_it(tmp_path: Path) -> None:
    with SearchEngine.create(path := tmp_path / "bare.index", None, dim=2) as engine:
        engine.add([{"_id": key, "text": key} for key in "ab"], vectors=np.eye(2))
    sql("UPDATE documents SET text = 'z' WHERE key = 'b'")(path)
    done = repair(path)
    assert done.whole and done.lost == () and "('b') have another text" in done.damage[0]
    with SearchEngine.open(path) as engine:
        assert engine.search([0, 1])[0].text == "z"
        assert [hit.key for hit in engine.search("z", mode="text")] == ["b"]


def test_texts_that_are_no_utf_8_are_read_as_far_as_they_can_be(path: Path) -> None:
    sql("UPDATE documents SET text = CAST(x'7a7aff7a' AS TEXT) WHERE key = 'd7'")(path)
    with SearchEngine.open(path, WordLengths()) as engine:
        with pytest.raises(CollectionError, match=r"Could not decode.*searchengine repair"):
            engine.verify()
    done = repair(path, WordLengths())
    assert (done.whole, done.encoded) == (True, 1) and "'d7'" in done.damage[-1]
    with SearchEngine.open(path, WordLengths()) as engine:
        assert engine.search("zz", k=1, mode="text")[0].text == "zz\ufffdz"
    sql("UPDATE documents SET metadata = CAST(x'7b2261223a22ff227d' AS TEXT) WHERE key = 'd10'")(
        path
    )
    done = repair(path, WordLengths())
    assert not done.whole and str(done.complaint).endswith("; restore the folder from a backup")


def test_metadata_that_are_no_json_are_reported_as_lost(path: Path) -> None:
    path = path.rename(path.with_name("my words"))
    with SearchEngine.open(path, WordLengths()) as engine:
        engine.update({"d8": {"seen": True}})
        kept = engine["d6"].metadata
    stored = "SELECT name, sql FROM sqlite_master WHERE type = 'trigger'"
    with closing(sqlite3.connect(path / "documents.db")) as db:
        triggers = dict(db.execute(stored))
    sql(*(f"DROP TRIGGER {name}" for name in triggers))(path)
    sql("UPDATE documents SET metadata = '{\"year' WHERE key IN ('d7', 'd8')")(path)
    with SearchEngine.open(path, WordLengths()) as engine:
        message = f"^{path}/documents.db is damaged .*: searchengine repair '{path}'$"
        with pytest.raises(CollectionError, match=message):
            engine.update({"d7": {"seen": True}})
        with pytest.raises(CollectionError, match=f"^{path}/documents.db is damaged .*repair"):
            engine.search("x", k=90, group_by="year")
    sql("UPDATE documents SET metadata = '7' WHERE key = 'd8'")(path)
    with (
        SearchEngine.open(path, WordLengths()) as engine,
        pytest.raises(CollectionError, match=r"in the metadata of its documents.*repair"),
    ):
        engine.get("d8")
    sql("UPDATE documents SET source = '{\"year' WHERE key = 'd6'", *triggers.values())(path)
    done = repair(path, WordLengths())
    assert done.whole and done.encoded == 0
    assert done.damage[0].startswith("3 documents with metadata that are no JSON object →")
    with SearchEngine.open(path, WordLengths()) as engine:
        assert engine["d6"].metadata == kept
        assert engine["d7"].metadata == {} and engine["d8"].metadata == {"year": 1998}
        assert {hit.key for hit in engine.search("x", where="year = 1998")} == {"d8"}


def test_metadata_that_are_null_are_named_and_mended(path: Path) -> None:
    schema = "UPDATE sqlite_schema SET sql = replace(sql, ' NOT NULL', '') WHERE name = 'documents'"
    sql("PRAGMA writable_schema = ON", schema)(path)
    sql("UPDATE documents SET metadata = NULL WHERE key = 'd7'")(path)
    with SearchEngine.open(path, WordLengths()) as engine:
        for read in (
            lambda: engine.get("d7"),
            lambda: engine.update({"d7": {"seen": True}}),
            lambda: engine.search("x", k=90, group_by="year"),
        ):
            with pytest.raises(CollectionError, match=r"is damaged .*: searchengine repair"):
                read()
    assert repair(path).whole


def test_a_damaged_file_is_named_with_the_command_that_mends_it(path: Path) -> None:
    path = path.rename(path.with_name("my words"))
    flip(next((path / "segments").glob("*1/coarse.faiss")))
    command = f": searchengine repair '{path}'$"
    with pytest.raises(CollectionError, match=command):
        SearchEngine.open(path)
    assert repair(path).whole
    with SearchEngine.open(path, WordLengths()) as engine:
        shutil.rmtree(path / "segments")
        with pytest.raises(CollectionError, match=command):
            engine.add([{"_id": "new", "text": "zz"}])


def test_documents_that_are_gone_are_reported_as_lost(path: Path) -> None:
    sql("DELETE FROM documents WHERE key IN ('d7', 'd8')")(path)
    done = repair(path, WordLengths())
    assert done.whole and done.encoded == 0
    assert done.damage == ("passages without a document → 0 documents encoded again",)
    assert done.lost == ("2 documents, whose passages were left; index them again",)


def damage_database(path: Path) -> bytes:
    """Overwrite a page of documents; returns the content of documents.db."""
    database = path / "documents.db"
    data = bytearray(database.read_bytes())
    size = int.from_bytes(data[16:18], "big")
    leaves = [
        start
        for start in range(size, len(data), size)
        if data[start] == 13 and FILLER.encode() in data[start : start + size]
    ]
    start = leaves[len(leaves) // 2]
    data[start : start + size] = b"\xff" * size
    database.write_bytes(data)
    return bytes(data)


def test_a_damaged_database_is_left_as_it_is(path: Path) -> None:
    path = path.rename(path.with_name("my words"))
    database = path / "documents.db"
    whole = database.read_bytes()
    for damaged in (b"\xff" * 40_000, whole[:4096] + b"\xff" * 90_000, None):
        database.write_bytes(whole if damaged is None else damaged)
        damaged = damaged or damage_database(path)
        with pytest.raises(CollectionError, match=r"documents.db' .recover \| sqlite3"):
            repair(path, WordLengths())
        assert database.read_bytes() == damaged
    shown = CliRunner().invoke(cli, ["repair", str(path)])
    assert shown.exit_code == 2 and "restore the collection from a backup" in shown.stderr


def recovers() -> bool:
    """Whether the program sqlite3 is here, and was built with .recover."""
    if shutil.which("sqlite3") is None:
        return False
    done = subprocess.run(["sqlite3", ":memory:", ".recover"], capture_output=True, text=True)
    return "COMMIT" in done.stdout


@pytest.mark.skipif(not recovers(), reason="no sqlite3 with .recover")
def test_the_commands_that_recover_a_damaged_database(path: Path) -> None:
    """As the page on operating has them."""
    page = (REPOSITORY / "docs" / "operating.md").read_text()
    page = page[page.index("### A damaged documents.db") :]
    *commands, mending = re.findall(r"^ {4}(.*)$", page, re.MULTILINE)[:5]
    data = damage_database(path)
    subprocess.run(["bash", "-ec", "\n".join(commands)], cwd=path, check=True)
    assert (path / "damaged" / "documents.db").read_bytes() == data
    assert mending == "searchengine repair ."
    assert repair(path, WordLengths()).whole
    with SearchEngine.open(path, WordLengths()) as engine:
        engine.verify()
        assert 60 < len(engine) < 88 and engine.stats().fields == ("year",)
        engine.add(DOCUMENTS)
        assert len(engine) == 90
        with SearchEngine.open(path, WordLengths()) as other:  # readers beside a writer
            assert len(other.search("x", 200)) == 90
            engine.optimize()
        engine.verify()


FORMER = """UPDATE _sqlite_migrations SET name = 'm001_tables';
UPDATE settings SET value = json_set(value, '$.blocks', json('[]')) WHERE name = 'index'"""


def raise_format(path: Path) -> None:
    manifest = path / "segments" / "000002" / "manifest.json"
    values = json.loads(manifest.read_text()) | {"format": 3}
    del values["sha256"]
    manifest.write_text(json.dumps(values | {"sha256": _checksum(values)}))


@pytest.mark.parametrize(
    ("act", "message"),
    [
        # Its tables are the same; its settings and segments are not.
        (sql(*FORMER.split(";")), "was written by another version of searchengine"),
        (raise_format, "has format 3 and this version opens format 5 only"),
    ],
)
def test_what_another_version_wrote_is_refused_and_not_damage(
    path: Path, act: Callable[[Path], object], message: str
) -> None:
    act(path)
    before = contents(path)
    for name in ("info", "verify", "repair"):
        shown = CliRunner().invoke(cli, [name, str(path)])
        assert (shown.exit_code, shown.stdout) == (2, ""), name
        assert message in shown.stderr
        assert not re.search("searchengine repair|a backup", shown.stderr)
    assert contents(path) == before


def contents(path: Path) -> dict[Path, bytes]:
    """Every file but those that SQLite keeps while the database is open."""
    files = (file for file in path.rglob("*") if file.is_file())
    return {file: file.read_bytes() for file in files if not re.search("-(wal|shm)$", file.name)}


def test_who_may_not_repair(path: Path, tmp_path: Path) -> None:
    flip(next((path / "segments").glob("*1/vectors.faiss")))
    with pytest.raises(CollectionError, match="is not a collection"):
        repair(tmp_path / "nowhere")
    with pytest.raises(EncoderMismatch):
        repair(path, WordLengths(fingerprint="other"))
    with pytest.raises(CollectionError, match="encoder made in Python"):
        repair(path)
    with closing(sqlite3.connect(path / "documents.db", isolation_level=None)) as db:
        db.execute("BEGIN IMMEDIATE")
        with pytest.raises(CollectionBusy):
            repair(path, WordLengths())


@pytest.mark.parametrize("act", [
    setting("tokenizer", '"nearly"'),
    setting("tokenizer", "7"),
    setting("index", '{"prefix": -3}'),
    setting("encoder", '{"dim": 16}'),
    setting("encoder", "{"),
    setting("passages", '{"tokens": -1}'),
    setting("passages", "{"),
    sql("UPDATE documents SET key = x'ff41' WHERE key = 'd7'"),
    sql("UPDATE documents SET text = CAST(text AS BLOB) WHERE id < 9"),
])  # fmt: skip
def test_damage_without_a_mend_is_named(path: Path, act: Callable[[Path], object]) -> None:
    act(path)
    before = contents(path)
    with pytest.raises(CollectionError, match="nothing was changed; restore the folder from a"):
        repair(path, WordLengths())
    assert contents(path) == before


@pytest.mark.parametrize("part, value", [("fingerprint", "'other'"), ("dim", "7")])
def test_an_encoder_that_is_not_that_of_the_segments_is_named(
    path: Path, part: str, value: str
) -> None:
    encoder_setting(part, value)(path)
    done = repair(path, WordLengths())
    assert not done.whole and str(done.complaint).endswith("; restore the folder from a backup")
    for options in ([], ["--json"]):
        shown = CliRunner().invoke(cli, ["repair", str(path), *options])
        assert shown.exit_code == 1 and "; restore the folder from a backup" in shown.stdout
