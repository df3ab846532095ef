"""What is foretold of a segment's size is what it takes."""

from pathlib import Path

import numpy as np
import pytest

from searchengine.indexer.config import Code, SegmentConfig, Structure
from searchengine.indexer.segment import Segment
from searchengine.indexer.tuning.tune import cold_row, hot_row

ROWS = np.random.default_rng(0).standard_normal((4000, 64)).astype(np.float32)


@pytest.mark.parametrize("code", Code)
@pytest.mark.parametrize("structure", Structure)
def test_the_coarse_file_is_as_large_as_foretold(
    tmp_path: Path, structure: Structure, code: Code
) -> None:
    config = SegmentConfig(prefix=64, structure=structure, code=code)
    with Segment.build(tmp_path / "s", ROWS, config) as segment:
        size = (segment.path / "coarse.faiss").stat().st_size
        cold = (segment.path / "vectors.faiss").stat().st_size
    # Headers are counted as nothing, and small beside a million rows.
    assert abs(size - 4000 * hot_row(config, 4000, 64)) < 0.03 * size + 2048
    assert abs(cold - 4000 * cold_row(config, 64)) < 0.02 * cold + 4096
