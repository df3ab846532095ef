"""Bytes that nobody meant: read, or refused in one sentence. See tests/fuzz_targets.py."""

import gzip
import json
import os
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from fuzz_targets import CSV_TOKENS, JSON_TOKENS, LONGEST_MESSAGE, TARGETS, emptied, segment, signed
from hypothesis import given, settings
from hypothesis import strategies as st

from searchengine.corpus import contents
from searchengine.corpus.files import Unread, count_records, read_corpus
from searchengine.errors import CorpusError
from searchengine.indexer.errors import SegmentError
from searchengine.indexer.storage.files import Manifest
from searchengine.indexer.storage.vectors import load_rotation

# Run by Hypothesis in this process: those that cannot take it with them. "vectors" is one of them,
# for its header is compared before faiss reads it.
HERE = [name for name, target in TARGETS.items() if not target.native] + ["vectors"]
TOKENS = [*JSON_TOKENS, *CSV_TOKENS, b"\xff", b"\x00", b"\xed\xa0\x80", b"[" * 2000, b"\n"]


@st.composite
def altered(draw: st.DrawFn, name: str) -> bytes:
    """A seed of a target with some bytes cut out, put in, or said twice; or bytes of no meaning."""
    data = draw(st.sampled_from([b"", *TARGETS[name].seeds()]))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(data)))
        end = min(len(data), at + draw(st.integers(0, 8)))
        token = st.sampled_from(TOKENS) | st.binary(max_size=8) | st.just(data[at : 3 * end])
        data = data[:at] + draw(token) + data[end:]
    return data


@pytest.mark.parametrize("name", HERE)
def test_altered_bytes_are_read_or_refused(name: str, tmp_path: Path) -> None:
    @settings(derandomize=True, deadline=None, database=None)
    @given(altered(name))
    def tried(data: bytes) -> None:
        TARGETS[name].run(data, emptied(tmp_path / "w"))

    tried()


# --- values that a manifest's checksum does not keep out ------------------------------------------

ODD: list[Any] = [
    *(None, True, 0, -1, 1.5, 1e308, float("inf"), float("nan"), 10**30, "", "abc", "\ud800"),
    *("../../v.faiss", "/etc/passwd", [], {}, [1], {"a": 1}, "x" * 5000),
]


def places(values: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The path of every value in nested mappings."""
    for name in values if isinstance(values, dict) else ():
        yield (*path, name)
        yield from places(values[name], (*path, name))


def odd(values: Any) -> Iterator[Any]:
    """The values again and again, one of them odd each time."""
    for path in places(values):
        for value in ODD:
            changed = inner = deepcopy(values)
            for name in path[:-1]:
                inner = inner[name]
            inner[path[-1]] = value
            yield changed


@pytest.mark.parametrize("name", ["manifest", "opening"])
def test_odd_values_in_a_manifest_are_refused(name: str, tmp_path: Path) -> None:
    for values in odd(json.loads(segment()["manifest.json"])):
        TARGETS[name].run(signed(values), emptied(tmp_path / "w"))


HUGE = segment()["rotation.npy"].replace(b"(4, 8), }        ", b"(999999, 999999), }")[:128]


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("manifest", b"[" * 100_000),
        ("manifest", b'{"format": 2, "rows": ' + b"9" * 5000 + b"}"),
        ("rotation", b""),
        ("rotation", b"\x93NUMPY\x01\x00\x76\x00{"),
        ("rotation", b"PK\x05\x06" + b"\x00" * 18),  # an empty .npz
        ("rotation", HUGE),
        ("filter", b"a = '" + b"x" * 100_000),
        ("filter", b"(" * 100_000),
        ("filter", b"a\x1b[31m"),
        ("filter", b"a `\x0f`"),
        ("filter", b"a = " + b"9" * 5000),
        ("filter", b"\xed\xa0\x80"),
    ],
)
def test_what_was_found_once(name: str, data: bytes, tmp_path: Path) -> None:
    TARGETS[name].run(data, emptied(tmp_path / "w"))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (b"<f4", b"<i4", "must hold a matrix .* of float32"),
        (b"False", b"True ", "must hold a matrix .* of float32"),
        (b"(4, 8)", b"(2,16)", "must hold a matrix .* of float32"),
        (b"\x93NUMPY\x01", b"\x93NUMPY\x02", "must hold a matrix .* of float32"),
        (segment()["rotation.npy"][-4:], b"\0\0\xc0\x7f", "holds NaN"),
    ],
)
def test_rotations_of_the_right_size_hold_the_right_numbers(
    old: bytes, new: bytes, message: str, tmp_path: Path
) -> None:
    whole = segment()["rotation.npy"]
    path = tmp_path / "rotation.npy"
    path.write_bytes(new.join(whole.rsplit(old, 1)))
    manifest = Manifest.from_json(segment()["manifest.json"])
    with pytest.raises(SegmentError, match=message):
        load_rotation(tmp_path, manifest)


# --- files --------------------------------------------------------------------------------------


def refusal(path: str | Path, data: bytes | None = None) -> str:
    """What is said of a file of documents, all of it printable."""
    if data is not None:
        Path(path).write_bytes(data)
    with pytest.raises(CorpusError) as caught:
        list(read_corpus(path))
    message = str(caught.value)
    assert message.isprintable() and len(message) <= LONGEST_MESSAGE
    return message


@pytest.mark.parametrize("levels", [101, 500, 980, 10_000])
def test_metadata_is_nested_so_deep_and_no_deeper(tmp_path: Path, levels: int) -> None:
    def record(depth: int) -> bytes:
        return b'{"_id": "1", "text": "a", "x": ' + b"[" * depth + b"]" * depth + b"}\n"

    path = tmp_path / "c.jsonl"
    path.write_bytes(record(99))  # the metadata itself is a level
    assert len(list(read_corpus(path))) == 1
    assert "levels deep" in refusal(path, record(100))
    assert f"{path}:1: " in refusal(path, record(levels))


@pytest.fixture
def short_lines(monkeypatch: pytest.MonkeyPatch) -> int:
    """Lines and rows may be of 1 KiB."""
    monkeypatch.setattr(contents, "LONGEST", 1024)
    return contents.LONGEST


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_a_line_too_long_is_refused_and_can_be_skipped(
    tmp_path: Path, short_lines: int, suffix: str
) -> None:
    good = b'{"_id": "%d", "text": "a"}\n'
    longest = b'{"_id": "5", "text": "' + b"x" * (short_lines - 25) + b'"}\n'
    assert len(longest) == short_lines
    data = good % 1 + b"y" * (5 * short_lines) + b"\n" + good % 3 + b"z" * short_lines + b"\n"
    path = tmp_path / ("c.jsonl" + suffix)
    path.write_bytes(gzip.compress(data + longest) if suffix else data + longest)
    assert f"{path}:2: a line must be at most" in refusal(path)
    unread = Unread(skip_bad=True)
    assert [d.key for d in read_corpus(path, unread)] == ["1", "3", "5"]
    assert [b.split(": a line")[0] for b in unread.bad.first] == [f"{path}:2", f"{path}:4"]


def test_folders_that_loop_and_what_is_no_file(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a")
    (tmp_path / "self").symlink_to(tmp_path)
    (tmp_path / "gone.txt").symlink_to(tmp_path / "nowhere")
    (tmp_path / "x.txt").symlink_to(tmp_path / "y.txt")
    (tmp_path / "y.txt").symlink_to(tmp_path / "x.txt")
    (tmp_path / "linked.md").symlink_to(tmp_path / "a.txt")
    os.mkfifo(tmp_path / "pipe.txt")
    (tmp_path / "folder.txt").mkdir()
    assert [d.key for d in read_corpus(tmp_path)] == ["a.txt", "linked.md"]
    assert count_records(tmp_path) == 2
