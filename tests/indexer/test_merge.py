"""Several segments written as one."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from clustered import clustered
from hypothesis import given
from hypothesis import strategies as st

from searchengine.indexer.arrays import unit_rows
from searchengine.indexer.config import RotationKind, Storage
from searchengine.indexer.errors import SegmentConfigError, SegmentError, VectorError
from searchengine.indexer.search.scoring import Allowed
from searchengine.indexer.segment import Segment, SegmentConfig

DIM = 24
CONFIG = SegmentConfig(prefix=8, shortlist=40)


rows = partial(clustered, dim=DIM, centres=20, noise=0.2)
QUERIES = rows(12, 1)


def raw(segment: Segment) -> np.ndarray:
    file, checksum, *_ = segment._part(None)
    return np.concatenate([stored.copy() for stored in file.verified(checksum)])


@given(st.data())
def test_merged_is_what_building_the_live_rows_makes(data: st.DataObject) -> None:
    """Splits, deletions and rotations at random; the rows of a part may all be dead."""
    rng = np.random.default_rng(data.draw(st.integers(0, 9999)))
    storage = data.draw(st.sampled_from(Storage))
    kind = data.draw(st.sampled_from([RotationKind.PCA, RotationKind.IDENTITY]))
    config = replace(CONFIG, storage=storage, rotation=kind)
    vectors = rows(data.draw(st.integers(2, 300)), int(rng.integers(99)))
    cuts = np.sort(rng.integers(1, len(vectors), data.draw(st.integers(0, 3))))
    live = rng.random(len(vectors)) < rng.choice([0.1, 0.6, 1])
    live[rng.integers(len(vectors))] = True
    with TemporaryDirectory() as folder:
        path, parts = Path(folder), []
        for i, piece in enumerate(np.split(np.arange(len(vectors)), np.unique(cuts))):
            part = Segment.build(path / str(i), vectors[piece], config)
            kept = np.flatnonzero(live[piece])
            choice = rng.integers(3)
            rest = None if kept.size == piece.size and choice else kept
            parts.append((part, Allowed.from_rows(kept, part.rows) if choice == 2 else rest))
        merged = Segment.merge(path / "m", parts, config)
        for part, _ in parts:
            part.close()
        assert sum(map(len, merged.verified())) == merged.rows
        expected = Segment.build(path / "all", vectors[live], config)
        assert (merged.rows, merged.config) == (expected.rows, expected.config)
        assert merged.manifest.files == expected.manifest.files  # every byte
        tolerance = 1e-6 if storage is Storage.FLOAT32 else 1e-3
        np.testing.assert_allclose(
            merged.vectors(np.arange(merged.rows)), unit_rows(vectors[live]), atol=tolerance
        )
        found, best = merged.exact(QUERIES, 5), expected.exact(QUERIES, 5)
        np.testing.assert_array_equal(found.rows, best.rows)
        np.testing.assert_array_equal(found.scores, best.scores)


def test_another_storage_or_rotation_may_be_asked_for(tmp_path: Path) -> None:
    """And what is noted and tuned is kept; progress counts every row."""
    parts = [(Segment.build(tmp_path / "a", rows(60, 0), CONFIG), [*range(50)])]
    identity, steps = replace(CONFIG, rotation=RotationKind.IDENTITY), []
    notes: dict[str, Any] = {"provenance": {"by": "hand"}, "tuning": {"target": 0.9}}
    for i, config in enumerate([replace(CONFIG, storage=Storage.FLOAT32), identity]):
        merged = Segment.merge(
            tmp_path / f"m{i}",
            parts,  # type: ignore[arg-type]
            config,
            progress=lambda doing, n, total: steps.append((doing, n)),
            **notes,
        )
        assert merged.config == config
        np.testing.assert_allclose(
            merged.vectors(np.arange(50)), unit_rows(rows(60, 0))[:50], atol=1e-3
        )
        assert {name: getattr(merged.manifest, name) for name in notes} == notes
    assert steps == [("Merging", 50), ("Building", 50)] * 2
    assert not (merged.path / "rotation.npy").exists()


def test_what_cannot_be_merged_is_refused(tmp_path: Path) -> None:
    first = Segment.build(tmp_path / "a", rows(50, 0), CONFIG)
    narrow = Segment.build(tmp_path / "b", rows(50, 0)[:, :12], CONFIG)
    closed = Segment.open(tmp_path / "a")
    closed.close()
    wide = replace(CONFIG, prefix=DIM + 1)
    for parts, config, error, message in (
        ([], CONFIG, VectorError, "at least one vector, got none"),
        ([(first, [])], CONFIG, VectorError, "at least one vector, got none"),
        ([(first, None), (narrow, None)], CONFIG, SegmentError, "bytes, expected"),
        ([(first, [50])], CONFIG, VectorError, r"rise strictly within \[0, 50\)"),
        ([(first, None)], wide, SegmentConfigError, "prefix 25 is wider"),
        ([(closed, None)], CONFIG, SegmentError, "is closed"),
    ):
        with pytest.raises(error, match=message):
            Segment.merge(tmp_path / "m", parts, config)  # type: ignore[arg-type]
    assert {path.name for path in tmp_path.iterdir()} == {"a", "b"}
    with pytest.raises(SegmentError, match="already exists"):
        Segment.merge(tmp_path / "b", [(first, None)], CONFIG)


def rotation(segment: Segment) -> np.ndarray:
    return np.load(segment.path / "rotation.npy")


def test_rows_take_the_rotation_of_others_that_are_like_them(tmp_path: Path) -> None:
    """Other rows fit their own: those of another domain lie along other directions."""
    many, narrow = Segment.build(tmp_path / "a", rows(1500, 0), CONFIG), replace(CONFIG, prefix=5)
    for i, (others, config, taken) in enumerate(
        (
            (rows(50, 1), CONFIG, True),
            (rows(50, 1), narrow, True),
            (rows(1200, 1)[:, ::-1], CONFIG, False),
            (rows(50, 1), replace(CONFIG, prefix=9), False),
            (rows(50, 1)[:, :12], CONFIG, False),
        )
    ):
        segment = Segment.build(tmp_path / f"b{i}", others, config, like=many)
        alone = Segment.build(tmp_path / f"c{i}", others, config)
        expected = rotation(many)[: config.prefix] if taken else rotation(alone)
        np.testing.assert_array_equal(rotation(segment), expected)
    plain = replace(CONFIG, rotation=RotationKind.IDENTITY)
    Segment.build(tmp_path / "d", rows(50, 1), plain, like=many)
    assert not (tmp_path / "d" / "rotation.npy").exists()
