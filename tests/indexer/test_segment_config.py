"""The settings of a segment."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from searchengine.indexer.config import (
    FLAT_BELOW,
    Code,
    RotationKind,
    SegmentConfig,
    Storage,
    Structure,
)
from searchengine.indexer.errors import SegmentConfigError

WALKED = (Structure.HNSW, Structure.IVF)


@st.composite
def configs(draw: st.DrawFn) -> SegmentConfig:
    structure = draw(st.sampled_from(Structure))
    prefix = draw(st.integers(4, 4096))
    shortlist = draw(st.integers(1, 10**6))
    count = draw(st.integers(0, min(3, shortlist - 1)))
    several = {"min_size": count, "max_size": count}
    widths = draw(st.sets(st.integers(prefix + 1, 2 * prefix + 9), **several))
    kept = draw(st.sets(st.integers(1, max(1, shortlist - 1)), **several))
    return SegmentConfig(
        prefix=prefix,
        structure=structure,
        code=draw(st.sampled_from(Code)),
        rotation=draw(st.sampled_from(RotationKind)),
        storage=draw(st.sampled_from(Storage)),
        shortlist=shortlist,
        effort=draw(st.integers(0, 5000)) if structure in WALKED else 0,
        stages=tuple(zip(sorted(widths), sorted(kept, reverse=True), strict=True)),
    )


@given(configs())
def test_a_config_survives_json(config: SegmentConfig) -> None:
    again = SegmentConfig.from_dict(json.loads(json.dumps(config.as_dict())))
    assert again == config and hash(again) == hash(config)
    assert all(type(stage) is tuple for stage in again.stages)


def test_plain_values_of_json_and_numpy_become_members_and_integers() -> None:
    settings = {"structure": "hnsw", "code": "int8", "rotation": "identity"}
    numbers = {"prefix": np.int64(64), "shortlist": np.uint16(300)}
    stages = [[np.int32(128), 50]]
    config = SegmentConfig.from_dict({**settings, **numbers, "stages": stages})
    assert config.structure is Structure.HNSW and config.code is Code.INT8
    assert config.rotation is RotationKind.IDENTITY and config.stages == ((128, 50),)
    assert json.loads(json.dumps(config.as_dict()))["shortlist"] == 300
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


@given(configs())
def test_a_small_segment_is_flat_and_otherwise_as_asked(config: SegmentConfig) -> None:
    assert config.fitting(FLAT_BELOW, 60_000) is config
    small = config.fitting(FLAT_BELOW - 1, 60_000)
    assert small.structure is Structure.FLAT and small.code is Code.FP16
    kept = ("prefix", "rotation", "storage", "shortlist", "stages")
    assert all(getattr(small, name) == getattr(config, name) for name in kept)
    assert small.fitting(5, 60_000) is small
    with pytest.raises(
        SegmentConfigError, match=r"is wider than the vectors \(3\); set it to 3 or"
    ):
        config.fitting(FLAT_BELOW, 3)
