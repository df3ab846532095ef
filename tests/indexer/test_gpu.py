"""Scans on a GPU: the same results, and a plain refusal where there is none."""

from pathlib import Path

import numpy as np
import pytest

from searchengine.indexer.errors import SegmentError
from searchengine.indexer.faiss_calls import faiss
from searchengine.indexer.segment import Segment, SegmentConfig

ROWS = np.random.default_rng(0).standard_normal((3000, 32)).astype(np.float32)
QUERIES = np.random.default_rng(1).standard_normal((70, 32)).astype(np.float32)
THERE = bool(faiss.get_num_gpus())


@pytest.mark.skipif(THERE, reason="there is a GPU here")
def test_without_a_gpu_the_device_is_refused_in_one_sentence(tmp_path: Path) -> None:
    Segment.build(tmp_path / "s", ROWS, SegmentConfig(prefix=8)).close()
    with pytest.raises(SegmentError, match=r"GPU.*(leave out the device|search on the CPU)"):
        Segment.open(tmp_path / "s", device="gpu")


@pytest.mark.skipif(not THERE, reason="faiss sees no GPU here")
@pytest.mark.parametrize("structure", ["flat", "hnsw"])
def test_a_gpu_finds_what_the_cpu_finds(tmp_path: Path, structure: str) -> None:
    config = SegmentConfig.from_dict({"prefix": 8, "structure": structure, "shortlist": 200})
    with Segment.build(tmp_path / "s", ROWS, config) as cpu:
        with Segment.open(tmp_path / "s", device="gpu") as gpu:
            for queries in (QUERIES, QUERIES[:1]):
                exact = gpu.exact(queries, 10)
                np.testing.assert_array_equal(exact.rows, cpu.exact(queries, 10).rows)
                found, expected = gpu.search(queries, 10), cpu.search(queries, 10)
                assert (found.rows == expected.rows).mean() > 0.99
                np.testing.assert_allclose(found.scores, expected.scores, atol=1e-5)
            some = np.arange(0, 3000, 2)
            filtered = gpu.search(QUERIES, 10, allowed=some)
            np.testing.assert_array_equal(filtered.rows, cpu.search(QUERIES, 10, allowed=some).rows)
