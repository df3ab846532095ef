"""Transfer tasks: features, folds against an oracle, the choice of C, files, the command."""

import gzip
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold

from searchengine.cli import cli
from tests.conftest import Numbers
from tests.tiny_model import write_sentence_transformer
from trainer.encoder import Encoder
from trainer.errors import ConfigError, DataError
from trainer.evaluation.sts import encode_once
from trainer.evaluation.transfer import (
    CS,
    SEED,
    TASKS,
    Split,
    TransferData,
    TransferRow,
    averages,
    best_c,
    best_c_by_folds,
    features,
    nested_folds,
    read_transfer,
    transfer,
)


def split(rows: Sequence[tuple[str, ...]]) -> Split:
    """Rows of a label and one or two texts."""
    return Split(tuple(row[1:] for row in rows), np.array([row[0] for row in rows]))


def noisy(n: int, dim: int, classes: int = 2, seed: int = 0) -> tuple[NDArray[np.float32], ...]:
    """Rows whose class shows in the first numbers, with so much noise that C matters."""
    random = np.random.default_rng(seed)
    y = random.integers(classes, size=n)
    x = random.normal(size=(n, dim)).astype(np.float32)
    x[np.arange(n), y] += 1.2
    return x, y.astype(str)


def hits(x: NDArray[np.float32], y: NDArray[np.str_], train, test, c: float) -> int:  # type: ignore[no-untyped-def]
    model = LogisticRegression(C=c, max_iter=2000).fit(x[train], y[train])
    return int((model.predict(x[test]) == y[test]).sum())


@pytest.mark.parametrize("classes", [2, 3])
def test_nested_folds_are_two_plain_loops(classes: int) -> None:
    """The oracle fits every pair of folds twice, as SentEval's two loops do."""
    x, y = noisy(150, 12, classes)
    cs, folds = (0.0003, 0.01, 3.0), 5
    parts = [
        test for _, test in StratifiedKFold(folds, shuffle=True, random_state=SEED).split(x, y)
    ]
    right, chosen = 0, []
    for t, test in enumerate(parts):
        inner = [v for v in range(folds) if v != t]
        counts = []
        for c in cs:
            rest = {v: np.concatenate([parts[u] for u in inner if u != v]) for v in inner}
            counts.append(sum(hits(x, y, rest[v], parts[v], c) for v in inner))
        chosen.append(cs[counts.index(max(counts))])
        right += hits(x, y, np.concatenate([parts[v] for v in inner]), test, chosen[-1])
    predicted, c = nested_folds(x, y, cs, folds)
    assert (predicted == y).sum() == right
    assert c == sorted(chosen)[2]
    assert 1 / classes < right / len(y) < 1  # noisy enough for the choice to matter


def test_nested_folds_see_nothing_of_their_own_fold() -> None:
    """Labels without any relation to the rows are guessed, however many numbers there are."""
    random = np.random.default_rng(3)
    x = random.normal(size=(400, 60)).astype(np.float32)
    y = np.repeat(["no", "yes"], 200)
    predicted, _ = nested_folds(x, y, cs=(0.01, 1.0))
    assert abs(np.mean(predicted == y) - 0.5) < 0.1  # four standard deviations


def test_the_choice_of_c() -> None:
    x, y = noisy(200, 30, seed=1)
    dev_x, dev_y = noisy(300, 30, seed=2)
    everything = np.arange(200)
    counts = []
    for c in CS:
        model = LogisticRegression(C=c, max_iter=2000).fit(x[everything], y[everything])
        counts.append(int((model.predict(dev_x) == dev_y).sum()))
    assert best_c(x, y, dev_x, dev_y) == CS[counts.index(max(counts))]
    assert max(counts) > counts[-1]  # the weakest penalty is not the best here
    cs, folds = (0.001, 0.1, 10.0), 4
    splits = list(StratifiedKFold(folds, shuffle=True, random_state=SEED).split(x, y))
    by_fold = [sum(hits(x, y, train, test, c) for train, test in splits) for c in cs]
    assert best_c_by_folds(x, y, cs, folds) == cs[by_fold.index(max(by_fold))]
    # Of equals the smallest: every C separates these.
    apart = np.array([[1.0], [-1.0]] * 20, dtype=np.float32)
    assert best_c_by_folds(apart, np.array(["a", "b"] * 20)) == CS[0]


def test_features_by_hand() -> None:
    rows = [("1", "3 4", "0 2"), ("0", "0 2", "-5 0")]
    one, two = split([row[:2] for row in rows]), split(rows)
    encoded = encode_once(Numbers((2, 1)), ["3 4", "0 2", "-5 0"])
    root = 2**0.5
    assert features(encoded, one, 2) == pytest.approx(root * np.array([[0.6, 0.8], [0, 1]]))
    assert features(encoded, one, 1).tolist() == [[1], [0]]  # scaled to √1; zero stays zero
    # (0.6, 0.8)·√2 and (0, 1)·√2; (0, 1)·√2 and (−1, 0)·√2: differences times √2, products times 2.
    pairs = np.array([[0.6 * root, 0.2 * root, 0, 1.6], [root, root, 0, 0]])
    assert features(encoded, two, 2) == pytest.approx(pairs, abs=1e-6)
    assert features(encoded, two, 2).dtype == np.float32


# Far apart on the first number, and on it alone.
APART = [("yes", f"{i} 0") for i in range(1, 21)] + [("no", f"-{i} 0") for i in range(1, 21)]


def test_one_file_is_judged_by_folds() -> None:
    encoder, counted = Numbers((2, 1)), []
    data = TransferData(TASKS["CR"], split([*APART, ("no", "7 0")]))  # one label is wrong
    rows = list(transfer(encoder, data, on_batch=counted.append))
    assert [(row.task, row.dim, row.accuracy, row.n) for row in rows] == [
        ("CR", 2, pytest.approx(40 / 41), 41),
        ("CR", 1, pytest.approx(40 / 41), 41),
    ]
    assert rows[0].f1 is None and rows[0].c in CS
    assert len(encoder.asked) == sum(counted) == 40  # "7 0" occurs twice
    with pytest.raises(ConfigError, match="prefix length 3: expected 1 to 2"):
        list(transfer(encoder, data, [3]))


def test_train_dev_and_test() -> None:
    """Dev, and else the folds of train, choose C; test has no say.

    Three of four training labels are "yes": with the smallest C every answer is "yes".
    """
    train = split([*APART, *(("yes", f"{i} 0") for i in range(21, 61))])
    test = split([("no", "-5 0"), ("no", "5 0"), ("no", "-6 0"), ("yes", "9 0")])
    for dev, least, accuracy in [("yes", True, 1 / 4), ("no", False, 3 / 4)]:
        rows = split([(dev, "1 0" if dev == "yes" else "-1 0")])
        (row,) = transfer(Numbers((2, 1)), TransferData(TASKS["SST2"], train, rows, test), [1])
        assert (row.accuracy, row.c == CS[0], row.n) == (accuracy, least, 4)
    (row,) = transfer(Numbers((2, 1)), TransferData(TASKS["TREC"], train, test=test), [1])
    assert (row.accuracy, row.c == CS[0], row.n) == (3 / 4, False, 4)


def test_pairs_and_f1() -> None:
    """Equal sides are a paraphrase. Of the test pairs 1 is found, 2 missed, 1 wrongly found."""
    train = [("1", f"{i} 0", f"{i} 0") for i in range(1, 16)]
    train += [("0", f"{i} 0", f"-{i} 0") for i in range(1, 16)]
    test = [
        ("1", "2 0", "3 0"),
        ("1", "2 0", "-3 0"),
        ("1", "-9 0", "8 0"),
        ("0", "1 0", "3 0"),
        ("0", "1 0", "-1 0"),
    ]
    data = TransferData(TASKS["MRPC"], split(train), test=split(test))
    (row,) = transfer(Numbers((2, 1)), data, [1])
    assert row.accuracy == 2 / 5
    assert row.f1 == pytest.approx(2 * 1 / (2 * 1 + 1 + 2))


def test_labels_that_cannot_be_learnt() -> None:
    with pytest.raises(DataError, match="CR: every label is 'yes', expected two or more"):
        TransferData(TASKS["CR"], split(APART[:20]))
    with pytest.raises(DataError, match="TREC: 9 training examples with the label 'no', expected"):
        TransferData(TASKS["TREC"], split(APART[:29]))


def test_averages_by_hand() -> None:
    rows = [
        TransferRow("MR", 8, 0.5, None, 1.0, 10),
        TransferRow("MR", 4, 0.25, None, 1.0, 10),
        TransferRow("MRPC", 8, 1.0, 0.5, 0.1, 30),
    ]
    assert averages(rows) == [
        TransferRow("average", 8, 0.75, None, None, 40),
        TransferRow("average", 4, 0.25, None, None, 10),
    ]


def write_task(folder: Path, stem: str, rows: Sequence[tuple[str, str]]) -> None:
    (folder / stem).write_text("label\ttext\n" + "".join(f"{a}\t{b}\n" for a, b in rows))


def test_files(tmp_path: Path) -> None:
    write_task(tmp_path, "sst2_dev.tsv", [("1", 'a "quote')])
    write_task(tmp_path, "sst2_test.tsv", [("0", "c")])
    with pytest.raises(
        DataError, match=r"no sst2_train.tsv or sst2_train.tsv.gz, which SST2 needs"
    ):
        read_transfer(tmp_path, "SST2")
    packed = gzip.compress(b"label\ttext\n0\ta\n1\tb\n")
    (tmp_path / "sst2_train.tsv.gz").write_bytes(packed)
    data = read_transfer(tmp_path, "SST2")
    assert data.train.texts == (("a",), ("b",)) and data.train.labels.tolist() == ["0", "1"]
    assert data.dev is not None and data.dev.texts == (('a "quote',),)
    assert data.texts() == ["a", "b", 'a "quote', "c"]
    with pytest.raises(ConfigError, match="no transfer task 'SST': expected one of MR, CR, SUBJ"):
        read_transfer(tmp_path, "SST")
    write_task(tmp_path, "mrpc_train.tsv", [("1", "a")])
    with pytest.raises(DataError, match=r"mrpc_train\.tsv:1: no column sentence1, sentence2"):
        read_transfer(tmp_path, "MRPC")


def test_real_files_are_whole(shared_data: Path) -> None:
    """Examples in train, dev and test as Conneau & Kiela give them, and TREC's six classes."""
    sizes = {}
    for name in TASKS:
        data = read_transfer(shared_data / "clf", name)
        splits = (data.train, data.dev, data.test)
        sizes[name] = tuple(len(s.labels) for s in splits if s is not None)
        if name == "TREC":
            assert Counter(data.train.labels.tolist())["ABBR"] == 86
            assert len(set(data.train.labels)) == 6
    assert sizes == {
        "MR": (10662,),
        "CR": (3771,),
        "SUBJ": (10000,),
        "MPQA": (10603,),
        "SST2": (67349, 872, 1821),
        "TREC": (5452, 500),
        "MRPC": (4076, 1725),
    }


def test_command(tmp_path: Path) -> None:
    write_sentence_transformer(tmp_path / "model")
    words = ["runs", "sleeps", "sits", "sings", "eats", "fast", "slowly", "far", "near", "plays"]
    rows = [(animal, f"{animal} {word}") for word in words for animal in ("cat", "dog")]
    write_task(tmp_path, "cr.tsv", rows)
    write_task(tmp_path, "mr.tsv", rows)
    command = ["evaluate", "transfer", str(tmp_path), "--encoder", str(tmp_path / "model")]
    done = CliRunner().invoke(
        cli, [*command, "--tasks", "cr,MR,cr", "--prefixes", "32,4", "--json"]
    )
    assert done.exit_code == 0, done.output
    found = [(row["task"], row["dim"], row["n"]) for row in json.loads(done.stdout)]
    assert found == [
        *(("CR", 32, 20), ("CR", 4, 20), ("MR", 32, 20), ("MR", 4, 20)),
        *(("average", 32, 40), ("average", 4, 40)),
    ]
    data, encoder = read_transfer(tmp_path, "CR"), Encoder.load(tmp_path / "model")
    for row, expected in zip(
        json.loads(done.stdout)[:2], transfer(encoder, data, [32, 4]), strict=True
    ):
        assert row == asdict(expected)
    for arguments, message in [
        (["--tasks", "MR,STS"], "no transfer task 'STS'"),
        (["--tasks", "MR,"], "expected names separated by commas, got 'MR,'"),
        ([], "no subj.tsv or subj.tsv.gz, which SUBJ needs"),
    ]:
        refused = CliRunner().invoke(cli, [*command, *arguments])
        assert refused.exit_code == 2 and message in refused.stderr
