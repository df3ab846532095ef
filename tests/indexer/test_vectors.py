"""The full-width rows on disk, read by numpy and by faiss; their rotation, and prefixes."""

from pathlib import Path

import faiss
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from searchengine.indexer.arrays import prefix, unit_rows
from searchengine.indexer.config import Storage
from searchengine.indexer.errors import SegmentError, VectorError
from searchengine.indexer.storage.files import DTYPES, header, sha256
from searchengine.indexer.storage.vectors import (
    VectorFile,
    as_floats,
    pca,
    prefixes,
    rotated,
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


@pytest.mark.parametrize("storage", Storage)
def test_rows_are_verified_as_they_are_read(tmp_path: Path, storage: Storage) -> None:
    file = write(tmp_path / "v", some(5000, 6), storage)
    checksum = sha256(tmp_path / "v")

    def read(only: np.ndarray | None = None) -> np.ndarray:
        return np.concatenate([as_floats(r.copy(), storage) for r in file.verified(checksum, only)])

    every = read()
    np.testing.assert_array_equal(every, file.take(slice(0, 5000)))
    only = np.array([3, 4095, 4096, 4999])
    np.testing.assert_array_equal(read(only), every[only])
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


@given(st.integers(1, 80), st.integers(2, 40), st.data())
def test_directions_are_orthonormal_and_packed_by_energy(
    n: int, dim: int, data: st.DataObject
) -> None:
    width = data.draw(st.integers(1, dim))
    rng = np.random.default_rng(data.draw(st.integers(0, 999)))
    rows = (rng.standard_normal((n, dim)) * rng.exponential(1, dim)).astype(np.float32)
    matrix = pca([rows[: n // 2], rows[n // 2 :]], width)
    assert matrix.dtype == np.float32 and matrix.shape == (width, dim)
    np.testing.assert_allclose(matrix @ matrix.T, np.eye(width), atol=1e-5)
    energy = ((rows @ matrix.T) ** 2).sum(axis=0)
    assert (np.diff(energy) <= 1e-3 * energy[0]).all()
    best = np.linalg.svd(rows, compute_uv=False)[:width] ** 2
    np.testing.assert_allclose(energy.sum(), best.sum(), rtol=1e-3)
    np.testing.assert_allclose(rotated(rows, matrix), rows @ matrix.T, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("n", [1, 8, 9, 300])
def test_prefixes_of_equal_rows_are_equal_bit_for_bit_wherever_they_stand(n: int) -> None:
    """Otherwise equal documents would get different codes."""
    rows = some(n, 64)
    rows[n // 2 :] = rows[0]
    matrix = pca([rows], 16)
    found = prefixes(rows, 16, matrix)
    np.testing.assert_array_equal(found[n // 2 :], np.broadcast_to(found[0], (n - n // 2, 16)))
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-6)
    np.testing.assert_allclose(found, prefix(rows @ matrix.T, 16), atol=1e-5)


MATRICES = hnp.arrays(
    np.float32,
    st.tuples(st.integers(1, 5), st.integers(4, 12)),
    elements=st.floats(-(2.0**100), 2.0**100, width=32),
)


def test_prefixes_by_hand() -> None:
    rows = np.array([[3, 4, 99], [0, -2, 7]], np.float32)
    assert prefix(rows, 2).tolist() == [[np.float32(0.6), np.float32(0.8)], [0, -1]]
    assert prefix(rows, 1).tolist() == [[1], [0]]


@given(MATRICES, st.integers(1, 4))
def test_a_prefix_of_a_prefix_is_the_prefix(rows: np.ndarray, p: int) -> None:
    wider = prefix(rows, 4)
    # A tail that dwarfs the head may push the head below float32's smallest normal number.
    heads = np.linalg.norm(wider[:, :p].astype(np.float64), axis=1)
    kept = heads > 1e-30
    np.testing.assert_allclose(prefix(wider, p)[kept], prefix(rows, p)[kept], rtol=1e-5, atol=1e-6)


@given(MATRICES, st.integers(1, 4))
def test_rows_have_length_one_or_are_zero(rows: np.ndarray, p: int) -> None:
    cut = prefix(rows, p)
    lengths = np.linalg.norm(cut.astype(np.float64), axis=1)
    assert cut.dtype == np.float32
    np.testing.assert_allclose(lengths, (rows[:, :p] != 0).any(axis=1).astype(float), atol=1e-6)
