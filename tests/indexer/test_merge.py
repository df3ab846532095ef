"""Several segments written as one, and a rotation taken from another."""

import os
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from conftest import disk_full_at
from hypothesis import given
from hypothesis import strategies as st

from searchengine.indexer.building.coarse import build_coarse
from searchengine.indexer.errors import SegmentConfigError, SegmentError, VectorError
from searchengine.indexer.search.allowed import Allowed
from searchengine.indexer.segment import RotationKind, Segment, SegmentConfig, Storage

DIM = 24
CONFIG = SegmentConfig(prefix=8, shortlist=40)
IDENTITY = replace(CONFIG, rotation=RotationKind.IDENTITY)


def rows(n: int, seed: int) -> np.ndarray:
    fixed = np.random.default_rng(7)
    centres = fixed.standard_normal((20, DIM)) * np.arange(1, DIM + 1) ** -0.5
    rng = np.random.default_rng(seed)
    return (centres[rng.integers(20, size=n)] + 0.2 * rng.standard_normal((n, DIM))).astype("f4")


def unit(of: np.ndarray) -> np.ndarray:
    return of / np.linalg.norm(of, axis=1, keepdims=True)


QUERIES = rows(12, 1)


def raw(segment: Segment) -> np.ndarray:
    return np.concatenate([stored.copy() for stored, _ in segment._part(None).blocks()])


@given(st.data())
def test_merged_is_what_building_the_live_rows_makes(data: st.DataObject) -> None:
    """Splits, deletions and rotations at random; the rows of a part may all be dead."""
    rng = np.random.default_rng(data.draw(st.integers(0, 9999)))
    storage = data.draw(st.sampled_from(Storage))
    kind = data.draw(st.sampled_from(RotationKind))
    config = replace(CONFIG, storage=storage, rotation=kind)
    vectors = rows(data.draw(st.integers(2, 300)), int(rng.integers(99)))
    cuts = np.sort(rng.integers(1, len(vectors), data.draw(st.integers(0, 3))))
    live = rng.random(len(vectors)) < rng.choice([0.1, 0.6, 1])
    live[rng.integers(len(vectors))] = True
    with TemporaryDirectory() as folder:
        path, parts = Path(folder), []
        for i, piece in enumerate(np.split(np.arange(len(vectors)), np.unique(cuts))):
            shared = parts[-1][0] if parts and rng.random() < 0.5 else None
            part = Segment.build(path / str(i), vectors[piece], config, rotation_of=shared)
            kept = np.flatnonzero(live[piece])
            choice = rng.integers(3)
            rest = None if kept.size == piece.size and choice else kept
            parts.append((part, Allowed.from_rows(kept, part.rows) if choice == 2 else rest))
        refit = data.draw(st.sampled_from([None, True, False]))
        merged = Segment.merge(path / "m", parts, config, refit=refit)
        for part, _ in parts:
            part.close()
        merged.verify()
        expected = Segment.build(path / "all", vectors[live], config)
        assert (merged.rows, merged.config) == (expected.rows, expected.config)
        tolerance = 1e-6 if storage is Storage.FLOAT32 else 1e-3
        np.testing.assert_allclose(
            merged.vectors(np.arange(merged.rows)), unit(vectors[live]), atol=tolerance
        )
        found, best = merged.exact(QUERIES, 5), expected.exact(QUERIES, 5)
        np.testing.assert_allclose(found.scores, best.scores, atol=tolerance)
        truth = unit(QUERIES) @ unit(vectors[live]).T
        for line, scores, true in zip(found.rows, best.scores, truth, strict=True):
            real = line[line >= 0]  # other rows only where rounding decides between them
            np.testing.assert_allclose(true[real], scores[: real.size], atol=tolerance)
            assert len({*real}) == min(5, merged.rows)


def test_rows_are_copied_byte_for_byte_where_the_rotation_is_the_same(tmp_path: Path) -> None:
    first = Segment.build(tmp_path / "a", rows(5000, 0), CONFIG)
    second = Segment.build(tmp_path / "b", iter([rows(9, 2)]), CONFIG, rotation_of=first)
    other = Segment.build(tmp_path / "c", rows(900, 3), CONFIG)
    live = np.arange(0, 5000, 3)
    merged = Segment.merge(
        tmp_path / "m", [(other, None), (first, live), (second, [1, 2, 8])], CONFIG
    )
    np.testing.assert_array_equal(raw(merged)[900 : 900 + live.size], raw(first)[live])
    np.testing.assert_array_equal(raw(merged)[-3:], raw(second)[[1, 2, 8]])
    assert (merged.vectors([5]) != other.vectors([5])).any()  # rounded once more
    np.testing.assert_allclose(merged.vectors([5]), other.vectors([5]), atol=1e-3)
    assert (
        merged.manifest.fitted_on == second.manifest.fitted_on == first.manifest.fitted_on == 5000
    )
    for name in ("b", "m"):
        assert (tmp_path / name / "rotation.npy").samefile(tmp_path / "a" / "rotation.npy")
    assert merged._opened().rotation is first._opened().rotation  # in memory once
    assert not (tmp_path / "b" / "spool.tmp").exists()


@pytest.mark.parametrize(
    ("more", "refit", "fitted_on"),
    [(299, None, 100), (300, None, 400), (300, False, 100), (5, True, 105)],
)
def test_the_rotation_is_fitted_again_when_the_rows_are_four_times_as_many(
    tmp_path: Path, more: int, refit: bool | None, fitted_on: int
) -> None:
    first = Segment.build(tmp_path / "a", rows(100, 0), CONFIG)
    second = Segment.build(tmp_path / "b", rows(more, 1), CONFIG, rotation_of=first)
    merged = Segment.merge(tmp_path / "m", [(first, None), (second, None)], CONFIG, refit=refit)
    assert merged.manifest.fitted_on == fitted_on
    kept = merged.manifest.rotation_sha256 == first.manifest.rotation_sha256
    assert kept is (fitted_on == 100)
    if not kept:
        both = Segment.build(
            tmp_path / "all", np.concatenate([rows(100, 0), rows(more, 1)]), CONFIG
        )
        energy = [(each.rotate(QUERIES)[:, :8] ** 2).sum() for each in (merged, both)]
        assert energy[0] == pytest.approx(energy[1], abs=1e-3)


@pytest.mark.parametrize("live", [None, [2, 5]])
def test_what_a_rotation_is_fitted_on_is_checked(tmp_path: Path, live: list[int] | None) -> None:
    """A row that is no unit vector would turn the basis of all others."""
    segment = Segment.build(tmp_path / "a", rows(9, 0), CONFIG)
    part, size = segment._part(live), 2 * DIM
    with (tmp_path / "a" / "vectors.faiss").open("r+b") as file:
        file.seek(-4 * size, os.SEEK_END)  # row 5 of 9
        file.write(bytes(size))
    inside = 5 if live is None else 1
    with pytest.raises(SegmentError, match="row 5 must be a vector of length 1"):
        part.take(np.array([inside]))
    assert part.take(np.array([0])).shape == (1, DIM)


@pytest.mark.parametrize("storage", Storage)
@pytest.mark.parametrize("refit", [None, True])
def test_successive_merges_do_not_drift(
    tmp_path: Path, storage: Storage, refit: bool | None
) -> None:
    """20 merges; with refit=True every row is rounded again each time, else never."""
    config = replace(CONFIG, storage=storage)
    vectors = rows(300, 0)
    first = segment = Segment.build(tmp_path / "0", vectors, config)
    for i in range(1, 21):
        extra = Segment.build(tmp_path / f"e{i}", rows(20, 50 + i), config, rotation_of=segment)
        parts = [(segment, None), (extra, None)]
        segment = Segment.merge(tmp_path / str(i), parts, config, refit=refit)
    assert segment.rows == 700
    if refit is None:
        np.testing.assert_array_equal(raw(segment)[:300], raw(first))
    lost = 1 - (unit(segment.vectors(np.arange(300))) * unit(vectors)).sum(axis=1)
    assert lost.max() < (3e-6 if storage is Storage.FLOAT16 else 1e-6)
    found = segment.rerank(segment.rotate(QUERIES), np.tile(np.arange(300), (12, 1)), 300)
    truth = np.take_along_axis(unit(QUERIES) @ unit(vectors).T, found.rows, axis=1)
    few_numbers = 2e-3 if refit and storage is Storage.FLOAT16 else 5e-4
    assert np.abs(found.scores - truth).max() < few_numbers


def test_another_storage_or_rotation_may_be_asked_for(tmp_path: Path) -> None:
    parts = [(Segment.build(tmp_path / "a", rows(60, 0), CONFIG), None)]
    wanted = unit(rows(60, 0))
    for i, config in enumerate([replace(CONFIG, storage=Storage.FLOAT32), IDENTITY]):
        merged = Segment.merge(tmp_path / f"m{i}", parts, config, refit=False)
        assert merged.config == config
        np.testing.assert_allclose(merged.vectors(np.arange(60)), wanted, atol=1e-3)
    assert merged.manifest.fitted_on == 0 and not (merged.path / "rotation.npy").exists()


def test_a_taken_rotation_is_that_segments_own(tmp_path: Path) -> None:
    first = Segment.build(tmp_path / "a", rows(1500, 0), CONFIG)
    for i, some in enumerate((rows(1, 2), iter([rows(3, 3), rows(2, 4)]))):
        segment = Segment.build(tmp_path / f"b{i}", some, CONFIG, rotation_of=first)
        np.testing.assert_array_equal(segment.rotate(QUERIES), first.rotate(QUERIES))
        again = Segment.open(segment.path)
        np.testing.assert_array_equal(again.rotate(QUERIES), first.rotate(QUERIES))
        segment.verify()
    other = Segment.build(tmp_path / "o", rows(50, 5), CONFIG)
    alone = Segment.open(other.path, rotation_of=first)  # not the same: its own is read
    np.testing.assert_array_equal(alone.rotate(QUERIES), other.rotate(QUERIES))


@pytest.mark.parametrize(
    ("config", "vectors", "error", "message"),
    [
        (IDENTITY, rows(2, 0), SegmentConfigError, "rotation must be pca, as in the stored"),
        (CONFIG, rows(2, 0)[:, :9], VectorError, "must have 24 dimensions like the segment"),
        (CONFIG, np.zeros((2, DIM), np.float32), VectorError, "row 0 is all zeros"),
    ],
)
def test_what_a_taken_rotation_does_not_fit_is_refused(
    tmp_path: Path,
    config: SegmentConfig,
    vectors: np.ndarray,
    error: type[Exception],
    message: str,
) -> None:
    first = Segment.build(tmp_path / "a", rows(50, 0), CONFIG)
    with pytest.raises(error, match=message):
        Segment.build(tmp_path / "b", vectors, config, rotation_of=first)
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


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
        Segment.merge(tmp_path / "m", [(first, None), (second, None)], CONFIG, refit=True)
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
    assert syncs() == 5  # vectors, coarse stage, manifest, two folders; the rotation is a link
    assert done == [("Merging", 50), ("Merging", 1), ("Building", 51)]
    assert merged.manifest.provenance == notes["provenance"]
    assert merged.manifest.tuning == notes["tuning"]


def test_a_plain_coarse_file_holds_the_prefixes(tmp_path: Path) -> None:
    """It is written row by row and not by faiss, which reads it all the same."""
    rows = np.random.default_rng(0).normal(size=(1500, 24)).astype(np.float32)
    config = SegmentConfig(prefix=8)
    with Segment.build(tmp_path / "s", rows, config) as segment:
        prefixes = next(segment.prefix_rows(8).blocks())
        raw = (tmp_path / "s" / "coarse.faiss").read_bytes()
        stored = np.frombuffer(raw[-1500 * 8 * 2 :], np.float16)
        assert np.array_equal(stored.reshape(1500, 8), prefixes.astype(np.float16))
        rotated = segment.rotate(rows[:20])
        by_faiss = build_coarse(segment.prefix_rows(8), config)
        expected = by_faiss.shortlist(rotated[:, :8], 50)
        assert np.array_equal(segment.shortlist(rotated, 50), expected)
