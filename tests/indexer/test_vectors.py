"""The full-width rows on disk, read by numpy and by faiss."""

from pathlib import Path

import faiss
import numpy as np
import pytest

from searchengine.indexer.arrays import unit_rows
from searchengine.indexer.config import Storage
from searchengine.indexer.errors import SegmentError, VectorError
from searchengine.indexer.storage.durable import sha256
from searchengine.indexer.storage.vectors_file import (
    DTYPES,
    VectorFile,
    header,
    widen,
    write_vectors,
)


def some(n: int, dim: int) -> np.ndarray:
    return np.random.default_rng(n).standard_normal((n, dim)).astype(np.float32)


def write(path: Path, rows: np.ndarray, storage: Storage) -> VectorFile:
    stored = unit_rows(rows).astype(DTYPES[storage])
    return write_vectors(path, rows.shape[1], storage, [stored[:3], stored[3:].view(np.uint8)])


def faiss_index(dim: int, storage: Storage) -> faiss.Index:
    if storage is Storage.FLOAT32:
        return faiss.IndexFlatIP(dim)
    codes = faiss.ScalarQuantizer.QT_fp16
    return faiss.IndexScalarQuantizer(dim, codes, faiss.METRIC_INNER_PRODUCT)


@pytest.mark.parametrize("storage", Storage)
def test_the_file_is_what_faiss_writes_byte_for_byte(tmp_path: Path, storage: Storage) -> None:
    rows = some(10, 12)
    stored = write(tmp_path / "v", rows, storage)
    index = faiss_index(12, storage)
    index.add(unit_rows(rows))
    written = faiss.serialize_index(index).tobytes()
    assert (tmp_path / "v").read_bytes() == written
    assert written.startswith(header(10, 12, storage))
    assert stored.offset == {Storage.FLOAT16: 81, Storage.FLOAT32: 45}[storage]


@pytest.mark.parametrize(("storage", "tolerance"), [("float16", 5e-4), ("float32", 1e-7)])
def test_take_gives_unit_rows_in_any_shape(tmp_path: Path, storage: str, tolerance: float) -> None:
    rows = some(20, 8)
    stored = write(tmp_path / "v", rows * 37, Storage(storage))
    expected = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    ids = np.array([[7, 0, 7], [19, 3, 1]])
    np.testing.assert_allclose(stored.take(ids), expected[ids], atol=tolerance)
    np.testing.assert_allclose(stored.take(ids, 5), expected[ids][..., :5], atol=tolerance)
    np.testing.assert_allclose(stored.take(slice(2, 9), 3), expected[2:9, :3], atol=tolerance)
    assert stored.take(ids).dtype == np.float32
    stored.take(slice(0, 2))[:] = 0  # a copy: the file is untouched
    np.testing.assert_allclose(np.concatenate([*stored.blocks()]), expected, atol=tolerance)


def test_every_finite_float16_widens_exactly() -> None:
    patterns = np.arange(1 << 16, dtype=np.uint16)
    values = patterns.view(np.float16)
    finite = np.isfinite(values)
    np.testing.assert_array_equal(widen(patterns[finite]), values[finite].astype(np.float32))


def test_rows_are_normalised_exactly_even_when_nearly_unit_or_extreme() -> None:
    rows = np.array([[0.6, 0.8005], [3e-30, 4e-30], [3e38, 0], [-1e-45, 0]], np.float32)
    unit = unit_rows(rows)
    np.testing.assert_allclose(np.linalg.norm(unit.astype(np.float64), axis=1), 1, atol=1e-7)
    np.testing.assert_allclose(unit[1], [0.6, 0.8], rtol=1e-6)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (np.array([[1.0, 0.0], [1e300, 0.0]]), "row 1 holds NaN or infinity"),  # beyond float32
        (np.ones((3, 0)), "must not be empty"),
        ([["a", "b"]], "array of numbers: got <U1; convert them to floats first"),
        ([["1.5", "2"]], "array of numbers: got <U3"),
        (np.ones((3, 2), np.complex64), "array of numbers: got complex64"),
        (np.array([["1", 2]], object), "array of numbers: got object"),
        ([[1.0], [1.0, 2.0]], "array of numbers"),
    ],
)
def test_what_is_no_matrix_of_numbers_is_refused(rows: object, message: str) -> None:
    with pytest.raises(VectorError, match=message):
        unit_rows(rows)  # type: ignore[arg-type]


def test_a_file_without_rows_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(VectorError, match="at least one vector"):
        write_vectors(tmp_path / "v", 3, Storage.FLOAT16, [])


@pytest.mark.parametrize("storage", Storage)
def test_rows_are_verified_as_they_are_read(tmp_path: Path, storage: Storage) -> None:
    file = write(tmp_path / "v", some(5000, 6), storage)
    checksum = sha256(tmp_path / "v")
    every = np.concatenate([rows.copy() for _, rows in file.verified(checksum)])
    np.testing.assert_array_equal(every, file.take(slice(0, 5000)))
    only = np.array([3, 4095, 4096, 4999])
    np.testing.assert_array_equal(
        np.concatenate([rows.copy() for _, rows in file.verified(checksum, only)]), every[only]
    )
    with pytest.raises(SegmentError, match="does not match its checksum"):
        list(file.verified("0" * 64, only))


def test_a_file_of_another_size_or_header_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "v"
    write(path, some(6, 4), Storage.FLOAT16)
    with pytest.raises(SegmentError, match="has 129 bytes, expected 137"):
        VectorFile(path, 7, 4, Storage.FLOAT16)
    with pytest.raises(SegmentError, match="does not start with the header of 4 x 6"):
        VectorFile(path, 4, 6, Storage.FLOAT16)
    with pytest.raises(SegmentError, match="is missing"):
        VectorFile(tmp_path / "w", 6, 4, Storage.FLOAT16)
