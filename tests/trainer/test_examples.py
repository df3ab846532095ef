"""Files of examples, the errors that they raise, and the batches of each update."""

import gzip
import json
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from searchengine.trainer.errors import DataError
from searchengine.trainer.training.examples import (
    Batch,
    BatchPlan,
    Row,
    augmented,
    read_dev,
    read_examples,
)
from searchengine.trainer.training.loop import train
from searchengine.trainer.training.train_config import Augment, TrainConfig

LABELS, SCORES = {"objective": "classification"}, {"objective": "similarity"}
LONG = "x, y\n" * 30_000  # csv alone refuses cells over 128 KiB


def write(path: Path, content: str | bytes | list[dict[str, Any]]) -> Path:
    if isinstance(content, list):
        content = "\n\n".join(map(json.dumps, content))
    data = content if isinstance(content, bytes) else content.encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def settings(path: Path, **changes: Any) -> TrainConfig:
    return TrainConfig(**{"train": (path,), "out": path.parent / "out", **changes})


def read(path: Path, **changes: Any) -> list[Row]:
    return list(read_examples(settings(path, **changes)).train)


def pair(anchor: str, positive: str, *negatives: str) -> Row:
    return Row(anchor, positive, negatives)


def sentence(text: str) -> Row:
    return Row(text, text, one_text=True)


@pytest.mark.parametrize(
    "name, content, changes, expected",
    [
        *(
            (name, "anchor\tpositive\tnegative\na\tb\tc\nd\te\t\n", {}, [pair(*"abc"), pair(*"de")])
            for name in ("a.tsv.gz", "a.txt")
        ),
        ("a.tsv", "premise\tentailment\tcontradiction\tx\na\tb\tc\ty", {}, [pair(*"abc")]),
        ("a.tsv", "query\tnegative\tpositive\tnegative_2\na\tc\tb\td", {}, [pair(*"abcd")]),
        ("a.tsv", "title\tquestion\tanswer\nt\tq\ta", {}, [pair("q", "a")]),
        ("a.tsv", 'source\ttext\ns\t"quoted', {}, [sentence('"quoted')]),
        ("a.tsv", "\ufeffsentence\r\ns\r\n", {}, [sentence("s")]),
        (
            "a.csv.gz",
            'id,question,answer\r\n1,"Who, ""where""?","A line,\nand another"\r\n\r\n2,a,b\r\n',
            {"columns": ["question", "answer"]},
            [pair('Who, "where"?', "A line,\nand another"), pair("a", "b")],
        ),
        *(
            (
                "a.csv",
                f'anchor{mark}positive\na{mark}"{LONG}"\n"b; | c"{mark}d\n',
                {},
                [pair("a", LONG), pair("b; | c", "d")],
            )
            for mark in ",;"
        ),
        (  # the columns are those of all rows
            "a.jsonl",
            [
                {"anchor": "a", "positive": "b", "negatives": []},
                {"anchor": "c", "positive": "d", "negative": None},
                {"anchor": "e", "positive": "f", "negative": "g", "negatives": ["h", "i"]},
            ],
            {},
            [pair("a", "b"), pair("c", "d"), pair(*"efhig")],
        ),
        (
            "a.tsv",
            "sentence\none\ntwo\nthree",
            {"augment": "next-sentence"},
            [pair("one", "two"), pair("two", "three")],
        ),
        (
            "a.tsv",
            "label\tfine\ttext\nN\tN:d\thow far\nN\tM\twho",
            {**LABELS, "columns": ["text", "fine"]},
            [Row("how far", label="N:d"), Row("who", label="M")],
        ),
        (
            "a.tsv",
            "score\tsentence1\tsentence2\n3.80\ta\tb\n1e-1\tc\td",
            SCORES,
            [Row("a", "b", score=3.8), Row("c", "d", score=0.1)],
        ),
    ],
)
def test_columns_decide_what_an_example_is(
    tmp_path: Path, name: str, content: Any, changes: Any, expected: list[Row]
) -> None:
    assert read(write(tmp_path / name, content), **changes) == expected


HEAD = "anchor\tpositive\n"


@pytest.mark.parametrize(
    "name, content, changes, message",
    [
        ("a.jsonl", "", {}, "a.* no examples"),
        ("a.tsv", HEAD + "a\tb\nc\n", {}, "a.tsv:3: 1 columns, expected 2"),
        ("a.tsv", HEAD + "a\tb\nc\t \n", {}, "a.tsv:3: positive is ' '"),
        ("a.tsv", (HEAD + "a\tb\n").encode("utf-16"), {}, "a.tsv: must be text in UTF-8, convert"),
        ("a.tsv", (HEAD + "a\tb\n").encode("utf-16-le"), {}, "a.tsv: has NUL bytes"),
        ("a.tsv", "words\na\n", {}, "a.tsv: has the columns 'words', expected anchor, positive or"),
        ("a.txt", "anchor,positive\na,b\n", {}, "a.txt: has the .*'anchor,positive'.*ends in .csv"),
        ("a.csv", 'anchor,positive\n"a,b\nc,d\n', {}, "a.csv:2: not a row of CSV: unexpected end"),
        ("a.csv", 'anchor,positive\n"a\nb",c,d\n', {}, "a.csv:2: 3 columns, expected 2"),
        (
            "a.json",
            '{"text": "a"}\n{"text": "b"}',
            {},
            "a.json: has the columns .*, of JSON lines in .jsonl",
        ),
        ("a.jsonl", '{"text": "a"}\n{', {}, "a.jsonl:2: not a JSON object"),
        ("a.jsonl", '{"text": ' + 100_000 * "[", {}, "a.jsonl:1: not a JSON object .* recursion"),
        ("a.jsonl", [{"text": 3}], {}, "a.jsonl:1: text is 3"),
        ("a.jsonl", [{"text": "a"}, {"text": "b", "score": 1}], {}, "column `score`.*set objecti"),
        ("a.tsv", HEAD + "a\tb\n", {"columns": ["anchor", "note"]}, "expected anchor, note: ren"),
        ("a.tsv", HEAD + "a\tb\n", LABELS, "a.tsv: has .*, expected text, label or"),
        ("a.tsv", "a\tb\nx\t1\n", {**SCORES, "columns": ["a", "b"]}, "has the columns 'a, b'"),
        *(
            ("a.jsonl", [{"text": "a", "label": label}], LABELS, "a.jsonl:1: label is .*, expected")
            for label in (" ", [1])
        ),
        *(
            (
                "a.jsonl",
                [{"anchor": "a", "positive": "b", "score": score}],
                SCORES,
                "a.jsonl:1: score is .*, expected a number",
            )
            for score in ("high", "nan", float("inf"), None)
        ),
        ("a.tsv", "sentence\none\n", {"augment": "next-sentence"}, "no examples are left"),
        ("a.tsv", "score\tanchor\tpositive\n1\ta\tb\n1.0\tc\td", SCORES, "have the label or sc"),
        ("a.tsv", "text\tlabel\na\tx\nb\tx\n", LABELS, "all 2 examples have the label or score x"),
        ("long" + 300 * "g", None, {}, "cannot be read: File name too long"),
        ("none.tsv", None, {}, "none.tsv: no such file"),
    ],
)
def test_what_cannot_be_learnt_is_refused_in_a_sentence(
    tmp_path: Path, name: str, content: Any, changes: Any, message: str
) -> None:
    path = tmp_path / name
    if content is not None:
        write(path, content)
    with pytest.raises(DataError, match=message):
        train(settings(path, **changes))


def test_excluded_sentences_take_their_examples_along(tmp_path: Path) -> None:
    tests = "score\tsentence1\tsentence2\n1\tA dog, barking!\tThe sea.\n2\tgood\t???\n"
    exclude = [write(tmp_path / "sts.tsv", tests)]
    path = write(tmp_path / "a.tsv", HEAD + "Waves\tthe SEA\na cat\tone cat\n")
    pairs = write(tmp_path / "b.tsv", HEAD + "a dog barking\tx\na dog\tbarking\n")
    found = read_examples(settings(path, train=[path, pairs], exclude=exclude))
    assert found.excluded == 2
    assert found.train == [pair("a cat", "one cat"), pair("a dog", "barking")]
    dev = write(tmp_path / "dev.tsv", HEAD + "A cat!\ta dog\n")  # its anchors, not its positives
    judged = read_examples(settings(path, train=[path, pairs], dev=(dev,)))
    assert judged.excluded == 1 and pair("a dog", "barking") in judged.train
    assert pair("a cat", "one cat") not in judged.train
    labels = write(tmp_path / "c.tsv", "text\tlabel\nfine\tgood\n!!!\tbad\n")
    assert len(read(labels, exclude=exclude, **LABELS)) == 2  # labels and signs are no sentences
    with pytest.raises(DataError, match="no examples are left: 1 have a sentence of the excl"):
        read(write(tmp_path / "d.tsv", "sentence\nThe sea\n"), exclude=exclude)


def test_files_of_several_kinds_are_refused(tmp_path: Path) -> None:
    files = [write(tmp_path / "a.tsv", HEAD + "a\tb\n"), write(tmp_path / "b.tsv", "text\nc\nd\n")]
    with pytest.raises(DataError, match=r"a.tsv holds pairs, and .*b.tsv single sentences: give"):
        train(settings(files[0], train=files))
    # Sentences become pairs with the next one.
    following = read_examples(settings(files[0], train=files, augment="next-sentence"))
    assert following.train == [pair("a", "b"), pair("c", "d")]


SCORED = [{"left": "a", "right": "b", "score": 1}, {"left": "c", "right": "d", "score": 2}]


@pytest.mark.parametrize(
    "name, content, changes, expected",
    [
        ("dev.tsv", "score\tsentence1\tsentence2\n1\ta\tb", {}, [Row("a", "b", score=1)]),
        ("dev.jsonl.gz", SCORED[:1], {"columns": ["left", "right"]}, [Row("a", "b", score=1)]),
        (
            "dev.jsonl",
            SCORED,
            {**SCORES, "columns": ["left", "right", "score"]},
            [Row("a", "b", score=1), Row("c", "d", score=2)],
        ),
        ("dev.csv", "label;text\nx;a", LABELS, [Row("a", label="x")]),
    ],
)
def test_dev_files_have_scores_pairs_or_labels(
    tmp_path: Path, name: str, content: Any, changes: Any, expected: list[Row]
) -> None:
    path = write(tmp_path / name, content)
    assert read_dev(settings(tmp_path / "train.tsv", dev=(path,), **changes)) == expected


# --- batches: found by the number of an update ----------------------------------------------------


def batched(**changes: Any) -> TrainConfig:
    return TrainConfig(**{"train": ("x",), "out": "y", "objective": "similarity", **changes})


def epoch_batches(rows: Batch, size: int, epoch: int = 0, **changes: Any) -> list[Batch]:
    plan = BatchPlan(batched(batch_size=size, **changes), rows)
    steps = range(epoch * plan.per_epoch, (epoch + 1) * plan.per_epoch)
    return [plan.at(step) for step in steps]


def pairs(count: int) -> list[Row]:
    return [Row(f"a {i}", f"b {i}") for i in range(count)]


@given(st.integers(2, 60), st.integers(2, 8), st.integers(0, 5))
def test_an_epoch_has_every_example_once(count: int, size: int, epoch: int) -> None:
    rows = pairs(count)
    found = epoch_batches(rows, size, epoch)
    plan = BatchPlan(batched(batch_size=size), rows)
    assert plan.at((epoch + 1) * plan.per_epoch - 1) == found[-1]  # without those before it
    assert all(1 < len(batch) <= size for batch in found)
    taken = [row for batch in found for row in batch]
    # Only a row alone in its batch may be left out: there is nothing to tell it apart from.
    assert len(taken) == len({*taken} & {*rows}) == count - (count % size == 1)


def test_seeds_and_epochs_change_the_order() -> None:
    first = epoch_batches(pairs(20), 4)
    assert first == epoch_batches(pairs(20), 4) != epoch_batches(pairs(20), 4, epoch=1)
    assert first != epoch_batches(pairs(20), 4, seed=1)


def test_labelled_texts_meet_another_of_their_label() -> None:
    rows = [Row(f"text {i}", label=f"label {i % 20}") for i in range(80)]
    found = epoch_batches(rows, 8, objective="classification")
    for batch in found:
        labels = [row.label for row in batch]
        assert all(labels.count(label) > 1 for label in labels) and len(set(labels)) > 1
    assert {*rows} == {row for batch in found for row in batch}


def test_plan_by_hand() -> None:
    config = batched(learning_rate=2e-3, batch_size=4, max_steps=10)
    plan = BatchPlan(config, pairs(18))
    assert plan.per_epoch == 5 and plan.steps == 10  # the fifth has two examples
    rates = [plan.learning_rate(step) / config.learning_rate for step in range(10)]
    assert rates == pytest.approx([1, 1, 8 / 9, 7 / 9, 6 / 9, 5 / 9, 4 / 9, 3 / 9, 2 / 9, 1 / 9])
    assert len(plan.at(4)) == 2 and plan.at(1) == epoch_batches(pairs(18), 4)[1]


def test_a_sentence_has_another_view_in_each_epoch() -> None:
    rows = [Row(text, text, one_text=True) for text in ("one two three four", "red blue car")]
    changes = {"objective": "contrastive", "augment": "delete-word"}
    views = set()
    for epoch in range(20):
        (batch,) = epoch_batches(rows, 2, epoch, **changes)
        assert {row.anchor for row in batch} == {row.anchor for row in rows}
        views |= {row.positive for row in batch}
    assert len(views) == 4 + 3
    # What is no single sentence is left as it is.
    assert {*epoch_batches(pairs(2), 2, **changes)[0]} == {*pairs(2)}


WORDS = tuple("abcdefghij")


@pytest.mark.parametrize(
    "augment, share, left, outcomes",
    [
        ("none", 0.5, 10, 1),
        ("next-sentence", 0.5, 10, 1),  # what follows is read from the file
        ("delete-word", 0.5, 9, 10),
        ("delete", 0.3, 7, 120),
        ("crop", 0.3, 7, 4),
    ],
)
def test_augmented_sentences_lose_words_in_place(
    augment: str, share: float, left: int, outcomes: int
) -> None:
    rng = Random(2)
    drawn = (augmented(" ".join(WORDS), Augment(augment), share, rng) for _ in range(8000))
    counts = Counter(drawn)
    assert len(counts) == outcomes and min(counts.values()) > 4000 / outcomes  # as likely
    for text in counts:
        kept = text.split()
        assert len(kept) == left and kept == sorted(kept)
        assert augment != "crop" or "".join(kept) in "".join(WORDS)
    for text in ("alone", "two words"):  # a word is always left
        assert augmented(text, Augment(augment), 0.99, rng).split()
