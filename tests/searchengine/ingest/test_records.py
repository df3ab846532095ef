"""What add and update take: mappings of all kinds, tables, and values that JSON does not know."""

import sys
import uuid
from collections import UserDict
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import WordLengths

from searchengine.backends.entries import ids_of
from searchengine.corpus.documents import Document, LeftOut, as_documents
from searchengine.engine import SearchEngine
from searchengine.errors import CorpusError, EmptyCorpus, QueryError

NAN = float("nan")


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[SearchEngine]:
    with SearchEngine.create(tmp_path / "c", WordLengths()) as engine:
        engine.add([{"_id": "a", "text": "a dog", "year": 2016}])
        yield engine


def metadata(engine: SearchEngine, key: str) -> dict[str, Any]:
    with engine.collection.reading() as snapshot:
        (document,) = snapshot.documents(ids_of(snapshot, [key]).values())
    return dict(document.metadata)


@pytest.mark.parametrize(
    ("value", "stored"),
    [
        (np.int64(3), 3),
        (np.float32(0.5), 0.5),
        (np.bool_(True), True),
        (np.array([[1, 2], [3, 4]]), [[1, 2], [3, 4]]),
        (np.array(["2020-01-02", "NaT"], "datetime64[D]"), ["2020-01-02", None]),
        (np.datetime64("2020-01-02T03:04", "ns"), "2020-01-02T03:04:00.000000000"),
        (datetime(2020, 1, 2, 3, tzinfo=UTC), "2020-01-02T03:00:00+00:00"),
        ([1, NAN, {"n": np.int8(1)}], [1, None, {"n": 1}]),
        ({"by": {"born": date(1900, 1, 1)}}, {"by": {"born": "1900-01-01"}}),
        (timedelta(1, 0, 500_000), 86400.5),
        (None, None),
    ],
)
def test_values_become_what_json_has_for_them(
    engine: SearchEngine, value: Any, stored: Any
) -> None:
    engine.add([{"_id": "b", "text": "x", "field": value}])
    assert metadata(engine, "b") == {"field": stored}
    assert type(metadata(engine, "b")["field"]) is type(stored)


@pytest.mark.parametrize("missing", [NAN, np.float32("nan"), np.datetime64("NaT"), np.float64(NAN)])
def test_missing_values_are_left_out(missing: Any) -> None:
    record = {"_id": np.int64(7), "title": missing, "text": "x", "year": missing}
    assert list(as_documents([record], None)) == [Document("7", "x")]
    record = {"_id": "8", "title": None, "text": missing, "year": 1}
    (document,) = as_documents([record], None)
    assert (document.full_text, document.metadata) == ("", {"year": 1})
    for key, message in ((missing, "_id is empty"), ("a\0", r"the key contains .* U\+0000")):
        with pytest.raises(CorpusError, match=f"document 1: {message}"):
            list(as_documents([{"_id": key, "text": "x"}], None))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (
            uuid.UUID(int=1),
            "document 2: metadata 'f' cannot be stored: it is of type UUID; turn it",
        ),
        ({"inner": [{"deep": {1, 2}}]}, "metadata 'f' cannot be stored: it is of type set"),
        (1j, "type complex"),
        (np.timedelta64(1, "s"), "type timedelta64"),
        (
            Decimal("inf"),
            r"metadata 'f' cannot be stored: it holds infinity or a number over 1\.8e\+308;",
        ),
        ([2**1024], r"it holds infinity or a number over 1\.8e\+308; make it a text"),
        ("a\0b", r"document 2: metadata 'f' .* the character U\+0000, which ends texts; remove"),
        ({"x": {"a\0": 1}}, "'f' cannot be stored: it contains the character"),
    ],
)
def test_values_that_mean_nothing_in_json_are_named(value: Any, message: str) -> None:
    records = [{"_id": "a", "text": "x"}, {"_id": "b", "text": "x", "f": value}]
    with pytest.raises(CorpusError, match=message):
        list(as_documents(records, None))
    malformed = LeftOut()
    assert [d.key for d in as_documents(records, malformed)] == ["a"]
    assert malformed.count == 1


def test_the_largest_number_and_what_only_looks_like_the_character_0_are_kept() -> None:
    metadata = {"f": "\\u0000", "\\\\u0000": "\x01", "most": [sys.float_info.max, -(10**308)]}
    (document,) = as_documents([{"_id": "a", "text": "x\0y", **metadata}], None)
    assert document.metadata == metadata and document.text == "x\0y"


def test_a_nest_without_an_end_is_refused() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(
        CorpusError, match="document 1: metadata 'f' cannot be stored: it is nested more than 100"
    ):
        list(as_documents([{"_id": "a", "text": "x", "f": endless}], None))


@pytest.mark.parametrize("module", ["pandas", "polars"])
def test_the_real_ones(engine: SearchEngine, module: str) -> None:
    frames = pytest.importorskip(module, reason=f"{module} is not installed")
    seen = datetime(2020, 1, 2)
    frame = frames.DataFrame(
        {
            "_id": [1, 2],
            "title": [None, "Bee"],
            "text": ["a dog", "two bees"],
            "year": [2016, None],
            "seen": [seen, None],
            "score": [0.5, 1.5],
        }
    )
    assert engine.add(frame).added == 2
    assert metadata(engine, "1") == {"year": 2016, "seen": "2020-01-02T00:00:00", "score": 0.5}
    assert metadata(engine, "2") == {"score": 1.5}
    assert engine.add(frame).unchanged == 2
    if module == "pandas":
        twice = frames.DataFrame([[1, "a", "b"]], columns=["_id", "text", "text"])
        with pytest.raises(CorpusError, match="a column name occurs twice in the DataFrame"):
            engine.add(twice)


@pytest.mark.parametrize("name", ["_id", "title", "text"])
def test_fields_of_the_document_are_no_metadata(engine: SearchEngine, name: str) -> None:
    with pytest.raises(QueryError, match=f"update of 'a': '{name}' is a field of the document"):
        engine.update({"a": {"year": 1, name: "x"}})
    assert metadata(engine, "a") == {"year": 2016}
    document = Document("b", "x", metadata={name: "y"})  # as an old collection may hold one
    with pytest.raises(CorpusError, match=f"document 'b': '{name}' is a field of the document"):
        engine.add([document])
    assert engine.add([document, Document("c", "x")], skip_bad=True).bad.count == 1


def test_id_is_metadata_where_there_is_a_key(engine: SearchEngine, tmp_path: Path) -> None:
    engine.add([{"_id": "b", "id": 7, "text": "x"}])
    assert metadata(engine, "b") == {"id": 7}
    engine.update({"b": {"id": 8}})
    assert metadata(engine, "b") == {"id": 8}


def test_updates_take_the_same_values(engine: SearchEngine) -> None:
    engine.update({"a": {"n": np.int64(3), "seen": date(2020, 1, 2), "year": None}})
    assert metadata(engine, "a") == {"n": 3, "seen": "2020-01-02"}
    for missing in (NAN, np.datetime64("NaT"), {"x": NAN}, [[Decimal("nan")]], np.array([NAN])):
        with pytest.raises(CorpusError, match=r"'n' .* a missing value, .*; None removes a field"):
            engine.update({"a": {"n": missing}})
    assert metadata(engine, "a") == {"n": 3, "seen": "2020-01-02"}
    engine.update({"a": {3: "a\n", "n": np.array(4), "seen": UserDict(x=1)}})
    assert metadata(engine, "a") == {"3": "a\n", "n": 4, "seen": {"x": 1}}


def test_where_all_are_bad_the_first_says_why(tmp_path: Path) -> None:
    with SearchEngine.create(tmp_path / "c", WordLengths()) as engine:
        message = r"no document to index \(2 bad, the first: document 1: no _id"
        with pytest.raises(EmptyCorpus, match=message):
            engine.add([{"text": "a"}, {"text": "b"}], skip_bad=True)
        with pytest.raises(EmptyCorpus, match=r"nothing was changed$"):
            engine.add([], skip_bad=True)
