"""Files with scores: what is read, and what is refused in one sentence."""

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from searchengine.trainer.errors import ConfigError, DataError
from searchengine.trainer.training.example_files import sentences, texts_without_label
from searchengine.trainer.training.examples import Examples, read_examples
from searchengine.trainer.training.head import sample_texts
from searchengine.trainer.training.loop import train
from searchengine.trainer.training.preparation import check_examples
from searchengine.trainer.training.rows import Kind, Reading, Row, draw
from searchengine.trainer.training.step_judging import make_judge
from searchengine.trainer.training.train_config import TrainConfig
from tests.trainer.test_train_loop import base, config  # noqa: F401

WORDS = "dog cat whale bird".split()


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
        Row("a", "b", score=3.8),
        Row("c", "d", score=0.1),
    ]
    assert [texts_without_label(e) for e in found] == [("a", "b"), ("c", "d")]
    assert sorted(sample_texts(found, 0)) == ["a", "b", "c", "d"]


def test_named_columns_end_with_the_score(tmp_path: Path) -> None:
    text = "left\tright\tgold\tscore\na\tb\t0.5\t7\n"
    found = read(tmp_path / "a.tsv", text, columns=("left", "right", "gold"))
    assert drawn(found) == [Row("a", "b", score=0.5)]


def test_an_excluded_sentence_takes_its_scored_pair_along(tmp_path: Path) -> None:
    (tmp_path / "test.tsv").write_text("score\tsentence1\tsentence2\n1\tB!\tz\n")
    text = "score\tsentence1\tsentence2\n3\ta\tb\n2\tc\td\n"
    found = read(tmp_path / "a.tsv", text, exclude=[tmp_path / "test.tsv"])
    assert drawn(found) == [Row("c", "d", score=2.0)] and found.excluded == 1
    assert list(sentences(tmp_path / "test.tsv")) == ["B!", "z"]


@pytest.mark.parametrize(
    "text, message",
    [
        ("sentence1\tsentence2\na\tb", r"a.tsv:1: expected a column `score` beside the texts"),
        ("score\tsentence1\tsentence2\nhigh\ta\tb", "a.tsv:2: score is 'high', expected a number"),
        ("score\tsentence1\tsentence2\nnan\ta\tb", "a.tsv:2: score is 'nan', expected a number"),
        ("score\tsentence1\tsentence2\n\ta\tb", "a.tsv:2: score is '', expected a number"),
        ("score\tsentence1\tsentence2\n1 2\ta\tb", "a.tsv:2: score is '1 2', expected a number"),
        ("score\tsentence\n1\ta", "cannot tell what to train on from the columns score, sentence"),
        (
            "score\tanchor\tpositive\tnegative\n1\ta\tb\tc",
            "a.tsv:2: has a triplet beside score, expected a pair of texts",
        ),
    ],
)
def test_wrong_scores_are_named(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read(tmp_path / "a.tsv", text + "\n")


@pytest.mark.parametrize("value", ['"high"', "true", "[1, null]", "null", '{"a": 1}'])
def test_wrong_scores_of_jsonl_are_named(tmp_path: Path, value: str) -> None:
    row = f'{{"anchor": "a", "positive": "b", "score": {value}}}\n'
    with pytest.raises(DataError, match=r"a.jsonl:1: score is .*, expected a number"):
        read(tmp_path / "a.jsonl", row)


def test_named_columns_of_one_text_and_scores_are_refused(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"a.tsv:2: has a sentence beside b, expected a pair of texts"
    ):
        read(tmp_path / "a.tsv", "a\tb\nx\t1\n", columns=("a", "b"))


def test_a_pair_run_says_how_scores_are_learnt(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("score\tsentence1\tsentence2\n1\ta\tb\n")
    with pytest.raises(DataError, match=r"set objective=similarity to learn the scores"):
        read_examples([tmp_path / "a.tsv"])


def settings_of(**settings: Any) -> TrainConfig:
    return TrainConfig(**{"train": ("a.tsv",), "out": "m", **settings})


def scored(*rows: tuple[str, ...]) -> Examples:
    return Examples(tuple((Kind.SCORED, row) for row in rows))


@pytest.mark.parametrize(
    "settings, examples, message",
    [
        ({}, scored(("a", "b", "1.0"), ("c", "d", "1")), "all 2 pairs have the score 1: expected"),
    ],
)
def test_examples_that_teach_nothing_are_refused(
    settings: dict[str, Any], examples: Examples, message: str
) -> None:
    with pytest.raises(DataError, match=message):
        run = settings_of(**{"objective": "similarity", **settings})
        check_examples(run, examples)


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"objective": "similarity", "queue_size": 8}, "queue_size needs objective contrastive"),
    ],
)
def test_settings_without_effect_are_named(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        settings_of(**settings)


def pairs(count: int, score: Callable[[int], float]) -> Examples:
    return scored(*((f"left {i}", f"right {i}", str(score(i))) for i in range(count)))


def test_held_out_scored_pairs_judge_by_rank() -> None:
    run = settings_of(objective="similarity")
    judge, split = make_judge(run, pairs(300, lambda i: i % 6))
    assert judge is not None and len(split.rows) == split.examples_held == 30
    assert {row.score for row in split.rows} <= {float(i) for i in range(6)}


def test_held_out_pairs_of_one_score_judge_nothing() -> None:
    examples = pairs(300, lambda i: 1.0 if i else 2.0)
    run = settings_of(objective="similarity", seed=1)
    judge, split = make_judge(run, examples)
    assert judge is None and split.train is examples


@pytest.fixture
def scored_run(config: TrainConfig, tmp_path: Path) -> TrainConfig:  # noqa: F811
    """Texts are as similar as the animals they name, whatever else they say."""
    rows = [
        f"{5 * (a == b)}\tthe {a} sleeps {c}\ta {b} sings {d}"
        for a, b in [*zip(WORDS, WORDS, strict=True), *itertools.permutations(WORDS, 2)]
        for c, d in (("near", "fast"), ("slowly", "over"))
    ]
    path, dev = tmp_path / "scored.tsv", tmp_path / "dev.tsv"
    for file in (path, dev):
        file.write_text("\n".join(["score\tsentence1\tsentence2", *rows]) + "\n")
    return replace(
        config, train=(path,), dev=(dev,), objective="similarity", max_steps=40, eval_every=40
    )


def test_scores_are_learnt(scored_run: TrainConfig) -> None:
    scored_run = replace(
        scored_run, max_steps=120
    )  # after 40 a fifth of the seeds has gained little
    recipe = train(scored_run).recipe
    assert sum(recipe["best"].values()) > sum(recipe["untrained"].values()) + 0.1
    assert recipe["summary"][0].startswith("Loss: [CoSENT](https://")
    assert recipe["judged_by"] == "spearman on dev"
