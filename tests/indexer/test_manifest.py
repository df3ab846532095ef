"""manifest.json."""

import hashlib
import json
from dataclasses import replace

import pytest

from searchengine.indexer.config import SegmentConfig, Structure
from searchengine.indexer.errors import SegmentError
from searchengine.indexer.storage.durable import FileEntry
from searchengine.indexer.storage.manifest import Manifest

MANIFEST = Manifest(
    rows=5,
    dim=8,
    config=SegmentConfig(prefix=4, structure=Structure.HNSW),
    files={"coarse.faiss": FileEntry(3, "ab"), "vectors.faiss": FileEntry(9, "cd")},
    provenance={"encoder": "été/模型"},
)


@pytest.mark.parametrize("text", ["", "{", b"\xff\xfe{}"])
def test_what_is_no_json_is_refused(text: str | bytes) -> None:
    with pytest.raises(SegmentError, match=r"here/m\.json is not valid JSON"):
        Manifest.from_json(text, "here/m.json")


def test_an_altered_value_is_noticed() -> None:
    tuned = replace(MANIFEST, tuning={"target": 0.95, "queries": [1, 2]})
    values = json.loads(tuned.to_json())
    assert Manifest.from_json(json.dumps(values)) == tuned  # layout is free
    altered = {"target": 0.99, "queries": [1, 2]}
    for change in ({"rows": 6}, {"provenance": {}}, {"sha256": "0"}, {"tuning": altered}):
        with pytest.raises(SegmentError, match="was altered"):
            Manifest.from_json(json.dumps(values | change))


@pytest.mark.parametrize(
    ("place", "bad", "message"),
    [
        (("format",), True, "has format True"),
        (("rows",), 2**40 + 1, "rows must be a whole number of at most"),
        (("rows",), True, "rows must be a whole number of at least 1, got True"),
        (("dim",), 10**30, "dim must be a whole number of at most 65536"),
        (("metric",), "l2", "metric must be 'cosine', got 'l2'"),
        (("vectors", "file"), "../v", "vectors must be {'file': 'vectors.faiss', .*, got .*/v"),
        (("vectors", "offset"), -1, "vectors must be {.* 'offset': 81, .*, got .* -1"),
        (("vectors", "dtype"), [], r"vectors must be {.* 'dtype': '<f2'}, got .*\[\]"),
        (("files", "coarse.faiss", "size"), float("inf"), "size must be .*, got inf"),
        (("files", "coarse.faiss", "size"), 10**30, "size must be a whole number of at most"),
        (("files", "coarse.faiss", "sha256"), None, "sha256 must be text, got None"),
        (("config",), [1], r"an index config is a mapping of its fields, got \[1\]"),
        (("config", "shortlist"), 2**31, "shortlist must be a whole number of at most"),
        (("tuning",), 3, "tuning must be a mapping, got 3"),
        (("provenance",), {"a": "\ud800"}, "was altered"),
    ],
)
def test_a_value_that_no_segment_has_is_named(
    place: tuple[str, ...], bad: object, message: str
) -> None:
    with pytest.raises(SegmentError, match=message):
        Manifest.from_json(resigned(place, bad))


NAMES = ["", ".", "..", "../evil", "/etc/passwd", "a/b", "a\\b", "c:a", "a\n", "a\0", "x" * 256]


@pytest.mark.parametrize("name", NAMES)
def test_files_lie_in_the_folder(name: str) -> None:
    entry = {"size": 1, "sha256": "ab"}
    with pytest.raises(SegmentError, match="plain names without a folder, got") as refused:
        Manifest.from_json(resigned(("files",), {name: entry}))
    assert str(refused.value).isprintable() and len(str(refused.value)) < 250


def resigned(place: tuple[str, ...], value: object) -> str:
    """The text of MANIFEST with another value, and the checksum of that."""
    values = json.loads(MANIFEST.to_json())
    inner = values
    for name in place[:-1]:
        inner = inner[name]
    inner[place[-1]] = value
    del values["sha256"]
    canonical = json.dumps(values, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    values["sha256"] = hashlib.sha256(canonical.encode("utf-8", "surrogatepass")).hexdigest()
    return json.dumps(values)
