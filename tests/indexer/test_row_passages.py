"""passages.npy: which passage each row of a segment is the vector of."""

from pathlib import Path

import numpy as np
import pytest

from searchengine.indexer.arrays import RowNumbers
from searchengine.indexer.errors import SegmentError, VectorError
from searchengine.indexer.segment import Segment, SegmentConfig
from searchengine.indexer.storage.passages_file import PASSAGES

CONFIG = SegmentConfig.from_dict({"prefix": 2})
VECTORS = np.eye(5, dtype=np.float32)
COLUMNS = np.array([[7, 7, 7, 3, 9], [0, 4, 8, 0, 2], [4, 8, 9, 5, 6]])


def told(rows: int) -> RowNumbers:
    return COLUMNS[:, :rows]


def test_a_segment_keeps_its_passages(tmp_path: Path) -> None:
    with (
        Segment.build(tmp_path / "1", VECTORS, CONFIG, passages=told) as built,
        Segment.rebuild(tmp_path / "2", built.path, CONFIG) as rebuilt,
        Segment.merge(tmp_path / "3", [(built, [1, 3])], CONFIG) as bare,
        Segment.merge(tmp_path / "4", [(built, [1, 3])], CONFIG, passages=told) as merged,
    ):
        assert bare.passages is None and merged.passages is not None
        assert merged.passages.columns.tolist() == COLUMNS[:, :2].tolist()
        for segment in (built, rebuilt):
            segment.verify()
            passages = segment.passages
            assert passages is not None
            assert passages.columns.tolist() == COLUMNS.tolist()
            rows, documents = passages.of_documents(np.array([1, 3, 4]))
            assert rows.tolist() == [0, 1, 2, 3, 4]
            assert documents.tolist() == COLUMNS[0].tolist()
    assert np.load(tmp_path / "1" / PASSAGES).tolist() == COLUMNS.tolist()


def test_passages_are_added_to_a_finished_segment(tmp_path: Path) -> None:
    """Then it is as if it had been built with them."""
    Segment.build(tmp_path / "1", VECTORS, CONFIG, passages=told).close()
    with Segment.build(tmp_path / "2", VECTORS, CONFIG) as before:
        assert before.passages is None
    Segment.add_passages(tmp_path / "2", told)
    files = [{f.name: f.read_bytes() for f in (tmp_path / n).iterdir()} for n in ("1", "2")]
    assert files[0] == files[1]


def test_there_is_a_passage_for_each_row(tmp_path: Path) -> None:
    with pytest.raises(VectorError, match=r"passages must have shape \(3, 5\), got \(3, 4\)"):
        Segment.build(tmp_path / "1", VECTORS, CONFIG, passages=lambda _: told(4))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda data: data[:-8], "the file is truncated or altered"),
        (lambda data: data[:-1] + b"\x01", "does not match its checksum"),
    ],
)
def test_damage_is_found_when_it_is_opened(tmp_path: Path, damage: object, message: str) -> None:
    assert callable(damage)
    Segment.build(tmp_path / "1", VECTORS, CONFIG, passages=told).close()
    path = tmp_path / "1" / PASSAGES
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(SegmentError, match=rf"{PASSAGES} .*{message}"):
        Segment.open(tmp_path / "1")
