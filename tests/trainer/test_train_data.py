"""Training files to examples to batches."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from searchengine.trainer.errors import DataError
from searchengine.trainer.evaluation.sts import read_sts
from searchengine.trainer.training.batches import BatchPlan, fill
from searchengine.trainer.training.example_files import key, read_labelled
from searchengine.trainer.training.examples import Examples, read_examples
from searchengine.trainer.training.rows import Kind, Reading, Row
from searchengine.trainer.training.train_config import TrainConfig

TRIPLETS = "anchor\tpositive\tnegative\nred\tcrimson\tblue\nbig\tlarge\t\n"


def write(path: Path, text: str) -> Path:
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text, encoding="utf-8")
    return path


def read(path: Path, text: str, **how: Any) -> list[tuple[Kind, tuple[str, ...]]]:
    return list(read_examples([write(path, text)], **how))


@pytest.mark.parametrize("name", ["a.tsv", "a.tsv.gz"])
def test_tsv_triplets_and_a_pair_among_them(tmp_path: Path, name: str) -> None:
    assert read(tmp_path / name, TRIPLETS) == [
        (Kind.TRIPLET, ("red", "crimson", "blue")),
        (Kind.PAIR, ("big", "large")),
    ]


@pytest.mark.parametrize(
    "header, row, expected",
    [
        (
            "premise\tentailment\tcontradiction\tsource",
            "p\te\tc\ts",
            (Kind.TRIPLET, ("p", "e", "c")),
        ),
        ("premise\tentailment", "p\te", (Kind.PAIR, ("p", "e"))),
        ("sentence2\tsentence1", "b\ta", (Kind.PAIR, ("a", "b"))),
        ("query\tpositive\tnegative", "q\tp\tn", (Kind.TRIPLET, ("q", "p", "n"))),
        ("title\ttext", "t\tb", (Kind.PAIR, ("t", "b"))),
        ("title\tquestion\tanswer", "t\tq\ta", (Kind.PAIR, ("q", "a"))),
        ("source\ttext", 's\t"quoted', (Kind.SENTENCE, ('"quoted',))),
        ("sentence", "s", (Kind.SENTENCE, ("s",))),
    ],
)
def test_columns_by_name(tmp_path: Path, header: str, row: str, expected: Any) -> None:
    assert read(tmp_path / "a.tsv", f"{header}\n{row}\n") == [expected]


def test_cells_of_csv_are_quoted(tmp_path: Path) -> None:
    text = 'id,question,answer\r\n1,"Who, ""where""?","A line,\nand another"\r\n\r\n2,a,b\r\n'
    for name in ("a.csv", "a.csv.gz"):
        assert read(tmp_path / name, text, columns=("question", "answer")) == [
            (Kind.PAIR, ('Who, "where"?', "A line,\nand another")),
            (Kind.PAIR, ("a", "b")),
        ]
    (tmp_path / "scored.csv").write_text('score,sentence1,sentence2\n4.5,"a, b",c\n')
    assert read_sts([tmp_path / "scored.csv"]) == [(4.5, "a, b", "c")]


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
def test_csv_has_the_separator_of_its_header_and_cells_of_any_length(
    tmp_path: Path, separator: str
) -> None:
    long = "x, y\n" * 30_000  # csv alone refuses cells over 128 KiB
    rows = [("anchor", "positive"), ("a", f'"{long}"'), ('"b; | c"', "d")]
    text = "".join(f"{separator.join(row)}\n" for row in rows)
    examples = [(Kind.PAIR, ("a", long)), (Kind.PAIR, ("b; | c", "d"))]
    assert read(tmp_path / "a.csv", text) == examples


def test_jsonl_groups_and_named_columns(tmp_path: Path) -> None:
    rows = [
        {"_id": "1", "captions": ["a dog", "one dog", "a dog"], "note": "x"},
        {"_id": "2", "captions": ["sea", "the sea"], "note": "y"},
    ]
    text = "\n".join(map(json.dumps, rows)) + "\n\n"
    assert read(tmp_path / "a.jsonl.gz", text) == [
        (Kind.PARAPHRASES, ("a dog", "one dog")),
        (Kind.PARAPHRASES, ("sea", "the sea")),
    ]
    named = read(tmp_path / "a.jsonl", text, columns=("note", "_id"))
    assert named == [(Kind.PAIR, ("x", "1")), (Kind.PAIR, ("y", "2"))]


def test_scored_pairs_are_not_training_pairs_unless_named(tmp_path: Path) -> None:
    text = "score\tsentence1\tsentence2\n0.1\ta\tb\n"
    with pytest.raises(DataError, match="column `score` makes this a test of similarity"):
        read(tmp_path / "a.tsv", text)
    named = read(tmp_path / "a.tsv", text, columns=("sentence1", "sentence2"))
    assert named == [(Kind.PAIR, ("a", "b"))]


@pytest.mark.parametrize(
    "name, text, message",
    [
        ("a.tsv", "", "a.tsv:1: expected a header line"),
        ("a.tsv", "anchor\tpositive\n", "a.tsv: no examples"),
        ("a.tsv", "anchor\tpositive\na\tb\nc\n", "a.tsv:3: 1 columns, expected 2"),
        ("a.tsv", "anchor\tpositive\na\tb\nc\t \n", "a.tsv:3: positive is ' ', expected text"),
        ("a.tsv", "words\na\n", "a.tsv:1: cannot tell what to train on from the columns words"),
        ("a.txt", "anchor,positive\na,b\n", "a.txt:1: is CSV: give the file a name that ends"),
        ("a.csv", 'anchor,positive\n"a,b\nc,d\n', "a.csv:2: not a row of CSV: unexpected end"),
        ("a.csv", 'anchor,positive\n"a\nb",c,d\n', "a.csv:2: 3 columns, expected 2"),
        ("a.csv", 'anchor,positive\na,"b"c\n', "a.csv:2: not a row of CSV"),
        ("a.json", '[\n{"anchor": "a", "positive": "b"}]', "a.json:1: is JSON: training reads"),
        ("a.json", '{"text": "a"}\n{"text": "b"}', "a.json:1: is JSON: training reads TSV"),
        ("a.tsv", "x,y\tz\na\tb\n", "a.tsv:1: cannot tell what to train on from the columns x,y"),
        ("a.jsonl", "", "a.jsonl: no examples"),
        ("a.jsonl", '{"text": "a"}\n{', "a.jsonl:2: not a JSON object"),
        ("a.jsonl", "[1]", "a.jsonl:1: expected a JSON object"),
        ("a.jsonl", '{"text": 3}', "a.jsonl:1: text is 3, expected text"),
        ("a.jsonl", '{"same": ["a", "a"]}', "a.jsonl:1: same must list at least 2 different texts"),
        ("a.jsonl", '{"same": ["a", 1]}', "a.jsonl:1: same must list at least 2 different texts"),
        ("a.jsonl", '{"x": ["a", "b"], "y": ["a", "b"]}', "a.jsonl: cannot tell what to train"),
        ("a.jsonl", '{"text": "a"}\n\n{"text": "b", "score": 1}', "a.jsonl:3: the column `score`"),
        (
            "a.jsonl",
            '{"text": "a"}\n{"text": "b", "label": "x"}',
            "a.jsonl:2: has a column `label`",
        ),
    ],
)
def test_malformed_lines_are_named(tmp_path: Path, name: str, text: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read(tmp_path / name, text)


def test_unknown_columns_missing_files_wrong_encoding(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"a.tsv:1: no column note: it has anchor, positive,"):
        read(tmp_path / "a.tsv", TRIPLETS, columns=("anchor", "note"))
    with pytest.raises(DataError, match=r"a.txt:1: is CSV"):
        read(tmp_path / "a.txt", "anchor,note\na,b\n", columns=("anchor", "note"))
    with pytest.raises(DataError, match=r"a.jsonl: no column note: it has text, title"):
        read(tmp_path / "a.jsonl", '{"text": "a"}\n{"title": "b"}', columns=("text", "note"))
    with pytest.raises(DataError, match=r"none.tsv: no such file"):
        read_examples([tmp_path / "none.tsv"])
    (tmp_path / "latin.tsv").write_bytes("anchor\tpositive\né\té\n".encode("latin-1"))
    with pytest.raises(DataError, match="not UTF-8"):
        read_examples([tmp_path / "latin.tsv"])


def test_excluded_sentences_take_their_examples_along(tmp_path: Path) -> None:
    tests = write(
        tmp_path / "sts.tsv", "score\tsentence1\tsentence2\n1\tA dog, barking!\tThe sea.\n"
    )
    group = json.dumps({"captions": ["Waves", "the SEA"]})
    train = write(tmp_path / "a.jsonl", f'{group}\n{{"captions": ["a cat", "one cat"]}}\n')
    pairs = write(tmp_path / "b.tsv", "anchor\tpositive\na dog barking\tx\na dog\tbarking\n")
    found = read_examples([train, pairs], exclude=[tests])
    assert found.excluded == 2
    assert [texts for _, texts in found] == [("a cat", "one cat"), ("a dog", "barking")]
    with pytest.raises(DataError, match="all 1 examples contain a sentence of the exclude files"):
        read_examples([write(tmp_path / "c.tsv", "sentence\nThe sea\n")], exclude=[tests])


def test_key_ignores_all_but_letters_and_digits() -> None:
    assert key("It's 5 o'clock.") == key("its 5 OCLOCK") == "its5oclock"
    assert key("Café – déjà") == "cafedeja"
    assert key("고래") != key("바다")


def settings(**changes: Any) -> TrainConfig:
    return TrainConfig(**{"train": (Path("x"),), "out": Path("y"), **changes})


def epoch_batches(data: Examples, size: int, seed: int, epoch: int) -> list[list[Row]]:
    config = settings(batch_size=size, seed=seed)
    plan = BatchPlan(config, data)
    steps = range(epoch * plan.per_epoch, (epoch + 1) * plan.per_epoch)
    return [batch for step in steps for batch in plan.at(step)]


def examples(kinds: dict[Kind, int]) -> Examples:
    width = dict(zip(Kind, (2, 3, 1, 4, 2, 2), strict=True))
    judged = dict.fromkeys(Kind, ()) | {Kind.SCORED: ("0.5",)}
    return Examples(
        tuple(
            (kind, (*(f"{kind} {i} {j}" for j in range(width[kind])), *judged[kind]))
            for kind, count in kinds.items()
            for i in range(count)
        )
    )


@given(
    st.dictionaries(st.sampled_from(list(Kind)), st.integers(2, 30), min_size=1),
    st.integers(2, 8),
    st.integers(0, 5),
)
def test_an_epoch_has_every_example_once(kinds: dict[Kind, int], size: int, epoch: int) -> None:
    data = examples(kinds)
    batches = epoch_batches(data, size, seed=1, epoch=epoch)
    assert batches == epoch_batches(data, size, seed=1, epoch=epoch)
    assert len(batches) == len(epoch_batches(data, size, seed=1, epoch=epoch + 1))
    anchors = [row.anchor.rsplit(" ", 1)[0] for batch in batches for row in batch]
    assert len(anchors) == len(set(anchors))
    # Only a pair alone in its batch may be left out: there is nothing to tell it apart from.
    lone = sum(n % size == 1 for kind, n in kinds.items() if kind is not Kind.TRIPLET)
    assert len(anchors) == sum(kinds.values()) - lone
    for batch in batches:
        assert len(batch) <= size and len({bool(row.negatives) for row in batch}) == 1


def test_seeds_and_epochs_change_order_and_paraphrases() -> None:
    data = examples({Kind.PARAPHRASES: 20})
    first = epoch_batches(data, 4, seed=0, epoch=0)
    assert first != epoch_batches(data, 4, seed=0, epoch=1)
    assert first != epoch_batches(data, 4, seed=1, epoch=0)
    pairs = {
        frozenset(row[:2]) for e in range(9) for b in epoch_batches(data, 4, 0, e) for row in b
    }
    assert len(pairs) > 60  # of 120 pairs; without fresh draws it would stay at 20


def test_pairs_meet_others_in_every_epoch() -> None:
    data = examples({Kind.PAIR: 40})
    met = [
        {frozenset(row.anchor for row in batch) for batch in epoch_batches(data, 4, 0, epoch)}
        for epoch in range(3)
    ]
    assert not met[0] & met[1] and not met[1] & met[2]


def test_no_text_twice_in_a_batch_where_avoidable() -> None:
    pairs = [(Kind.PAIR, (f"question {i % 8}", f"answer {i}")) for i in range(32)]
    for epoch in range(5):
        batches = epoch_batches(Examples(tuple(pairs)), 4, seed=0, epoch=epoch)
        doubles = [len({row.anchor for row in batch}) < len(batch) for batch in batches]
        assert len(batches) == 8 and sum(doubles) <= 2  # the last ones may have no choice
    # And nothing is lost where every row shares a text.
    same = Examples(tuple((Kind.PAIR, ("q", f"a{i}")) for i in range(10)))
    assert sum(map(len, epoch_batches(same, 4, 0, 0))) == 10


@pytest.mark.parametrize("repeats, second", [(3, "fresh"), (4, "q")])
def test_a_fresh_row_is_looked_for_among_two_batches_of_repeats(repeats: int, second: str) -> None:
    row = Row("q", "q")
    batches = list(fill([row] * (1 + repeats) + [Row("fresh", "fresh")], 2))
    assert batches[0] == [row, Row(second, second)]
    assert sum(map(len, batches)) == repeats + 2


def test_digest_follows_the_texts() -> None:
    one, other = examples({Kind.PAIR: 3}), examples({Kind.PAIR: 4})
    assert one.digest() == examples({Kind.PAIR: 3}).digest() != other.digest()
    *rest, (kind, texts) = list(one)
    changed = Examples([*rest, (kind, (*texts[:-1], texts[-1] + "."))])
    assert changed.digest() != one.digest() != Examples([(kind, texts), *rest]).digest()


def test_digest_follows_the_files_beside_them(tmp_path: Path) -> None:
    data, dev = examples({Kind.PAIR: 3}), write(tmp_path / "dev.tsv", "a")
    first = data.digest([dev])
    assert first == data.digest([dev]) != data.digest()
    write(dev, "b")
    assert data.digest([dev]) != first


@pytest.mark.parametrize(
    "name, content, expected",
    [
        ("a.tsv", "anchor\tpositive\tnegative_1\tnegative_2\na\tb\tc\td\n", ("a", "b", "c", "d")),
        ("a.tsv", "query\tnegative\tpositive\tnegative_2\na\tc\tb\t\n", ("a", "b", "c")),
        ("a.jsonl", '{"anchor": "a", "positive": "b", "negatives": ["c", "d"]}\n', tuple("abcd")),
        ("a.jsonl", '{"query": "a", "positive": "b", "negatives": []}\n', ("a", "b")),
    ],
)
def test_several_negatives(
    tmp_path: Path, name: str, content: str, expected: tuple[str, ...]
) -> None:
    found = read_examples([write(tmp_path / name, content)])
    kind = Kind.TRIPLET if len(expected) > 2 else Kind.PAIR
    assert list(found) == [(kind, expected)]


def test_columns_are_those_of_all_rows_of_jsonl(tmp_path: Path) -> None:
    rows = [
        {"anchor": "a", "positive": "b"},
        {"anchor": "c", "positive": "d", "negative": None},
        {"anchor": "e", "positive": "f", "negative": "g", "negatives": ["h"]},
    ]
    text = "\n".join(map(json.dumps, rows)) + "\n"
    expected = [
        (Kind.PAIR, ("a", "b")),
        (Kind.PAIR, ("c", "d")),
        (Kind.TRIPLET, ("e", "f", "g", "h")),
    ]
    assert read(tmp_path / "a.jsonl", text) == expected
    named = ("anchor", "positive", "negative", "negatives")
    assert read(tmp_path / "a.jsonl", text, columns=named) == expected
    with pytest.raises(DataError, match=r"a.jsonl:4: anchor is None, expected text"):
        read(tmp_path / "a.jsonl", text + '{"positive": "b"}\n')


@pytest.mark.parametrize("header", ["text\tlabel", "sentence1\tsentence2\tlabel"])
def test_labels_are_not_ignored(tmp_path: Path, header: str) -> None:
    row = "\t".join("a" for _ in header.split("\t"))
    path = tmp_path / "a.tsv"
    with pytest.raises(DataError, match=r"column `label`.*set objective=classification"):
        read(path, f"{header}\n{row}\n")
    names = header.split("\t")[:-1]
    assert len(read(path, f"{header}\n{row}\n", columns=names)) == 1
    # A file to exclude is read for its texts alone.
    pairs = "anchor\tpositive\nx\ty\n"
    assert len(read(tmp_path / "b.tsv", pairs, exclude=[path])) == 1


def test_sentences_with_what_follows_them(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", "sentence\none\ntwo\nthree\n")
    found = read_examples([path], next_sentence=True)
    assert list(found) == [(Kind.PAIR, ("one", "two")), (Kind.PAIR, ("two", "three"))]
    pairs = write(tmp_path / "b.tsv", "anchor\tpositive\na\tb\n")
    assert list(read_examples([pairs], next_sentence=True)) == [(Kind.PAIR, ("a", "b"))]
    write(pairs, "anchor\tpositive\na\tb\nc\td\ne\tf\n")
    as_they_are = read_examples([pairs])
    assert len(as_they_are) == 3
    assert list(read_examples([pairs], next_sentence=True)) == list(as_they_are)


def test_labels_are_read_by_name_or_as_told(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", "label\tfine\ttext\nNUM\tNUM:dist\thow far\n")
    assert read_labelled([path]) == [("how far", "NUM")]
    assert read_labelled([path], ("text", "fine")) == [("how far", "NUM:dist")]
    numbers = write(tmp_path / "b.jsonl", '{"sentence": "good", "label": 1}\n')
    assert read_labelled([numbers]) == [("good", "1")]
    with pytest.raises(DataError, match="expected a text and its label"):
        read_labelled([path], ("text", "fine", "label"))
    with pytest.raises(DataError, match=r"a.tsv:1: expected the columns `text` and `label`"):
        read_labelled([write(tmp_path / "a.tsv", "sentence1\tsentence2\na\tb\n")])


@pytest.mark.parametrize(
    "row, message",
    [
        ('{"text": " ", "label": "x"}', "a.jsonl:2: text is ' ', expected text"),
        ('{"label": "x"}', "a.jsonl:2: text is None, expected text"),
        ('{"text": 3, "label": "x"}', "a.jsonl:2: text is 3, expected text"),
        ('{"text": "a", "label": " "}', "a.jsonl:2: label is ' ', expected a label"),
        ('{"text": "a"}', "a.jsonl:2: label is None, expected a label"),
    ],
)
def test_malformed_labelled_rows_are_named(tmp_path: Path, row: str, message: str) -> None:
    path = write(tmp_path / "a.jsonl", f'{{"text": "a", "label": "x"}}\n{row}\n')
    with pytest.raises(DataError, match=message):
        read_labelled([path])


def test_what_a_recipe_does_not_learn_from_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", "sentence\none\n")
    with pytest.raises(
        DataError, match=r"a.tsv: holds a sentence \('one'\), but pair was expected"
    ):
        read_examples([path], expects=[Kind.PAIR])
    assert len(read_examples([path], expects=[Kind.PAIR, Kind.SENTENCE])) == 1


def test_labels_and_texts_without_letters_are_not_excluded_by_chance(tmp_path: Path) -> None:
    labelled = write(tmp_path / "a.tsv", "text\tlabel\nfine\tgood\nawful\tbad\n!!!\tbad\n")
    tests = write(tmp_path / "b.tsv", "sentence\ngood\n???\nawful!\n")
    found = read_examples([labelled], exclude=[tests], reading=Reading.LABELS)
    assert [texts[0] for _, texts in found] == ["fine", "!!!"] and found.excluded == 1
    with pytest.raises(DataError, match="no sentence has another after it"):
        read_examples([write(tmp_path / "c.tsv", "sentence\none\n")], next_sentence=True)


def test_plan_by_hand() -> None:
    config = settings(learning_rate=2e-3, batch_size=4, accumulation=2, max_steps=10)
    data = Examples((Kind.PAIR, (f"a{i}", f"b{i}")) for i in range(20))
    plan = BatchPlan(config, data)
    assert plan.per_epoch == 2 and plan.steps == 10  # 5 batches, the fifth fills no update
    rates = [plan.learning_rate(step) / config.learning_rate for step in range(10)]
    assert rates == pytest.approx([1, 1, 8 / 9, 7 / 9, 6 / 9, 5 / 9, 4 / 9, 3 / 9, 2 / 9, 1 / 9])
    assert plan.at(7) == BatchPlan(config, data).at(7)  # without the steps before it
    batches = [batch for step in (0, 1) for batch in plan.at(step)]
    assert batches == epoch_batches(data, 4, 0, 0)[:4]
