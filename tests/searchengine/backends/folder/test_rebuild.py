"""The same vectors searched another way: in memory, and as a new segment."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from conftest import disk_full_at

from searchengine.indexer.config import Structure
from searchengine.indexer.segment import Segment, SegmentConfig

DIM = 24
CONFIG = SegmentConfig(prefix=8, shortlist=40)


def rows(n: int, seed: int) -> np.ndarray:
    fixed = np.random.default_rng(7)
    basis, _ = np.linalg.qr(fixed.standard_normal((DIM, DIM)))
    centres = fixed.standard_normal((20, DIM))
    rng = np.random.default_rng(seed)
    spread = centres[rng.integers(20, size=n)] + 0.5 * rng.standard_normal((n, DIM))
    return ((spread * np.arange(1, DIM + 1) ** -0.5) @ basis).astype(np.float32)


QUERIES = rows(20, 1)


@pytest.fixture(scope="module")
def segment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Segment]:
    path = tmp_path_factory.mktemp("rebuild") / "s"
    with Segment.build(path, rows(1200, 0), CONFIG, provenance={"by": "hand"}) as result:
        yield result


def same(one: Segment, other: Segment) -> None:
    """Both answer alike, filtered and not."""
    for allowed in (None, np.arange(0, 1200, 20), np.arange(100, 1200)):
        first, second = (each.search(QUERIES, 5, allowed=allowed) for each in (one, other))
        np.testing.assert_array_equal(first.rows, second.rows)
        np.testing.assert_allclose(first.scores, second.scores, atol=1e-6)


OTHER = [
    replace(CONFIG, prefix=12),
    replace(CONFIG, prefix=DIM, code="int8"),  # type: ignore[arg-type]
    replace(CONFIG, structure=Structure.HNSW, effort=80),
    replace(CONFIG, structure=Structure.IVF, effort=3),
    replace(CONFIG, shortlist=70, stages=((12, 30),)),
]


@pytest.mark.parametrize("config", OTHER, ids=str)
def test_a_rebuilt_segment_is_what_building_makes(
    segment: Segment, tmp_path: Path, config: SegmentConfig
) -> None:
    rebuilt = Segment.rebuild(tmp_path / "new", segment.path, config, tuning={"target": 0.9})
    expected = Segment.build(tmp_path / "built", rows(1200, 0), config, provenance={"by": "hand"})
    assert rebuilt.config == expected.config == config
    assert rebuilt.manifest.files == expected.manifest.files  # all checksums
    assert rebuilt.manifest.provenance == {"by": "hand"}
    assert rebuilt.manifest.tuning == {"target": 0.9} and expected.manifest.tuning is None
    same(rebuilt, expected)
    same(rebuilt, segment.over(config))
    list(rebuilt.verified())


def test_the_vectors_are_linked_and_live_as_long_as_one_name(tmp_path: Path) -> None:
    first = Segment.build(tmp_path / "a", rows(1200, 0), CONFIG)
    second = Segment.rebuild(tmp_path / "b", first.path, replace(CONFIG, prefix=12))
    assert (tmp_path / "a" / "vectors.faiss").samefile(tmp_path / "b" / "vectors.faiss")
    assert not (tmp_path / "a" / "coarse.faiss").samefile(tmp_path / "b" / "coarse.faiss")
    expected = second.search(QUERIES, 5)
    first.close()
    for path in (tmp_path / "a").iterdir():
        path.unlink()
    again = Segment.open(tmp_path / "b")
    list(again.verified())
    np.testing.assert_array_equal(again.search(QUERIES, 5).rows, expected.rows)


@pytest.mark.parametrize("call", range(1, 5))
def test_a_full_disk_leaves_no_folder_and_the_first_segment_whole(
    segment: Segment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: int
) -> None:
    disk_full_at(monkeypatch, call)
    with pytest.raises(OSError, match="No space left"):
        Segment.rebuild(tmp_path / "b", segment.path, replace(CONFIG, prefix=12))
    assert [*tmp_path.iterdir()] == []
    list(Segment.open(segment.path).verified())
