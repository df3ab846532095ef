"""Postings: written, merged and searched by the kernel and by numpy, against plain sums."""

import itertools
import json
import math
from collections import defaultdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file

from searchengine.indexer.errors import SegmentError
from searchengine.indexer.native import library
from searchengine.indexer.search.postings import (
    ARRAYS,
    K1,
    WINDOW,
    B,
    Counted,
    Postings,
    Words,
    WriteWords,
    moved,
    write_postings,
)
from searchengine.indexer.search.scoring import Allowed
from searchengine.indexer.segment import Segment, SegmentConfig
from searchengine.indexer.storage.files import WORDS

Texts = list[dict[bytes, float]]
"""The documents, each with its terms and how often it has them."""


def counted(texts: Texts, rows: np.ndarray | None = None) -> Counted:
    places: dict[bytes, list[tuple[int, float]]] = defaultdict(list)
    for i, text in enumerate(texts):
        for term, count in text.items():
            places[term].append((i, count))
    terms = sorted(places)
    flat = [place for term in terms for place in places[term]]
    sizes = [len(places[term]) for term in terms]
    return Counted(
        rows=np.arange(len(texts)) if rows is None else rows,
        lengths=np.array([math.ceil(sum(text.values())) for text in texts], np.uint32),
        vocabulary=terms,
        starts=np.append(0, np.cumsum(sizes)).astype(np.int64),
        documents=np.array([i for i, _ in flat], np.int64),
        frequencies=np.array([count for _, count in flat], np.float64),
    )


def opened(path: Path, *parts: Any, rows: int = 1 << 40) -> Postings:
    path.unlink(missing_ok=True)
    write_postings(path, parts, {"kind": "test"})
    return Postings.open(path, rows)


Key = tuple[bytes, bool]
"""A term; or the beginning of terms, and True."""


def occurs(text: dict[bytes, float], key: Key) -> float:
    """How often a text has a term, or terms that begin so."""
    term, unfinished = key
    if not unfinished:
        return text.get(term, 0.0)
    return sum(count for each, count in text.items() if each.startswith(term))


def by_hand(
    texts: Texts, question: list[Key], average: float, live: set[int] | None = None
) -> list[tuple[int, float]]:
    """Documents and scores by (−score, document), by the sums of BM25, term by term."""
    scores = {}
    for i, text in enumerate(texts):
        if live is not None and i not in live:
            continue
        norm = K1 * (1 - B + B * math.ceil(sum(text.values())) / average)
        parts = [
            (len(question) - n) * ((often * (K1 + 1.0)) / (often + norm))
            for n, key in enumerate(question)
            if (often := occurs(text, key))
        ]
        if parts:
            scores[i] = sum(parts)
    return sorted(scores.items(), key=lambda pair: (-pair[1], pair[0]))


def check(words: Words, texts: Texts, question: list[bytes | Key], k: int, **options: Any) -> None:
    """What `words` finds is what sums find; weights fall in the order of the question."""
    average = options.pop("average", words.postings.average)
    keys = [(each, False) if isinstance(each, bytes) else each for each in question]
    weights = np.arange(len(question), 0, -1.0)
    rows, scores = words.best(
        [words.find((key[0],), key[1]) for key in keys], weights, average, k, **options
    )
    found = options.get("allowed") or words.live
    live = None if found is None else set(found.rows.tolist())
    expected = by_hand(texts, keys, average, live)[:k]
    assert list(zip(rows.tolist(), scores.tolist(), strict=True)) == expected


TERMS = [b"a", b"ab", b"b", b"whale", "鯨".encode(), b""]
TEXT = st.dictionaries(st.sampled_from(TERMS), st.sampled_from([1.0, 2.0, 3.0, 0.5, 40.0]))
KERNELS = ["native", "faiss"] if library.levels() else ["faiss"]


@pytest.mark.parametrize("kernel", KERNELS)
def test_the_best_are_those_of_plain_sums(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kernel: str
) -> None:
    monkeypatch.setenv(library.KERNEL, kernel)

    @given(
        texts=st.lists(TEXT, min_size=1, max_size=30),
        question=st.lists(
            st.tuples(st.sampled_from([*TERMS, b"w", b"none"]), st.booleans()),
            min_size=1,
            max_size=6,
        ),
        k=st.integers(1, 40),
        average=st.sampled_from([0.5, 3.0, 1000.0]),
        dead=st.sets(st.integers(0, 29)),
    )
    def run(
        texts: Texts, question: list[bytes | Key], k: int, average: float, dead: set[int]
    ) -> None:
        postings = opened(tmp_path / "words", moved(counted(texts), None, 0))
        words = Words(postings, None)
        check(words, texts, question, k, average=average)
        gone = sorted(i for i in dead if i < len(texts))
        live = Allowed.without(gone, len(texts))
        check(Words(postings, live), texts, question, k, average=average)
        check(words, texts, question, k, average=average, allowed=live)
        for key in itertools.product([*TERMS, b"w"], [False, True]):
            having = [i for i, text in enumerate(texts) if occurs(text, key)]
            assert (words.find((key[0],), key[1]) == -1) == (not having)
            assert words.count(words.find((key[0],), key[1])) == len(having)
            if not isinstance(united := words.find((key[0],), key[1]), int):
                assert united.documents.tolist() == having
                assert united.counts.tolist() == [occurs(texts[i], key) for i in having]
            deleted = Words(postings, live)
            assert deleted.count(deleted.find((key[0],), key[1])) == len(set(having) - dead)

    run()


@given(st.lists(TEXT, min_size=1, max_size=40), st.data())
def test_merged_postings_are_those_of_the_rows_that_are_left(
    tmp_path_factory: pytest.TempPathFactory, texts: Texts, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("merge")
    cut = data.draw(st.integers(0, len(texts)))
    kept = sorted(data.draw(st.sets(st.integers(0, len(texts) - 1), min_size=1)))
    parts, base = [], 0
    for n, piece in enumerate((range(cut), range(cut, len(texts)))):
        if not piece:
            continue
        postings = opened(folder / str(n), moved(counted([texts[i] for i in piece]), None, 0))
        left = np.array([i - piece.start for i in kept if i in piece], np.int64)
        parts.append(moved(postings, left, base))
        base += left.size
    merged = opened(folder / "merged", *parts)
    expected = opened(folder / "expected", moved(counted([texts[i] for i in kept]), None, 0))
    assert merged.path.read_bytes() != b""
    for name in ARRAYS:
        if name not in ("frequencies", "codes"):  # of terms that are gone as well
            np.testing.assert_array_equal(getattr(merged, name), getattr(expected, name))
    np.testing.assert_array_equal(
        merged.frequencies[merged.codes], expected.frequencies[expected.codes]
    )
    assert merged.average == expected.average


@pytest.fixture(scope="module")
def windows(tmp_path_factory: pytest.TempPathFactory) -> tuple[Postings, Texts]:
    """Three windows, with terms in most documents and in few; more than 256 different counts."""
    rng = np.random.default_rng(0)
    texts: Texts = [{} for _ in range(2 * WINDOW + 100)]
    for term, share in ((b"most", 0.9), (b"half", 0.5), (b"some", 0.02), (b"few", 0.0005)):
        for i in np.flatnonzero(rng.random(len(texts)) < share).tolist():
            texts[i][term] = float(rng.integers(1, 4))
    for n in range(40):
        for i in np.flatnonzero(rng.random(len(texts)) < 0.003).tolist():
            texts[i][b"many%d" % n] = 1.0
    texts[WINDOW + 5] |= {b"once": 1.0}
    for i in range(300):
        texts[7 * i] |= {b"long": 10.0 + i}
    part = moved(counted(texts), None, 0)
    return opened(tmp_path_factory.mktemp("windows") / "words", part), texts


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("k", [1, pytest.param(300, marks=pytest.mark.long)])
def test_nothing_is_lost_by_what_is_left_out(
    windows: tuple[Postings, Texts], monkeypatch: pytest.MonkeyPatch, kernel: str, k: int
) -> None:
    monkeypatch.setenv(library.KERNEL, kernel)
    postings, texts = windows
    assert postings.codes.dtype == np.uint16
    words = Words(postings, None)
    questions: list[list[bytes | Key]] = [
        [*b"few some half most".split()],
        [*b"once most".split()],
        [*b"long few most".split()],
        [*b"half most none".split()],
        [b"few", (b"many", True), b"half", b"most"],  # read in full
        [b"few", (b"many3", True), (b"m", True)],  # 11 terms; all but four
        [b"once", b"few", (b"many", True), (b"", True)],
    ]
    for question in questions:
        check(words, texts, question, k)
        check(words, texts, question, k, average=postings.average / 30)
        check(words, texts, question, k, average=postings.average * 30)
        allowed = Allowed.from_rows(np.arange(0, len(texts), 40), len(texts))
        check(words, texts, question, k, allowed=allowed)


@pytest.mark.parametrize("kernel", KERNELS)
def test_documents_are_known_by_their_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kernel: str
) -> None:
    """Of several passages, the first; and only that one is asked whether it may be found."""
    monkeypatch.setenv(library.KERNEL, kernel)
    texts: Texts = [{b"ab": 1.0}, {b"a": 1.0}, {b"b": 2.0}, {b"ab": 1.0, b"a": 1.0}, {b"a": 3.0}]
    rows = np.array([0, 3, 4, 9, 12])
    postings = opened(tmp_path / "words", moved(counted(texts, rows), None, 0), rows=20)
    live = Allowed.from_rows(np.array([1, 2, 3, 4, 9, 10, 11]), 20)  # the documents 1, 2 and 3
    for question, expected in (
        ((b"a", False), {3, 9}),
        ((b"a", True), {3, 9}),
        ((b"b", True), {4}),
    ):
        for words, only in ((Words(postings, live), None), (Words(postings, None), live)):
            term = words.find((question[0],), question[1])
            found, _ = words.best([term], np.ones(1), postings.average, 9, only)
            assert set(found.tolist()) == expected
        assert Words(postings, live).count(term) == len(expected)


def test_the_file_is_safetensors(windows: tuple[Postings, Texts]) -> None:
    for name, array in load_file(windows[0].path).items():
        np.testing.assert_array_equal(array, getattr(windows[0], name))


def test_a_damaged_file_is_refused(tmp_path: Path, windows: tuple[Postings, Texts]) -> None:
    """Numbers that lead elsewhere, made larger, at both ends of their arrays."""
    data, path = windows[0].path.read_bytes(), tmp_path / "words"
    length = int.from_bytes(data[:8], "little")
    described = json.loads(data[8 : 8 + length])
    for name in ("term_starts", "term_entries", "entry_starts", "entry_windows", "rows"):
        start, end = described[name]["data_offsets"]
        size = 8 if described[name]["dtype"] == "I64" else 4
        for at in (start, end - size):
            place = 8 + length + at
            path.write_bytes(data[:place] + b"\xff" * (size - 1) + b"\x7f" + data[place + size :])
            with pytest.raises(SegmentError, match="words is damaged "):
                Postings.open(path, len(windows[1]))
    with pytest.raises(SegmentError, match="a row is missing"):
        Postings.open(windows[0].path, len(windows[1]) - 1)
    for broken in (data[:9], b"\xff" * 16, data[:-1], data.replace(b'"rows"', b'"rwos"', 1)):
        path.write_bytes(broken)
        with pytest.raises(SegmentError, match="words is damaged"):
            Postings.open(path, len(windows[1]))


def test_a_segment_keeps_its_words(tmp_path: Path) -> None:
    """Built with, rebuilt, merged; merged with one that has none; altered on the disk."""
    config = SegmentConfig.from_dict({"prefix": 2})
    vectors = np.eye(4, dtype=np.float32)
    texts: Texts = [{b"a": 1.0}, {b"b": 2.0}, {}, {b"a": 1.0, b"c": 1.0}]

    def written_as(kind: str) -> WriteWords:
        notes, source = {"kind": kind}, [moved(counted(texts), None, 0)]
        return WriteWords(partial(write_postings, parts=source, notes=notes), notes)

    write = written_as("test")
    with (
        Segment.build(tmp_path / "1", vectors, config, words=write) as built,
        Segment.build(tmp_path / "2", vectors, config) as bare,
        Segment.rebuild(tmp_path / "3", built.path, config) as rebuilt,
        Segment.merge(tmp_path / "4", [(built, [1, 3]), (rebuilt, None)], config) as merged,
        Segment.merge(tmp_path / "5", [(built, None), (bare, None)], config) as without,
        Segment.merge(tmp_path / "6", [(bare, None)], config, words=write) as written,
        Segment.merge(tmp_path / "7", [(built, None)], config, words=written_as("new")) as other,
    ):
        for segment, kind in ((written, "test"), (other, "new")):
            assert segment.words is not None and segment.words.notes == {"kind": kind}
        assert bare.words is None and without.words is None
        for segment in (built, rebuilt, written):
            assert segment.words is not None
            assert segment.words.vocabulary == [b"a", b"b", b"c"]
        assert merged.words is not None
        number = merged.words.find(b"a")
        _, documents, _ = merged.words.take(number, number + 1)
        assert merged.words.rows[documents].tolist() == [1, 2, 5]
    path = tmp_path / "4" / WORDS
    path.write_bytes(path.read_bytes()[:-1] + b"\x00")
    with pytest.raises(SegmentError, match=r"words.safetensors does not match its checksum"):
        Segment.open(tmp_path / "4")
