"""Vectors that come with the documents: checked, stored, found, exported and read back."""

import json
import os
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import WordLengths, commits_of
from hypothesis import given
from hypothesis import strategies as st

from searchengine import SearchEngine
from searchengine.corpus.contents import read_jsonl
from searchengine.corpus.files import read_corpus
from searchengine.errors import CollectionError, CorpusError, EncoderMismatch, QueryError
from searchengine.indexer.arrays import BLOCK_ROWS
from searchengine.upkeep.repair import repair

DIM = 6
WIDE = 64  # from here on, the length of a row rounded to float16 is so near 1 that a second
# rounding changes nothing
EXACT = {"rotation": "identity"}


def random(count: int, seed: int = 0, dim: int = DIM) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((count, dim)).astype(np.float32)


def texts(count: int, **fields: Any) -> list[dict[str, Any]]:
    return [{"_id": f"k{i}", "text": f"word{i} bee", "n": i, **fields} for i in range(count)]


def unit(rows: np.ndarray) -> np.ndarray:
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def stored(engine: SearchEngine, folder: Path) -> tuple[list[dict[str, Any]], np.ndarray]:
    """Passages and vectors, by an export."""
    engine.export(folder)
    lines = (folder / "passages.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines], np.load(folder / "vectors.npy")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "c"


@pytest.fixture
def engine(path: Path) -> Iterator[SearchEngine]:
    with SearchEngine.create(path, encoder=None, dim=DIM) as engine:
        yield engine


def test_documents_are_found_by_their_vectors(engine: SearchEngine, tmp_path: Path) -> None:
    vectors = 7 * random(20)  # of any length
    summary = engine.add(texts(20), vectors)
    assert (summary.added, len(engine)) == (20, 20)
    for i in (0, 11, 19):
        hit = engine.search(vectors[i], 1)[0]
        assert (hit.key, hit.text) == (f"k{i}", f"word{i} bee")
        assert hit.score == pytest.approx(1, abs=1e-3)
    passages, rows = stored(engine, tmp_path / "export")
    assert passages[3] == {"key": "k3", "start": 0, "end": 9}
    assert rows == pytest.approx(unit(vectors), abs=1e-3)
    cosines = unit(vectors) @ unit(vectors[4:5])[0]
    expected = [f"k{i}" for i in np.argsort(-cosines)[:5] if i % 2 == 0 or True]
    assert [hit.key for hit in engine.search(vectors[4], 5)] == expected
    assert {hit.key for hit in engine.search(vectors[4], 9, where="n < 3")} == {"k0", "k1", "k2"}
    assert engine.similar("k4", 1)[0].key == expected[1]
    engine.verify()


def test_questions_as_texts_are_refused_with_the_ways_out(engine: SearchEngine) -> None:
    engine.add(texts(3), random(3))
    for ask in (engine.search, lambda text, mode: engine.search_batch([text], mode=mode)):
        with pytest.raises(QueryError, match="has no encoder: search with a vector of 6 numbers"):
            ask("bees", mode="vector")
    for mode in ("text", "auto"):  # without an encoder, by words
        assert engine.search("word2", mode=mode)[0].key == "k2"
    with pytest.raises(QueryError, match="has no encoder"):
        engine.search("word2", mode="hybrid")
    with pytest.raises(QueryError, match=r"has no encoder; pass the vectors of the documents"):
        engine.add(texts(1))


def test_it_may_be_opened_with_the_encoder_of_its_vectors(tmp_path: Path) -> None:
    encoder = WordLengths()
    documents = [{"_id": t, "text": t} for t in ("a bee", "the cat", "whales")]
    with SearchEngine.create(tmp_path / "c", encoder=None, dim=16) as engine:
        engine.add(documents, encoder.encode([each["text"] for each in documents]))
    with SearchEngine.open(tmp_path / "c", encoder) as engine:
        assert engine.search("one cat", 1)[0].key == "the cat"
        assert engine.search("one cat", 1, mode="hybrid")[0].key == "the cat"
        with pytest.raises(QueryError, match="has no encoder; pass the vectors"):
            engine.add(documents)
    with pytest.raises(EncoderMismatch, match=r"\(16 wide.*\), got one of 8 "):
        SearchEngine.open(tmp_path / "c", WordLengths(8))


def test_only_what_differs_is_written(engine: SearchEngine) -> None:
    documents, vectors = texts(5), random(5)
    engine.add(documents, vectors)
    again = engine.add(documents, vectors.astype(np.float64))
    assert (again.unchanged, len(engine.collection.segments)) == (5, 1)
    vectors[2] = -vectors[2]
    documents[4] = {**documents[4], "n": 99}
    documents[0] = {**documents[0], "text": "other"}
    last = engine.add(documents, vectors)
    assert (last.changed, last.metadata_updated, last.unchanged) == (2, 1, 2)
    assert engine.search(vectors[2], 1)[0].key == "k2"
    assert engine.stats().tombstones + engine.stats().passages >= 5 == engine.stats().passages


def test_vectors_beside_an_encoder(tmp_path: Path) -> None:
    """A collection with an encoder takes vectors too, and keeps them while the text is the same."""
    encoder = WordLengths()
    other = -np.eye(1, 16, dtype=np.float32)
    with SearchEngine.create(tmp_path / "c", encoder) as engine:
        engine.add([{"_id": "a", "text": "a bee"}], other)
        assert encoder.calls == []
        assert engine.add([{"_id": "a", "text": "a bee"}]).unchanged == 1
        assert engine.search(other[0])[0].score == pytest.approx(1, abs=1e-3)
        assert engine.add([{"_id": "a", "text": "a cat"}]).changed == 1
        assert engine.search("a cat")[0].scores["vector"] == pytest.approx(1, abs=1e-3)
        assert engine.add([{"_id": "a", "text": "a cat"}], other).changed == 1


@pytest.mark.parametrize("dtype", ["<f2", "<f4", ">f4", "<f8", "i1", "<i8", "u1"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_any_kind_of_numbers(tmp_path: Path, dtype: str, order: Any) -> None:
    rows = np.asarray(np.abs(8 * random(30)) + 1, dtype, order=order)
    np.save(tmp_path / "v.npy", rows)
    mapped = np.load(tmp_path / "v.npy", mmap_mode="r")
    with SearchEngine.create(tmp_path / "c", encoder=None, dim=DIM) as engine:
        engine.add([{"_id": i} for i in range(30)], mapped)
        assert list(engine.keys()) == [str(i) for i in range(30)]
        _, vectors = stored(engine, tmp_path / "export")
        assert vectors == pytest.approx(unit(rows.astype(np.float64)), abs=1e-3)
        assert engine.get("3").text == ""  # type: ignore[union-attr]


def with_row(i: int, value: float) -> np.ndarray:
    rows = random(8)
    rows[i] = value
    return rows


@pytest.mark.parametrize(
    ("vectors", "message"),
    [
        (
            random(7),
            "every document needs one row of the vectors, got more than 7 documents and 7 rows",
        ),
        (random(9), "every document needs one row of the vectors, got 8 documents and 9 rows"),
        (
            random(8)[:, :5],
            r"vectors must be numbers of shape \(n, 6\), .*got float32 of shape \(8",
        ),
        (random(8)[0], r"got float32 of shape \(6,\)"),
        (random(8).astype(complex), "got complex128"),
        (random(8).astype(object), "got object"),
        ([[1, 2], [3]], r"vectors must be an array of shape \(n, 6\)"),
        (with_row(5, np.nan), r"row 5 of the vectors \(from 0\) holds NaN, infinity or only zeros"),
        (with_row(0, np.inf), "row 0 of the vectors"),
        (with_row(7, 0), "row 7 of the vectors"),
        (1e300 * random(8).astype(np.float64), "row 0 of the vectors"),
    ],
)
@pytest.mark.parametrize("every", [None, 3])
def test_bad_vectors_are_refused(
    engine: SearchEngine, vectors: Any, message: str, every: int | None
) -> None:
    engine.add(texts(2), random(2, 1))
    before = engine.collection.settings["commit"]
    with pytest.raises(QueryError, match=message):
        with commits_of(every) if every else nullcontext():
            engine.add(iter(texts(8, lang="en")), vectors)
    if every is None:
        assert (len(engine), engine.collection.settings["commit"]) == (2, before)
    engine.verify()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"documents": texts(2), "passages": []}, "passages need vectors"),
        (
            {"documents": texts(2), "vectors": random(2), "skip_bad": True},
            "skip_bad would leave out",
        ),
    ],
)
def test_arguments_that_do_not_fit(
    engine: SearchEngine, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(QueryError, match=message):
        engine.add(**arguments)


@pytest.mark.parametrize("dim", [None, 0, -1, 2.5, True, "768"])
def test_a_width_is_needed_without_an_encoder(path: Path, dim: Any) -> None:
    with pytest.raises(CollectionError, match="needs the width of its vectors"):
        SearchEngine.create(path, encoder=None, dim=dim)
    with pytest.raises(CollectionError, match="16 wide, got dim=7; leave dim out"):
        SearchEngine.create(path, WordLengths(), dim=7)
    assert not path.exists()


def test_equal_records_take_a_row_each(tmp_path: Path, engine: SearchEngine) -> None:
    """A record without a key that occurs again is left out, with its row."""
    (tmp_path / "d.jsonl").write_text('{"text": "x"}\n{"text": "x"}\n{"text": "y"}\n')
    vectors = random(3)
    summary = engine.add(read_corpus(tmp_path / "d.jsonl"), vectors)
    assert (summary.added, summary.repeated.count) == (2, 1)
    assert engine.search(vectors[0], 1)[0].score == pytest.approx(1, abs=1e-3)
    assert engine.search(vectors[1], 1)[0].score < 0.999
    assert engine.search(vectors[2], 1)[0].text == "y"


# ----------------------------------------------------------------------------- several passages


PARTS = [
    {"key": "k1", "start": 0, "end": 5},
    {"key": "k1", "start": 6, "end": 9},
    {"key": "k0", "start": 0, "end": 9},
]


def test_several_vectors_of_a_document(engine: SearchEngine, tmp_path: Path) -> None:
    vectors = random(3)
    engine.add(texts(2), vectors, passages=PARTS)
    hit = engine.search(vectors[1], 1)[0]
    assert (hit.key, hit.passage) == ("k1", "bee")
    assert engine.search(vectors[0], 9)[0].key == "k1"
    passages, rows = stored(engine, tmp_path / "export")
    assert passages == [PARTS[2], *PARTS[:2]]  # in the order of the documents
    assert rows == pytest.approx(unit(vectors)[[2, 0, 1]], abs=1e-3)
    assert engine.add(texts(2), vectors, passages=PARTS).unchanged == 2
    moved = [PARTS[0], {**PARTS[1], "start": 5}, PARTS[2]]
    assert engine.add(texts(2), vectors, passages=moved).changed == 1
    with pytest.raises(CorpusError, match="the key 'k2' has no passage"):
        engine.add(texts(3), vectors, passages=PARTS)


def test_a_document_of_more_vectors_than_a_block(engine: SearchEngine) -> None:
    count = BLOCK_ROWS * 3 // 4  # of a document: the second one is in two blocks
    vectors = random(2 * count + 3)
    spans = [{"key": f"k{i // count}", "start": 0, "end": i % 9} for i in range(len(vectors))]
    engine.add(texts(3), vectors, passages=spans)
    assert engine.add(texts(3), vectors, passages=spans).unchanged == 3
    for i in (0, count - 1, count, BLOCK_ROWS, 2 * count + 2):
        hit = engine.search(vectors[i], 1)[0]
        assert (hit.key, hit.end) == (f"k{i // count}", i % 9)
    vectors[BLOCK_ROWS] *= -1
    assert engine.add(texts(3), vectors, passages=spans).changed == 1


@pytest.mark.parametrize(
    ("passages", "message"),
    [
        (PARTS[:2], "every row of the vectors needs a passage, got 2 passages for 3 rows"),
        ([*PARTS, PARTS[0]], "got more passages for 3 rows"),
        ([*PARTS[1:], {**PARTS[2], "key": "?"}], "names the document '\\?', which is not among"),
        ([PARTS[0], PARTS[2], PARTS[1]], "'k1' are on lines 1 and 3, with others in between"),
        (
            [*PARTS[:2], {**PARTS[2], "end": 10}],
            "passage 3: 0 to 10 is not within the text of 'k0'",
        ),
        ([*PARTS[:2], {**PARTS[2], "start": -1}], "passage 3: expected a key and offsets"),
        ([*PARTS[:2], {**PARTS[2], "end": True}], "passage 3: expected a key and offsets"),
        ([*PARTS[:2], {**PARTS[2], "key": 5}], "passage 3: expected a key and offsets"),
        ([*PARTS[:2], {**PARTS[2], "key": "\ud800"}], "a key must be an integer or UTF-8 text"),
        ([*PARTS[:2], {"key": "k0"}], "passage 3: expected a key and offsets"),
    ],
)
def test_bad_passages_are_refused(engine: SearchEngine, passages: list[Any], message: str) -> None:
    with pytest.raises((QueryError, CorpusError), match=message):
        engine.add(texts(2), random(3), passages=passages)
    assert len(engine) == 0


def test_whole_documents_have_one_vector(path: Path) -> None:
    with (
        SearchEngine.create(path, encoder=None, dim=DIM, passages=False) as engine,
        pytest.raises(QueryError, match="keeps documents whole"),
    ):
        engine.add(texts(3), random(3), passages=PARTS)


# -------------------------------------------------------------------------- export and read back


def read_back(folder: Path, path: Path, **options: Any) -> SearchEngine:
    vectors = np.load(folder / "vectors.npy", mmap_mode="r")
    engine = SearchEngine.create(path, encoder=None, dim=vectors.shape[1], **options)
    passages = (line for _, line in read_jsonl(folder / "passages.jsonl"))
    engine.add(read_corpus(folder / "documents.jsonl"), vectors, passages=passages)
    return engine


LAYOUTS = st.lists(st.integers(1, 3), min_size=1, max_size=8)


@given(LAYOUTS, st.integers(0, 2**32), st.sampled_from([None, 1, 3]))
def test_any_layout_of_passages_comes_back(
    tmp_path_factory: Any, layout: list[int], seed: int, every: int | None
) -> None:
    """Documents with any number of vectors, in any order of the rows."""
    folder = tmp_path_factory.mktemp("layout")
    order = np.random.default_rng(seed).permutation(len(layout))
    passages = [{"key": f"k{i}", "start": j, "end": 5} for i in order for j in range(layout[i])]
    vectors = random(len(passages), seed, WIDE)
    with SearchEngine.create(folder / "a", encoder=None, dim=WIDE, config=EXACT) as engine:
        with commits_of(every) if every else nullcontext():
            engine.add(texts(len(layout)), vectors, passages=passages)
        expected = sorted(
            zip(passages, unit(vectors).tolist(), strict=True), key=lambda p: p[0]["key"]
        )
        got, rows = stored(engine, folder / "one")
        assert got == [passage for passage, _ in expected]
        assert rows == pytest.approx(
            np.array([row for _, row in expected]).reshape(-1, WIDE), abs=1e-3
        )
        engine.verify()
    with read_back(folder / "one", folder / "b", config=EXACT) as engine:
        engine.export(folder / "two")
    assert (folder / "one" / "vectors.npy").read_bytes() == (
        folder / "two/vectors.npy"
    ).read_bytes()


# ----------------------------------------------------------- interruption, damage, other processes


def test_a_damaged_segment_loses_vectors_but_no_documents(path: Path, tmp_path: Path) -> None:
    with SearchEngine.create(path, encoder=None, dim=DIM) as engine:
        engine.add(texts(5), random(5))
    (segment,) = (path / "segments").iterdir()
    with open(segment / "vectors.faiss", "r+b") as file:
        file.seek(-3, os.SEEK_END)
        file.write(b"\xff\x00\xff")
    report = repair(path)
    assert report.whole and report.encoded == 0
    assert report.damage[0].endswith(" → 0 documents encoded again")
    assert report.lost == (
        "vectors of 5 documents ('k0', 'k1', 'k2', 'k3', 'k4'), which came with them; "
        "they are listed, but searches miss them until they are added again with vectors",
    )
    with SearchEngine.open(path) as engine:
        assert len(engine) == 5 and engine.search(random(1)[0]) == []
        assert engine.search("word3", mode="text") == []
        assert engine.add(texts(5), random(5)).changed == 5
        assert engine.search(random(5)[3], 1)[0].key == "k3"
        engine.verify()


def test_a_record_with_a_vector_needs_no_text_field(tmp_path: Path) -> None:
    with SearchEngine.create(tmp_path / "c", None, dim=4) as engine:
        records = [{"_id": "a", "year": 1}, {"_id": "b", "text": "owls"}]
        assert engine.add(records, np.eye(4)[:2]).added == 2
        assert engine.search(np.eye(4)[0], 1)[0].key == "a"
        assert engine.count("year = 1") == 1
    with SearchEngine.create(tmp_path / "d", WordLengths()) as engine:
        with pytest.raises(CorpusError, match="no field 'text' or 'title'"):
            engine.add(records)
