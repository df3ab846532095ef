"""Several segments written as one."""

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from conftest import disk_full_at
from hypothesis import given
from hypothesis import strategies as st

from searchengine.indexer.arrays import unit_rows
from searchengine.indexer.building.coarse import build_coarse
from searchengine.indexer.errors import SegmentConfigError, SegmentError, VectorError
from searchengine.indexer.search.allowed import Allowed
from searchengine.indexer.segment import RotationKind, Segment, SegmentConfig, Storage

DIM = 24
CONFIG = SegmentConfig(prefix=8, shortlist=40)


def rows(n: int, seed: int) -> np.ndarray:
    fixed = np.random.default_rng(7)
    centres = fixed.standard_normal((20, DIM)) * np.arange(1, DIM + 1) ** -0.5
    rng = np.random.default_rng(seed)
    return (centres[rng.integers(20, size=n)] + 0.2 * rng.standard_normal((n, DIM))).astype("f4")


def unit(of: np.ndarray) -> np.ndarray:
    return of / np.linalg.norm(of, axis=1, keepdims=True)


QUERIES = rows(12, 1)


def raw(segment: Segment) -> np.ndarray:
    file, checksum, *_ = segment._part(None)
    return np.concatenate([stored.copy() for stored, _ in file.verified(checksum)])


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
        merged.verify()
        expected = Segment.build(path / "all", vectors[live], config)
        assert (merged.rows, merged.config) == (expected.rows, expected.config)
        assert merged.manifest.files == expected.manifest.files  # every byte
        tolerance = 1e-6 if storage is Storage.FLOAT32 else 1e-3
        np.testing.assert_allclose(
            merged.vectors(np.arange(merged.rows)), unit(vectors[live]), atol=tolerance
        )
        found, best = merged.exact(QUERIES, 5), expected.exact(QUERIES, 5)
        np.testing.assert_array_equal(found.rows, best.rows)
        np.testing.assert_array_equal(found.scores, best.scores)


@pytest.mark.parametrize("storage", Storage)
def test_successive_merges_change_no_row(tmp_path: Path, storage: Storage) -> None:
    config = replace(CONFIG, storage=storage)
    vectors = rows(300, 0)
    first = segment = Segment.build(tmp_path / "0", vectors, config)
    for i in range(1, 21):
        extra = Segment.build(tmp_path / f"e{i}", rows(20, 50 + i), config)
        parts = [(segment, None), (extra, None)]
        segment = Segment.merge(tmp_path / str(i), parts, config)
    assert segment.rows == 700
    np.testing.assert_array_equal(raw(segment)[:300], raw(first))


def test_another_storage_or_rotation_may_be_asked_for(tmp_path: Path) -> None:
    parts = [(Segment.build(tmp_path / "a", rows(60, 0), CONFIG), None)]
    wanted = unit(rows(60, 0))
    identity = replace(CONFIG, rotation=RotationKind.IDENTITY)
    for i, config in enumerate([replace(CONFIG, storage=Storage.FLOAT32), identity]):
        merged = Segment.merge(tmp_path / f"m{i}", parts, config)
        assert merged.config == config
        np.testing.assert_allclose(merged.vectors(np.arange(60)), wanted, atol=1e-3)
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
        ([(first, None), (narrow, None)], CONFIG, VectorError, "equal dimensions, got 24 and 12"),
        ([(first, [50])], CONFIG, VectorError, r"rise strictly within \[0, 50\)"),
        ([(first, None)], wide, SegmentConfigError, "prefix 25 is wider"),
        ([(closed, None)], CONFIG, SegmentError, "is closed"),
    ):
        with pytest.raises(error, match=message):
            Segment.merge(tmp_path / "m", parts, config)  # type: ignore[arg-type]
    assert {path.name for path in tmp_path.iterdir()} == {"a", "b"}
    with pytest.raises(SegmentError, match="already exists"):
        Segment.merge(tmp_path / "b", [(first, None)], CONFIG)
    narrow.verify()


@pytest.mark.parametrize("call", range(1, 7))
def test_a_full_disk_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: int
) -> None:
    first = Segment.build(tmp_path / "a", rows(50, 0), CONFIG)
    second = Segment.build(tmp_path / "b", rows(50, 1), CONFIG)
    disk_full_at(monkeypatch, call)
    with pytest.raises(OSError, match="No space left"):
        Segment.merge(tmp_path / "m", [(first, None), (second, None)], CONFIG)
    assert {path.name for path in tmp_path.iterdir()} == {"a", "b"}
    first.verify()


def test_everything_is_synced_and_the_manifest_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Segment.build(tmp_path / "a", rows(50, 0), CONFIG)
    done: list[tuple[str, int]] = []
    notes = {"provenance": {"by": "hand"}, "tuning": {"target": 0.9}}
    syncs = disk_full_at(monkeypatch, 0)
    merged = Segment.merge(
        tmp_path / "m",
        [(first, None), (first, [3])],
        CONFIG,
        progress=lambda doing, n, total: done.append((doing, n)),
        **notes,  # type: ignore[arg-type]
    )
    assert syncs() == 6  # vectors, rotation, coarse stage, manifest, two folders
    assert done == [("Merging", 50), ("Merging", 1), ("Building", 51)]
    assert merged.manifest.provenance == notes["provenance"]
    assert merged.manifest.tuning == notes["tuning"]


def test_a_plain_coarse_file_holds_the_prefixes(tmp_path: Path) -> None:
    """It is written row by row and not by faiss, which reads it all the same."""
    rows = np.random.default_rng(0).normal(size=(1500, 24)).astype(np.float32)
    with Segment.build(tmp_path / "s", rows, CONFIG) as segment:
        prefixes = segment.prefixes(CONFIG)
        raw = (tmp_path / "s" / "coarse.faiss").read_bytes()
        stored = np.frombuffer(raw[-1500 * 8 * 2 :], np.float16)
        whole = np.concatenate([*prefixes.blocks()])
        assert np.array_equal(stored.reshape(1500, 8), whole.astype(np.float16))
        queries = unit_rows(rows[:20])
        expected = build_coarse(prefixes, CONFIG).shortlist(prefixes.of(queries), 50)
        assert np.array_equal(segment.shortlist(queries, 50), expected)


def rotation(segment: Segment) -> np.ndarray:
    return np.load(segment.path / "rotation.npy")


def test_rows_take_the_rotation_of_others_that_are_like_them(tmp_path: Path) -> None:
    many = Segment.build(tmp_path / "a", rows(1500, 0), CONFIG)
    few = Segment.build(tmp_path / "b", rows(50, 1), CONFIG, like=many)
    np.testing.assert_array_equal(rotation(few), rotation(many))
    narrow = Segment.build(tmp_path / "c", rows(50, 1), replace(CONFIG, prefix=5), like=many)
    np.testing.assert_array_equal(rotation(narrow), rotation(many)[:5])


def test_other_rows_fit_a_rotation_of_their_own(tmp_path: Path) -> None:
    """Those of another domain lie along other directions: few would be in a shortlist."""
    many = Segment.build(tmp_path / "a", rows(1500, 0), CONFIG)
    for i, (other, config) in enumerate(
        (
            (rows(1200, 1)[:, ::-1], CONFIG),
            (rows(50, 1), replace(CONFIG, prefix=9)),
            (rows(50, 1)[:, :12], CONFIG),
        )
    ):
        segment = Segment.build(tmp_path / f"b{i}", other, config, like=many)
        alone = Segment.build(tmp_path / f"c{i}", other, config)
        np.testing.assert_array_equal(rotation(segment), rotation(alone))
    plain = replace(CONFIG, rotation=RotationKind.IDENTITY)
    Segment.build(tmp_path / "d", rows(50, 1), plain, like=many)
    assert not (tmp_path / "d" / "rotation.npy").exists()
