"""manifest.json."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from indexer.config import Code, RotationKind, SegmentConfig, Storage, Structure
from indexer.errors import SegmentConfigError, SegmentError
from indexer.manifest import FileEntry, Manifest

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

configs = st.builds(
    SegmentConfig,
    prefix=st.integers(1, 4096),
    structure=st.sampled_from(Structure),
    code=st.sampled_from(Code),
    rotation=st.sampled_from(RotationKind),
    storage=st.sampled_from(Storage),
    shortlist=st.integers(1, 10**6),
    hnsw_m=st.integers(2, 512),
    ef_construction=st.integers(1, 5000),
)


def test_a_manifest_survives_json() -> None:
    assert Manifest.from_json(MANIFEST.to_json()) == MANIFEST
    assert Manifest.from_json(MANIFEST.to_json().encode()) == MANIFEST


@given(configs)
def test_a_config_survives_json(config: SegmentConfig) -> None:
    assert SegmentConfig.from_dict(json.loads(json.dumps(config.as_dict()))) == config


def test_plain_strings_become_members() -> None:
    config = SegmentConfig.from_dict({"structure": "hnsw", "code": "int8"})
    assert config.structure is Structure.HNSW and config.code is Code.INT8
    assert config.rotation is RotationKind.PCA and config.storage is Storage.FLOAT16


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"structure": "ivf"}, "structure must be one of flat, hnsw, got 'ivf'"),
        ({"code": 8}, "code must be one of fp32, fp16, int8, got 8"),
        ({"rotation": "random"}, "rotation must be one of pca, identity"),
        ({"storage": "int8"}, "storage must be one of float16, float32"),
        ({"prefix": 0}, "prefix must be a whole number of at least 1, got 0"),
        ({"prefix": True}, "prefix must be a whole number"),
        ({"shortlist": 1.5}, "shortlist must be a whole number of at least 1, got 1.5"),
        ({"hnsw_m": 1}, "hnsw_m must be a whole number of at least 2"),
        ({"ef_construction": "9"}, "ef_construction must be a whole number"),
        ({"preffix": 3}, "unknown segment setting 'preffix'"),
    ],
)
def test_a_bad_setting_is_named(values: dict[str, object], message: str) -> None:
    with pytest.raises(SegmentConfigError, match=message):
        SegmentConfig.from_dict(values)


@pytest.mark.parametrize("text", ["", "{", b"\xff\xfe{}"])
def test_what_is_no_json_is_refused(text: str | bytes) -> None:
    with pytest.raises(SegmentError, match=r"here/m\.json is not valid JSON"):
        Manifest.from_json(text, "here/m.json")


def test_foreign_json_and_unknown_formats_are_refused() -> None:
    for text in ("[]", "3", "{}"):
        with pytest.raises(SegmentError, match="is not the manifest of a segment"):
            Manifest.from_json(text)
    values = json.loads(MANIFEST.to_json()) | {"format": 2}
    with pytest.raises(SegmentError, match="has format 2 and this version reads format 1"):
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
    monkeypatch.setattr("indexer.manifest._checksum", lambda _: values["sha256"])
    with pytest.raises(SegmentError, match="lacks a value or holds a wrong one"):
        Manifest.from_json(json.dumps(values))
