"""Files with scores: what is read, and what is refused in one sentence."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from searchengine.trainer.errors import ConfigError, DataError
from searchengine.trainer.training.example_files import sentences, texts_without_label
from searchengine.trainer.training.examples import Examples, read_examples
from searchengine.trainer.training.head import sample_texts
from searchengine.trainer.training.preparation import check_examples
from searchengine.trainer.training.rows import Kind, Reading, Row, draw
from searchengine.trainer.training.step_judging import make_judge
from searchengine.trainer.training.train_config import TrainConfig


def read(path: Path, text: str, **how: Any) -> Examples:
    path.write_text(text, encoding="utf-8")
    return read_examples([path], reading=Reading.SCORES, **how)


def drawn(examples: Examples) -> list[Row]:
    return [draw(kind, texts, None) for kind, texts in examples]  # type: ignore[arg-type]


def test_scored_pairs_are_read_in_any_order_of_columns(tmp_path: Path) -> None:
    found = read(
        tmp_path / "a.tsv", "score\tsentence1\tsentence2\tsubset\n3.80\ta\tb\tx\n1e-1\tc\td\tx\n"
    )
    assert [kind for kind, _ in found] == [Kind.SCORED] * 2
    assert drawn(found) == [
        Row("a", "b", scores=(3.8,)),
        Row("c", "d", scores=(0.1,)),
    ]
    assert [texts_without_label(e) for e in found] == [("a", "b"), ("c", "d")]
    assert sorted(sample_texts(found, 0)) == ["a", "b", "c", "d"]


@pytest.mark.parametrize(
    "name, text",
    [
        (
            "a.jsonl",
            '{"query": "q", "positive": "p", "negatives": ["m", "n"], "scores": [9, 2.5, -1]}',
        ),
        ("a.tsv", "query\tpositive\tnegative_1\tnegative_2\tscores\nq\tp\tm\tn\t9 2.5 -1"),
        ("a.tsv", "query\tpositive\tnegative_1\tnegative_2\tscore\nq\tp\tm\tn\t[9, 2.5, -1]"),
    ],
)
def test_scores_of_candidates_are_a_list(tmp_path: Path, name: str, text: str) -> None:
    found = read(tmp_path / name, text)
    assert drawn(found) == [Row("q", "p", ("m", "n"), scores=(9.0, 2.5, -1.0))]


def test_margins_are_one_fewer(tmp_path: Path) -> None:
    found = read(tmp_path / "a.tsv", "anchor\tpositive\tnegative\tscore\na\tp\tn\t0.25\n")
    assert drawn(found) == [Row("a", "p", ("n",), scores=(0.25,))]


def test_named_columns_end_with_the_scores(tmp_path: Path) -> None:
    text = "left\tright\tgold\tscore\na\tb\t0.5\t7\n"
    found = read(tmp_path / "a.tsv", text, columns=("left", "right", "gold"))
    assert drawn(found) == [Row("a", "b", scores=(0.5,))]


def test_an_excluded_sentence_takes_its_scored_pair_along(tmp_path: Path) -> None:
    (tmp_path / "test.tsv").write_text("score\tsentence1\tsentence2\n1\tB!\tz\n")
    text = "score\tsentence1\tsentence2\n3\ta\tb\n2\tc\td\n"
    found = read(tmp_path / "a.tsv", text, exclude=[tmp_path / "test.tsv"])
    assert drawn(found) == [Row("c", "d", scores=(2.0,))] and found.excluded == 1
    assert list(sentences(tmp_path / "test.tsv")) == ["B!", "z"]


@pytest.mark.parametrize(
    "text, message",
    [
        ("sentence1\tsentence2\na\tb", r"a.tsv:1: expected one column `score` or `scores` beside"),
        ("score\tscores\tsentence1\tsentence2\n1\t1\ta\tb", "expected one column `score` or"),
        ("score\tsentence1\tsentence2\nhigh\ta\tb", "a.tsv:2: score is 'high', expected a number"),
        ("score\tsentence1\tsentence2\nnan\ta\tb", "a.tsv:2: score is 'nan', expected a number"),
        ("score\tsentence1\tsentence2\n\ta\tb", "score holds 0 numbers for 1 candidates"),
        ("score\tsentence1\tsentence2\n1 2\ta\tb", "score holds 2 numbers for 1 candidates: exp"),
        ("score\tsentence\n1\ta", "cannot tell what to train on from the columns score, sentence"),
        (
            "score\tanchor\tpositive\tnegative\n1 2 3\ta\tb\tc",
            "score holds 3 numbers for 2 candidates: expected one for each, the positive first",
        ),
    ],
)
def test_wrong_scores_are_named(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read(tmp_path / "a.tsv", text + "\n")


@pytest.mark.parametrize("value", ['"high"', "true", "[1, null]", "null", '{"a": 1}'])
def test_wrong_scores_of_jsonl_are_named(tmp_path: Path, value: str) -> None:
    row = f'{{"anchor": "a", "positive": "b", "score": {value}}}\n'
    with pytest.raises(DataError, match=r"a.jsonl:1: score is .*, expected a number, or a list"):
        read(tmp_path / "a.jsonl", row)


def test_named_columns_of_one_text_and_scores_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"a.tsv:2: has b for one text, expected two texts or more"):
        read(tmp_path / "a.tsv", "a\tb\nx\t1\n", columns=("a", "b"))


def test_a_pair_run_says_how_scores_are_learnt(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("score\tsentence1\tsentence2\n1\ta\tb\n")
    with pytest.raises(DataError, match=r"set objective=similarity \(or distillation\) to learn"):
        read_examples([tmp_path / "a.tsv"])


def config(**settings: Any) -> TrainConfig:
    return TrainConfig(**{"train": ("a.tsv",), "out": "m", **settings})


def scored(*rows: tuple[str, ...]) -> Examples:
    return Examples(tuple((Kind.SCORED, row) for row in rows))


@pytest.mark.parametrize(
    "settings, examples, message",
    [
        ({}, scored(("a", "b", "c", "1 2")), "'a' has 3 texts and 2 scores: objective similarity"),
        ({}, scored(("a", "b", "c", "1")), "'a' has 3 texts and 1 scores: objective similarity"),
        ({}, scored(("a", "b", "1.0"), ("c", "d", "1")), "all 2 pairs have the score 1: expected"),
        (
            {"similarity_loss": "mse"},
            scored(("a", "b", "5"), ("c", "d", "0.5")),
            "scores from 0.5 to 5: similarity_loss mse compares them with cosines",
        ),
        (
            {"objective": "distillation"},
            scored(("a", "b", "5")),
            "'a' has no negative: distillation_loss kl compares the scores of at least two",
        ),
        (
            {"objective": "distillation", "distillation_loss": "margin-mse", "teacher": "t"},
            Examples(((Kind.PAIR, ("a", "b")),)),
            "'a' has no negative: distillation_loss margin-mse",
        ),
    ],
)
def test_examples_that_teach_nothing_are_refused(
    settings: dict[str, Any], examples: Examples, message: str
) -> None:
    with pytest.raises(DataError, match=message):
        run = config(**{"objective": "similarity", **settings})
        check_examples(run, examples, None)


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"similarity_loss": "angle"}, "similarity_loss needs objective similarity"),
        ({"teacher": "t"}, "teacher needs objective distillation"),
        ({"objective": "similarity", "guide": "g"}, "guide needs objective contrastive"),
        ({"objective": "distillation", "distillation_loss": "mse"}, "name the `teacher`"),
        ({"guide": "g", "queue_size": 8}, "queue_size keeps no texts for a guide"),
        ({"guide_margin": 0.1}, "guide_margin without a guide"),
        (
            {
                "objective": "distillation",
                "distillation_loss": "mse",
                "teacher": "t",
                "teacher_temperature": 2,
            },
            "distillation_loss mse has no teacher_temperature",
        ),
    ],
)
def test_settings_without_effect_are_named(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config(**settings)


def pairs(count: int, score: Callable[[int], float]) -> Examples:
    return scored(*((f"left {i}", f"right {i}", str(score(i))) for i in range(count)))


def test_held_out_scored_pairs_judge_by_rank() -> None:
    run = config(objective="similarity")
    judge, split = make_judge(run, pairs(300, lambda i: i % 6), None)
    assert judge is not None and len(split.rows) == split.examples_held == 30
    assert {row.scores for row in split.rows} <= {(float(i),) for i in range(6)}


def test_held_out_pairs_of_one_score_judge_nothing() -> None:
    examples = pairs(300, lambda i: 1.0 if i else 2.0)
    run = config(objective="similarity", seed=1)
    judge, split = make_judge(run, examples, None)
    assert judge is None and split.train is examples
