"""Examples in Parquet files and Hugging Face datasets, and examples that stay on the disk."""

import errno
import gc
import json
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest

from searchengine.trainer.errors import DataError
from searchengine.trainer.training import examples as stored
from searchengine.trainer.training.examples import Examples, read_examples
from searchengine.trainer.training.rows import Kind, Reading

datasets = pytest.importorskip("datasets")
ROWS = [
    {"anchor": "red", "positive": "crimson", "negative": "blue"},
    {"anchor": "big", "positive": "large", "negative": None},
]
READ = [(Kind.TRIPLET, ("red", "crimson", "blue")), (Kind.PAIR, ("big", "large"))]


@pytest.fixture(autouse=True)
def no_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    datasets.disable_progress_bars()


def saved(folder: Path, rows: list[dict[str, Any]] = ROWS) -> Path:
    datasets.Dataset.from_list(rows).save_to_disk(str(folder))
    return folder


def test_a_parquet_file(tmp_path: Path) -> None:
    datasets.Dataset.from_list(ROWS).to_parquet(str(tmp_path / "a.parquet"))
    assert list(read_examples([tmp_path / "a.parquet"])) == READ


def test_a_saved_dataset_and_one_split_of_several(tmp_path: Path) -> None:
    assert list(read_examples([saved(tmp_path / "a")])) == READ
    both = datasets.DatasetDict(
        train=datasets.Dataset.from_list(ROWS), test=datasets.Dataset.from_list(ROWS[:1])
    )
    both.save_to_disk(str(tmp_path / "both"))
    with pytest.raises(DataError, match=r"holds train, test: name one of them, as .*both/train"):
        read_examples([tmp_path / "both"])
    assert list(read_examples([tmp_path / "both" / "test"])) == READ[:1]


def test_a_dataset_by_its_name_is_streamed(tmp_path: Path) -> None:
    """A folder of files has a name as those on the hub have."""
    folder = tmp_path / "named"
    folder.mkdir()
    for split, rows in (("train", ROWS), ("test", ROWS[:1])):
        lines = [json.dumps({k: v for k, v in row.items() if v}) for row in rows]
        (folder / f"{split}.jsonl").write_text("\n".join(lines) + "\n")
    assert list(read_examples([Path(f"hf:{folder}")])) == READ
    assert list(read_examples([Path(f"hf:{folder}:test")])) == READ[:1]
    with pytest.raises(DataError, match=r"hf:.*named:dev: cannot be read as a dataset"):
        read_examples([Path(f"hf:{folder}:dev")])


def test_what_is_wrong_in_a_table_is_named(tmp_path: Path) -> None:
    bad = tmp_path / "a.parquet"
    bad.write_bytes(b"PAR1 no")
    with pytest.raises(DataError, match=r"a\.parquet: cannot be read as a Parquet file"):
        read_examples([bad])
    with pytest.raises(DataError, match=r"none\.parquet: .*No such file"):
        read_examples([tmp_path / "none.parquet"])
    broken = saved(tmp_path / "b", [*ROWS, {"anchor": " ", "positive": "x", "negative": None}])
    with pytest.raises(DataError, match=r"b:3: anchor is ' ', expected text"):
        read_examples([broken])
    with pytest.raises(DataError, match=r"c: cannot tell what to train on from the columns other"):
        read_examples([saved(tmp_path / "c", [{"other": 1}])])
    labels = saved(tmp_path / "d", [{"text": "a", "label": 1}, {"text": "b", "label": 2}])
    with pytest.raises(DataError, match="set objective=classification"):
        read_examples([labels])
    assert len(read_examples([labels], reading=Reading.LABELS)) == 2
    for path in (tmp_path / "c", tmp_path / "d"):
        (path / "state.json").unlink()
        with pytest.raises(DataError, match="cannot be read as a dataset"):
            read_examples([path])


def test_columns_that_are_not_needed_are_not_read(tmp_path: Path) -> None:
    """Vectors or pictures beside the texts would take most of the time."""
    rows = [*ROWS * 1024, {**ROWS[0], "day": 10**19 // 2}]  # a date that Python does not have
    features = datasets.Features(
        {name: datasets.Value("string") for name in ROWS[0]} | {"day": datasets.Value("date64")}
    )
    table = datasets.Dataset.from_list([{"day": 0, **row} for row in rows], features)
    table.to_parquet(str(tmp_path / "a.parquet"))
    table.save_to_disk(str(tmp_path / "a"))
    for path in (tmp_path / "a.parquet", tmp_path / "a"):
        assert len(read_examples([path])) == len(rows)


@pytest.mark.parametrize(
    "name, message",
    [
        ("hf:", "hf:: cannot be read as a dataset: expected hf:NAME"),
        ("hf:{}/script", "cannot be read as a dataset: Dataset scripts are no longer supported"),
        ("{}/deep.jsonl", r"deep\.jsonl:1: not a JSON object on one line: maximum recursion depth"),
        ("{}/long" + 300 * "g", "cannot be read: File name too long"),
    ],
)
def test_errors_of_any_type_are_named(tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / "script").mkdir()
    (tmp_path / "script" / "script.py").touch()
    (tmp_path / "deep.jsonl").write_text('{"text": ' + 100_000 * "[")
    with pytest.raises(DataError, match=message):
        read_examples([Path(name.format(tmp_path))])


def test_examples_are_read_from_the_disk_and_leave_nothing(tmp_path: Path) -> None:
    rows = [(Kind.PAIR, (f"a {i}", "\ud800é\u2028\n")) for i in range(100)]
    gc.collect()  # what other tests left open
    before = len(os.listdir("/proc/self/fd"))
    found = Examples(rows, folder=tmp_path)
    assert list(tmp_path.iterdir()) == [] and list(found) == rows
    rest = found.without([0, 5, 99])
    assert list(rest) == [row for i, row in enumerate(rows) if i not in (0, 5, 99)]
    assert rest[-1] == rows[98] and rest[1:3] == rows[2:4] and rest.of_kind(Kind.PAIR)[-1] == 96
    with pytest.raises(IndexError):
        rest[97]
    del found
    assert rest[0] == rows[1]  # the file is there until the last that reads it is gone
    del rest
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_forked_process_reads_beside_its_parent(tmp_path: Path) -> None:
    rows = [(Kind.PAIR, (f"a {i}", f"b {i}")) for i in range(2000)]
    found = Examples(rows, folder=tmp_path)
    child = os.fork()
    if not child:
        os._exit(0 if list(found) == rows else 1)
    assert list(found) == rows
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_full_disk_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Full:
        def __enter__(self) -> Any:
            return self

        def __exit__(self, *error: object) -> None:
            pass

        def write(self, data: bytes) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(stored.tempfile, "TemporaryFile", lambda dir: Full())
    with pytest.raises(DataError, match=rf"{tmp_path}: no room for a copy of the examples \(No sp"):
        Examples([(Kind.SENTENCE, ("a",))], folder=tmp_path)
    monkeypatch.undo()
    with pytest.raises(DataError, match=r"none: no room for a copy"):
        Examples([(Kind.SENTENCE, ("a",))], folder=tmp_path / "none")
    assert tempfile.gettempdir()
