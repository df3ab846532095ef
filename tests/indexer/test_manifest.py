"""manifest.json, and the settings of a segment."""

import hashlib
import json
from dataclasses import replace

import numpy as np
import pytest

from searchengine.indexer.config import FLAT_BELOW, Code, RotationKind, SegmentConfig, Structure
from searchengine.indexer.errors import SegmentConfigError, SegmentError
from searchengine.indexer.storage.files import FileEntry, Manifest

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


@pytest.mark.parametrize("name", ["", "../vectors.faiss", "/etc/passwd", "a\n", "x" * 256])
def test_files_lie_in_the_folder(name: str) -> None:
    entry = {"size": 1, "sha256": "ab"}
    with pytest.raises(SegmentError, match="a segment has no file") as refused:
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


# --- settings -------------------------------------------------------------------------------------


def test_plain_values_of_json_and_numpy_become_members_and_integers() -> None:
    settings = {"structure": "hnsw", "code": "int8", "rotation": "identity"}
    numbers = {"prefix": np.int64(64), "shortlist": np.uint16(300)}
    stages = [[np.int32(128), 50]]
    config = SegmentConfig.from_dict({**settings, **numbers, "stages": stages})
    assert config.structure is Structure.HNSW and config.code is Code.INT8
    assert config.rotation is RotationKind.IDENTITY and config.stages == ((128, 50),)
    again = SegmentConfig.from_dict(json.loads(json.dumps(config.as_dict())))
    assert again == config and hash(again) == hash(config) and again.shortlist == 300
    for value in (np.bool_(True), np.float64(64), np.array([64, 64])):
        with pytest.raises(SegmentConfigError, match="prefix must be a whole number"):
            SegmentConfig(prefix=value)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"structure": "tree"}, "structure must be one of flat, ivf, hnsw, got 'tree'"),
        ({"code": 8}, "code must be one of fp16, int8, got 8"),
        ({"rotation": "random"}, "rotation must be one of pca, identity, got"),
        ({"storage": "int8"}, "storage must be one of float16, float32"),
        ({"prefix": 0}, "prefix must be a whole number of at least 1, got 0"),
        ({"prefix": True}, "prefix must be a whole number"),
        ({"shortlist": 1.5}, r"shortlist must be a whole number of at least 0, got 1\.5"),
        ({"effort": 9}, "effort must be 0 for the structure flat, got 9"),
        ({"effort": -1}, "effort must be a whole number of at least 0, got -1"),
        ({"effort": "9"}, "effort must be a whole number"),
        ({"preffix": 3}, "'preffix' is no field of an index config; they are prefix"),
        ({"stages": [128, 50]}, r"stages must be \(width, rows to keep\) pairs"),
        ({"stages": [[128]]}, r"stages must be \(width"),
        ({"stages": [[128, 0]]}, "stages must be a whole number of at least 1, got 0"),
        ({"stages": [[64, 50]]}, "stages must be wider than the prefix of 64"),
        ({"stages": [[128, 100]]}, "fewer rows than the shortlist of 100"),
        ({"stages": [[256, 50], [128, 20]]}, r"got \[\(256, 50\), \(128, 20\)\]"),
        ({"stages": [[128, 50], [256, 50]]}, "keep fewer rows"),
    ],
)
def test_a_bad_setting_is_named_in_one_sentence(values: dict[str, object], message: str) -> None:
    with pytest.raises(SegmentConfigError, match=message) as refused:
        SegmentConfig.from_dict(values)
    assert "\n" not in str(refused.value)


def test_a_small_segment_is_flat_and_otherwise_as_asked() -> None:
    """Graphs and lists save nothing there; what is no part of the coarse stage stays."""
    config = SegmentConfig(64, "hnsw", "int8", effort=50, stages=((128, 20),))  # type: ignore[arg-type]
    assert config.fitting(FLAT_BELOW, 512) is config
    small = config.fitting(FLAT_BELOW - 1, 512)
    assert small == SegmentConfig(64, stages=((128, 20),)) and small.fitting(5, 512) is small
    with pytest.raises(SegmentConfigError, match=r"is wider than the vectors \(3\); set it to"):
        config.fitting(FLAT_BELOW, 3)
