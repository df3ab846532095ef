"""manifest.json."""

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from conftest import REPOSITORY

from indexer.config import Code, RotationKind, SegmentConfig, Structure
from indexer.errors import SegmentConfigError, SegmentError
from indexer.segment import Segment
from indexer.storage.manifest import FileEntry, Manifest
from indexer.tuning.cost import cost, footprint
from indexer.tuning.points import OperatingPoint

OLD = REPOSITORY / "tests" / "format-1"
BEFORE = REPOSITORY / "tests" / "format-2"

MANIFEST = Manifest(
    rows=5,
    dim=8,
    config=SegmentConfig(prefix=4, structure=Structure.HNSW),
    vectors_file="vectors.faiss",
    vectors_offset=81,
    vectors_dtype="<f2",
    files={"coarse.faiss": FileEntry(3, "ab"), "vectors.faiss": FileEntry(9, "cd")},
    provenance={"encoder": "été/模型"},
)


def test_a_manifest_survives_json() -> None:
    assert Manifest.from_json(MANIFEST.to_json()) == MANIFEST
    assert Manifest.from_json(MANIFEST.to_json().encode()) == MANIFEST


def test_tuning_is_kept_and_covered_by_the_checksum() -> None:
    tuned = replace(MANIFEST, tuning={"target": 0.95, "queries": [1, 2]})
    assert Manifest.from_json(tuned.to_json()) == tuned
    values = json.loads(tuned.to_json())
    values["tuning"]["target"] = 0.99
    with pytest.raises(SegmentError, match="was altered"):
        Manifest.from_json(json.dumps(values))


@pytest.mark.parametrize("text", ["", "{", b"\xff\xfe{}"])
def test_what_is_no_json_is_refused(text: str | bytes) -> None:
    with pytest.raises(SegmentError, match=r"here/m\.json is not valid JSON"):
        Manifest.from_json(text, "here/m.json")


def test_foreign_json_and_unknown_formats_are_refused() -> None:
    for text in ("[]", "3", "{}"):
        with pytest.raises(SegmentError, match="is not the manifest of a segment"):
            Manifest.from_json(text)
    for unknown in (0, 4, "2", None):
        values = json.loads(MANIFEST.to_json()) | {"format": unknown}
        with pytest.raises(SegmentError, match=r"has format .* reads formats 1 to 3; install"):
            Manifest.from_json(json.dumps(values))


def test_an_altered_value_is_noticed() -> None:
    values = json.loads(MANIFEST.to_json())
    assert Manifest.from_json(json.dumps(values)) == MANIFEST  # layout is free
    for change in ({"rows": 6}, {"provenance": {}}, {"sha256": "0"}):
        with pytest.raises(SegmentError, match="was altered"):
            Manifest.from_json(json.dumps(values | change))


@pytest.mark.parametrize(
    "change",
    [
        {"rows": 0},
        {"dim": "8"},
        {"metric": "l2"},
        {"config": {"prefix": 0}},
        {"config": {"new": 1}},
        {"vectors": {}},
        {"vectors": 3},
        {"files": {"a": {}}},
        {"provenance": []},
    ],
)
def test_a_wrong_value_with_a_right_checksum_is_refused(
    change: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    values = json.loads(MANIFEST.to_json()) | change
    monkeypatch.setattr("indexer.storage.manifest._checksum", lambda _: values["sha256"])
    with pytest.raises(SegmentError, match="has a missing or invalid value"):
        Manifest.from_json(json.dumps(values))


@pytest.mark.parametrize("bad", [-1, "5", 2.5])
def test_what_the_rotation_was_fitted_on_is_a_count(
    bad: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = json.loads(MANIFEST.to_json()) | {"fitted_on": bad}
    monkeypatch.setattr("indexer.storage.manifest._checksum", lambda _: values["sha256"])
    with pytest.raises(SegmentError, match="fitted_on must be a whole number"):
        Manifest.from_json(json.dumps(values))


@pytest.mark.parametrize(
    ("place", "bad", "message"),
    [
        (("format",), True, "has format True"),
        (("rows",), 2**40 + 1, "rows must be a whole number of at most"),
        (("rows",), True, "rows must be a whole number of at least 1, got True"),
        (("dim",), 10**30, "dim must be a whole number of at most 1048576"),
        (("vectors", "offset"), -1, "offset must be a whole number of at least 0"),
        (("vectors", "offset"), "abc", "offset must be a whole number"),
        (("vectors", "offset"), float("nan"), "offset must be .*, got nan"),
        (("vectors", "dtype"), [], r"dtype must be text, got \[\]"),
        (("files", "coarse.faiss", "size"), float("inf"), "size must be .*, got inf"),
        (("files", "coarse.faiss", "size"), 10**30, "size must be a whole number of at most"),
        (("files", "coarse.faiss", "sha256"), None, "sha256 must be text, got None"),
        (("config",), [1], r"segment settings must be a mapping, got \[1\]"),
        (("config", "blocks"), 3, "blocks must be a list of whole numbers, got 3"),
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
    for place, bad in ((("vectors", "file"), name), (("files",), {name: entry})):
        with pytest.raises(SegmentError, match="plain names without a folder, got") as refused:
            Manifest.from_json(resigned(place, bad))
        assert str(refused.value).isprintable() and len(str(refused.value)) < 250


def test_what_is_nested_too_deep_is_refused() -> None:
    # Somewhere below Python's limit JSON can be read and can no longer be written or shown.
    with pytest.raises(SegmentError, match="is not valid JSON"):
        Manifest.from_json("[" * 100_000)
    for levels in range(850, 1000):
        deep = "[" * levels + "]" * levels
        for text in (f'{{"format": 3, "rows": {deep}}}', f'{{"format": {deep}}}'):
            with pytest.raises(SegmentError):
                Manifest.from_json(text)


@pytest.mark.parametrize("long", ["x" * 5000, ["y" * 500] * 500, {"z" * 500: [[[1]] * 99] * 99}])
def test_long_values_are_shown_shortened(long: object) -> None:
    for place in (("rows",), ("metric",), ("format",), ("config", "code"), ("config", "stages")):
        with pytest.raises(SegmentError) as refused:
            Manifest.from_json(resigned(place, long))
        assert len(str(refused.value)) < 600


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


# --- formats 1 and 2 -------------------------------------------------------------------------
# Two segments of the same 40 rows, written by the version before format 2; and two of format 2.

OLD_ROWS = np.random.default_rng(40).standard_normal((40, 8)).astype(np.float32)


@pytest.mark.parametrize("name", ["flat-fp16", "hnsw-int8"])
@pytest.mark.parametrize("written", [1, 2])
def test_a_segment_of_an_older_format_opens_and_searches_to_the_right_rows(
    written: int, name: str
) -> None:
    folder = (OLD if written == 1 else BEFORE) / name
    assert json.loads((folder / "manifest.json").read_text())["format"] == written
    unit = OLD_ROWS / np.linalg.norm(OLD_ROWS, axis=1, keepdims=True)
    queries = np.random.default_rng(41).standard_normal((25, 8))
    scores = queries / np.linalg.norm(queries, axis=1, keepdims=True) @ unit.T
    nearest = np.argsort(-scores, axis=1)[:, :3]
    with Segment.open(folder) as segment:
        segment.verify()
        assert (segment.rows, segment.dim) == (40, 8)
        assert segment.manifest.fitted_on == (0 if name == "flat-fp16" else 40)
        tuned = (written, name) == (2, "hnsw-int8")
        assert segment.manifest.tuning == ({"bound": "by hand"} if tuned else None)
        np.testing.assert_allclose(segment.vectors(np.arange(40)), unit, atol=1e-3)
        for found in (segment.exact(queries, 3), segment.search(queries, 3, shortlist=40)):
            np.testing.assert_array_equal(found.rows, nearest)
            np.testing.assert_allclose(
                found.scores, np.take_along_axis(scores, nearest, axis=1), atol=1e-3
            )
        short = segment.search(queries, 3, shortlist=20)  # half of them, by 4 of 8 numbers
        assert np.mean(short.rows[:, 0] == nearest[:, 0]) > 0.9
        for rows in (short.rows, segment.search(queries, 3, allowed=np.arange(0, 40, 2)).rows):
            assert ((rows >= 0) & (rows < 40)).all()


def test_the_settings_of_format_1_mean_what_they_meant() -> None:
    with Segment.open(OLD / "hnsw-int8") as graph, Segment.open(OLD / "flat-fp16") as flat:
        assert graph.config == SegmentConfig(
            prefix=4, structure=Structure.HNSW, code=Code.INT8, shortlist=10, hnsw_m=4
        )
        assert flat.config == SegmentConfig(prefix=4, rotation=RotationKind.IDENTITY, shortlist=10)


def test_a_segment_of_format_1_is_rebuilt_as_one_of_the_newest(tmp_path: Path) -> None:
    with Segment.open(OLD / "hnsw-int8") as old:
        rebuilt = old.rebuild(tmp_path / "new", replace(old.config, prefix=8))
        text = (tmp_path / "new" / "manifest.json").read_text()
        assert json.loads(text)["format"] == 3
        np.testing.assert_array_equal(rebuilt.vectors(np.arange(40)), old.vectors(np.arange(40)))
        assert rebuilt.manifest.provenance == old.manifest.provenance
        rebuilt.verify()


def test_segments_of_older_formats_are_merged(tmp_path: Path) -> None:
    with Segment.open(OLD / "hnsw-int8") as old, Segment.open(BEFORE / "hnsw-int8") as newer:
        merged = Segment.merge(tmp_path / "m", [(old, None), (newer, [1, 5])], newer.config)
    expected = np.concatenate([OLD_ROWS, OLD_ROWS[[1, 5]]])
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(merged.vectors(np.arange(42)), expected, atol=1e-3)
    assert merged.manifest.fitted_on == 40
    merged.verify()


# --- NSG -----------------------------------------------------------------------------------------
# A segment of these rows with a structure that is no longer built, written while it was.

NSG = REPOSITORY / "tests" / "format-3" / "nsg-int8"
NSG_ROWS = np.random.default_rng(7).standard_normal((1000, 16)).astype(np.float32)


def test_an_nsg_segment_opens_and_finds_its_rows() -> None:
    unit = NSG_ROWS / np.linalg.norm(NSG_ROWS, axis=1, keepdims=True)
    every = np.arange(1000)
    with Segment.open(NSG) as segment:
        segment.verify()
        assert segment.config.structure is Structure.NSG
        np.testing.assert_allclose(segment.vectors(every), unit, atol=1e-3)
        np.testing.assert_array_equal(segment.search(NSG_ROWS, 1).rows[:, 0], every)
        alone = [segment.search(row[None], 1).rows[0, 0] for row in NSG_ROWS[:20]]
        assert alone == [*range(20)]
        allowed = every[::2]
        for found in (
            segment.exact(NSG_ROWS, 3, allowed).rows,
            segment.search(NSG_ROWS, 3, allowed=allowed).rows,
            segment.shortlist(segment.rotate(NSG_ROWS), 3, allowed),
        ):
            assert (found % 2 == 0).all()
        np.testing.assert_array_equal(
            segment.search(NSG_ROWS[::2], 1, allowed=allowed).rows[:, 0], allowed
        )
        assert footprint(segment.config, 1000, 16).code == 8
        point = OperatingPoint((segment,), (None,), 3, None)
        assert cost(point, NSG_ROWS[:2]) is None  # faiss does not count its steps


def test_nsg_is_refused_for_a_new_segment(tmp_path: Path) -> None:
    refused = pytest.raises(
        SegmentConfigError, match="must be one of flat, ivf, hnsw in a new segment, got nsg"
    )
    with Segment.open(NSG) as old:
        config = old.config
        for rows in (NSG_ROWS, NSG_ROWS[:9]):
            with refused:
                Segment.build(tmp_path / "s", rows, config)
        with refused:
            old.rebuild(tmp_path / "s", config)
        with refused:
            Segment.merge(tmp_path / "s", [(old, None)], config)
        with refused:
            old.over(config, np.arange(1000))
        assert [*tmp_path.iterdir()] == []
        with old.rebuild(tmp_path / "s", replace(config, structure=Structure.HNSW)) as graph:
            assert (graph.search(NSG_ROWS, 1).rows[:, 0] == np.arange(1000)).mean() > 0.99
