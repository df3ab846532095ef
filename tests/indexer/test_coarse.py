"""The shortlist structures against a numpy oracle."""

from collections.abc import Iterator
from functools import cache
from pathlib import Path

import faiss
import numpy as np
import pytest
from clustered import clustered, overlap

from searchengine.indexer.arrays import evenly, prefix
from searchengine.indexer.building import build_coarse
from searchengine.indexer.config import Code, SegmentConfig, Structure
from searchengine.indexer.errors import SegmentError
from searchengine.indexer.search.cascade import CoarseIndex, open_coarse
from searchengine.indexer.search.scoring import Allowed

WIDTH = 16


class Rows:
    """Prefixes in memory, in blocks of unequal sizes."""

    def __init__(self, rows: np.ndarray) -> None:
        self._all = rows
        self.width = rows.shape[1]
        self.rows = len(rows)

    def blocks(self, order: np.ndarray | None = None) -> Iterator[np.ndarray]:
        rows = self._all if order is None else self._all[order]
        yield from (part for part in np.split(rows, [7, 600]) if len(part))

    def sample(self, count: int) -> np.ndarray:
        return self._all[evenly(self.rows, count)]


def build(rows: np.ndarray, structure: Structure, code: Code, **more: int) -> CoarseIndex:
    config = SegmentConfig(prefix=rows.shape[1], structure=structure, code=code, **more)
    return build_coarse(Rows(rows), config)


def decoded(index: CoarseIndex, rows: np.ndarray, code: Code) -> np.ndarray:
    """What a code makes of the rows: steps over each number's range are read at mid-step."""
    if code is Code.FP16:
        return rows.astype(np.float16).astype(np.float32)
    least, extent = faiss.vector_to_array(index.index.sq.trained).reshape(2, -1)
    steps = np.trunc(np.clip((rows - least) / extent, 0, 1) * 255)
    return (least + (steps + 0.5) / 255 * extent).astype(np.float32)


def oracle(
    queries: np.ndarray, rows: np.ndarray, size: int, allowed: np.ndarray | None = None
) -> np.ndarray:
    numbers = np.arange(len(rows)) if allowed is None else allowed
    scores = queries @ rows[numbers].T
    return numbers[np.lexsort((np.broadcast_to(numbers, scores.shape), -scores))[:, :size]]


ROWS = prefix(clustered(1500, 0, WIDTH), WIDTH)
QUERIES = prefix(clustered(40, 1, WIDTH), WIDTH)


def only(allowed: np.ndarray | None) -> Allowed | None:
    return None if allowed is None else Allowed.from_rows(allowed, len(ROWS))


@cache
def built(structure: Structure, code: Code) -> CoarseIndex:
    return build(ROWS, structure, code)


@pytest.mark.parametrize("code", Code)
def test_a_flat_shortlist_is_the_oracles(code: Code) -> None:
    index = built(Structure.FLAT, code)
    rows = decoded(index, ROWS, code)
    found = index.shortlist(QUERIES, 50)
    assert found.dtype == np.int64 and found.shape == (40, 50)
    # Rounding may swap neighbours whose scores agree to the last bits, and nothing more.
    expected = oracle(QUERIES, rows, 50)
    scores = np.einsum("qd,qsd->qs", QUERIES, rows[found])
    truth = np.einsum("qd,qsd->qs", QUERIES, rows[expected])
    np.testing.assert_allclose(scores, truth, atol=2e-6)
    assert overlap(found, expected) > 0.998


@pytest.mark.parametrize("code", Code)
@pytest.mark.parametrize("size", [1, 30, 99, 100, 400, 1500])
def test_ties_go_to_the_lower_row_also_at_the_cut(code: Code, size: int) -> None:
    """1600 rows but only 16 different ones: every cut goes through a tie."""
    query = np.linspace(1, 0.5, WIDTH, dtype=np.float32)[None]
    found = tied(code).shortlist(query, size)
    by_score = np.concatenate([np.arange(100) * WIDTH + i for i in range(WIDTH)])
    assert found[0].tolist() == by_score[:size].tolist()


@cache
def tied(code: Code) -> CoarseIndex:
    return build(np.tile(np.eye(WIDTH, dtype=np.float32), (100, 1)), Structure.FLAT, code)


def test_foreign_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "noise").write_bytes(b"IxXX" + bytes(100))
    with pytest.raises(SegmentError, match=r"cannot read .*noise"):
        open_coarse(tmp_path / "noise")
    faiss.write_index(faiss.IndexLSH(16, 16), str(tmp_path / "lsh"))
    with pytest.raises(SegmentError, match=r"lsh must hold .* got IndexLSH"):
        open_coarse(tmp_path / "lsh")
