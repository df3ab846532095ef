"""Several data sets in a run: how often each comes, its own objective and prompt, and resuming."""

import itertools
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from searchengine.trainer.errors import ConfigError
from searchengine.trainer.training import batches, preparation, step_judging
from searchengine.trainer.training.batches import BatchPlan
from searchengine.trainer.training.examples import Examples
from searchengine.trainer.training.loop import train
from searchengine.trainer.training.passes import Passes
from searchengine.trainer.training.preparation import DataSet, read_data_sets
from searchengine.trainer.training.rows import Kind
from searchengine.trainer.training.step_judging import Judgement, Split
from searchengine.trainer.training.train_config import (
    DistillationLoss,
    Objective,
    TrainConfig,
    parts,
)
from tests.trainer.test_teacher_runs import sentences_of
from tests.trainer.test_train_loop import base, config, interrupt_at, weights  # noqa: F401

WORDS = "dog cat whale bird man woman child tree car sea house music".split()
PAIRS = [*itertools.permutations([*WORDS, "fast", "slowly", "near", "over"], 2)]


def settings(**changes: Any) -> TrainConfig:
    return TrainConfig(**{"train": ["x.tsv"], "out": "y", **changes})


def pairs(count: int, name: str = "a") -> Examples:
    return Examples((Kind.PAIR, (f"{name} {i}", f"positive {name} {i}")) for i in range(count))


@given(
    st.lists(st.tuples(st.integers(2, 40), st.sampled_from([0, 0.25, 0.5, 1, 2])), min_size=1),
    st.integers(2, 8),
)
def test_an_epoch_has_each_data_set_as_often_as_it_weighs(
    sizes: list[tuple[int, float]], batch: int
) -> None:
    run = settings(batch_size=batch)
    data = [DataSet(run, pairs(count, str(i)), weight) for i, (count, weight) in enumerate(sizes)]
    counts = [count // batch + (count % batch > 1) for count, _ in sizes]
    expected = [
        max(1, round(weight * count)) if weight and count else 0
        for count, (_, weight) in zip(counts, sizes, strict=True)
    ]
    if not sum(expected):
        with pytest.raises(ConfigError, match="0 batches of up to"):
            BatchPlan(run, data)
        return
    plan = BatchPlan(run, data)
    seen: Counter[str] = Counter()
    for epoch in range(4):
        found = [
            each for s in range(plan.per_epoch) for each in plan.at(epoch * plan.per_epoch + s)
        ]
        assert [Counter(i for i, _ in found)[i] for i in range(len(sizes))] == expected
        for number, rows in found:
            assert {row.anchor.split()[0] for row in rows} == {str(number)}  # of one data set
            seen.update(row.anchor for row in rows)
    for i, (count, weight) in enumerate(sizes):
        if weight == 1:  # each example once an epoch, but one that is left over
            times = [seen[f"{i} {row}"] for row in range(count)]
            assert max(times) <= 4 and 4 * count - sum(times) == 4 * (count % batch == 1)


def test_a_data_set_without_a_batch_is_named() -> None:
    run = settings(batch_size=4)
    lone = Examples([(Kind.PAIR, ("a", "b")), (Kind.SENTENCE, ("c",))])
    with pytest.raises(ConfigError, match=r"^data set 2: examples to train on: 2; expected 2 or m"):
        BatchPlan(run, [DataSet(run, pairs(9)), DataSet(run, lone)])
    assert BatchPlan(run, [DataSet(run, pairs(9)), DataSet(run, lone, weight=0)]).per_epoch == 2
    with pytest.raises(ConfigError, match=r"^examples to train on: 1; expected 2 or more of one k"):
        BatchPlan(run, [DataSet(run, pairs(1))])


def test_the_data_sets_take_turns_in_another_order_every_epoch() -> None:
    run = settings(batch_size=4)
    plan = BatchPlan(run, [DataSet(run, pairs(80, "a")), DataSet(run, pairs(80, "b"))])
    turns = [
        [number for step in range(40) for number, _ in plan.at(epoch * 40 + step)]
        for epoch in range(2)
    ]
    assert turns[0] != turns[1] and turns[0] != sorted(turns[0])


def test_a_share_of_a_data_set_is_another_one_in_the_next_epoch() -> None:
    run = settings(batch_size=4)
    plan = BatchPlan(run, [DataSet(run, pairs(48), 0.25)])
    steps = range(4 * plan.per_epoch)
    assert len({row.anchor for step in steps for _, rows in plan.at(step) for row in rows}) == 48


@pytest.mark.parametrize("batch", [4, 3000])
def test_every_batch_is_found_without_those_before_it(batch: int) -> None:
    """Also in the second block of rows, and for large batches."""
    run = settings(batch_size=batch)
    data = [DataSet(run, pairs(20_000)), DataSet(run, pairs(30, "b"), 2.0)]
    plan = BatchPlan(run, data)
    order = [plan.at(step) for step in range(plan.per_epoch)]
    for step in (plan.per_epoch - 1, 0, plan.per_epoch // 2):
        assert BatchPlan(run, data).at(step) == order[step]
    anchors = [row.anchor for found in order for i, rows in found for row in rows if i == 0]
    assert len(set(anchors)) == len(anchors) == 20_000
    assert anchors != sorted(anchors)


def test_fewer_long_rows_are_in_memory_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """And their batches are found by number as well."""
    monkeypatch.setattr(batches, "BLOCK_BYTES", 40_000)
    run = settings(batch_size=4)
    rows = [(Kind.PAIR, (f"{i} {'long ' * 200}", f"positive {i}")) for i in range(200)]
    data = [DataSet(run, Examples(rows))]
    plan = BatchPlan(run, data)
    order = [plan.at(step) for step in range(plan.per_epoch)]
    ((_, stream),) = plan._streams
    assert stream._block_batches == 9  # of 4 rows of 1 kB
    assert BatchPlan(run, data).at(30) == order[30]
    assert len({row.anchor for found in order for _, batch in found for row in batch}) == 200


@pytest.fixture
def several(config: TrainConfig, tmp_path: Path) -> TrainConfig:  # noqa: F811
    """Triplets, scored pairs, and sentences that keep the base's vectors."""
    scored = tmp_path / "scored.tsv"
    rows = [
        f"{5 * (a == b)}\tthe {a} sleeps {c}\ta {b} sings {c}"
        for a, b in itertools.product(WORDS[:4], repeat=2)
        for c in ("near", "fast")
    ]
    scored.write_text("\n".join(["score\tsentence1\tsentence2", *rows]) + "\n")
    data = [
        {"train": [str(config.train[0])], "weight": 0.5, "query_prompt": "the dog "},
        {"train": [str(scored)], "objective": "similarity", "batch_size": 16},
        {
            "train": [str(sentences_of(config, tmp_path))],
            "weight": 0.25,
            "loss_weight": 20,
            "objective": "distillation",
            "distillation_loss": "cosine",
            "teacher": config.base,
        },
    ]
    return replace(
        config, train=(), data_sets=tuple(data), hard_negative_weight=2.0, expects=("pair",)
    )


def test_each_data_set_has_its_own_settings_and_the_rest_of_the_run(
    several: TrainConfig,
) -> None:
    first, second, third = parts(several)
    assert first.config.hard_negative_weight == 2.0 and first.prompts == {"query": "the dog "}
    assert (first.weight, second.weight, third.weight) == (0.5, 1.0, 0.25)
    assert second.config.objective is Objective.SIMILARITY and second.config.batch_size == 16
    assert first.config.expects == second.config.expects == ()
    assert second.config.hard_negative_weight == 1.0  # of pairs, which it does not tell apart
    assert third.config.distillation_loss is DistillationLoss.COSINE
    again = TrainConfig.from_json(several.to_json())
    assert again == several and parts(again) == parts(several)


def test_a_run_learns_from_all_of_them_and_resumes(
    several: TrainConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[tuple[int, str]] = []
    tokenized = Passes.tokenized

    def watched(self: Passes, view: Any, prompts: Any) -> Any:
        found = tokenized(self, view, prompts)
        read.extend((len(view.texts), found.prompt) for _ in [0] if view.texts)
        return found

    monkeypatch.setattr(Passes, "tokenized", watched)
    whole = train(several)
    assert {prompt for _, prompt in read} == {"", "the dog "}
    assert {size for size, _ in read} >= {8, 16}
    summary = whole.recipe["summary"]
    assert summary[0].startswith(
        "Data set 1, pairs.tsv, 60 examples, weight 0.5, prompt 'the dog ' (query): InfoNCE"
    )
    assert summary[1].startswith("Data set 2, scored.tsv, 32 examples, weight 1: [CoSENT]")
    third = "Data set 3, sentences.tsv, 132 examples, weight 0.25, its loss times 20: 1 − cosine"
    assert summary[2].startswith(third)
    assert any("its vectors were learnt" in line for line in summary)
    assert whole.recipe["examples"] == 60 + 32 + 132
    assert "Data set 2, scored.tsv" in (several.out / "README.md").read_text()
    other = replace(several, out=tmp_path / "other")
    with pytest.raises(KeyboardInterrupt):
        train(other, interrupt_at(6))
    again = train(other, resume=True)
    for name, value in weights(whole).items():
        torch.testing.assert_close(weights(again)[name], value, rtol=0, atol=0)


def test_a_data_set_behind_another_learns_as_one_alone(several: TrainConfig) -> None:
    """By its own objective, prompts, batches and weight, not by those of the first."""
    first, scored, _ = several.data_sets
    run = replace(several, max_steps=1, dropout=0.0, eval_every=0, expects=(), prefix_weights=())

    def first_loss(*sets: dict[str, Any], **more: Any) -> float:
        trained = train(replace(run, data_sets=sets, **more))
        return float(trained.model.history["losses"][0])

    scored = {**scored, "batch_size": 32}  # all of them: the order does not matter
    behind = first_loss({**first, "weight": 0}, {**scored, "loss_weight": 3})
    alone = {name: value for name, value in scored.items() if name != "weight"}
    plain = first_loss(hard_negative_weight=1.0, **alone)
    assert behind == pytest.approx(3 * plain, rel=1e-5)
    prompted = first_loss({**first, "weight": 0}, {**scored, "document_prompt": "the dog "})
    assert prompted != pytest.approx(plain, rel=1e-3)


def test_fixed_vectors_are_those_of_a_data_sets_own_prompt(several: TrainConfig) -> None:
    """Where the head alone is trained, a text is encoded once for each prompt."""
    first, *_ = several.data_sets
    losses = []
    for prompt in ("", "the dog "):
        data = ({**first, "query_prompt": prompt},)
        run = replace(several, data_sets=data, expects=(), head_only=True, rotate=True, max_steps=1)
        losses.append(train(replace(run, eval_every=0)).model.history["losses"][0])
    assert losses[0] != pytest.approx(losses[1], rel=1e-3)


def test_every_data_set_has_its_teacher_and_each_is_loaded_once(
    config: TrainConfig,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loaded: list[str] = []

    def load(own: TrainConfig, device: torch.device) -> Any:
        loaded.append(own.teacher or own.guide)
        return loaded[-1]

    monkeypatch.setattr(preparation, "load_fixed", load)
    train_files = {"train": list(config.train)}
    of_teacher = {**train_files, "objective": "distillation", "teacher": "b"}
    parts_of_run = ({**train_files, "guide": "a"}, train_files, of_teacher, of_teacher)
    found = read_data_sets(replace(config, train=(), data_sets=parts_of_run), torch.device("cpu"))
    assert [each.fixed for each in found] == ["a", "", "b", "b"]
    assert loaded == ["a", "", "b"]


def test_the_steps_are_judged_by_the_mean_of_what_is_held_out(
    several: TrainConfig, tmp_path: Path
) -> None:
    rows = [f"the {a} {b} {c}\t{b} {c} {a}" for a, b, c in itertools.permutations(WORDS[:8], 3)]
    (tmp_path / "more.tsv").write_text("\n".join(["anchor\tpositive", *rows]) + "\n")
    first, second, third = several.data_sets
    more = [f"{i % 5}\tthe {a} {b}\t{b} {a}" for i, (a, b) in enumerate(PAIRS)]
    (tmp_path / "scored.tsv").write_text("\n".join(["score\tsentence1\tsentence2", *more]) + "\n")
    data = ({**first, "train": [tmp_path / "more.tsv"]}, second, third)
    run = replace(several, data_sets=data, max_steps=2, learning_rate=1e-9, rotate=True)
    recipe = train(run).recipe
    assert "The vectors were first rotated towards the teacher's" in recipe["summary"]
    assert recipe["judged_by"] == (
        "top-1 accuracy on held-out examples and spearman on held-out examples, "
        "mean over the data sets"
    )
    assert recipe["held_out"] == 34 + 24


def test_a_mean_is_of_those_that_judge(monkeypatch: pytest.MonkeyPatch) -> None:
    scores = [{8: 0.25, 4: 1.0}, None, {8: 0.75, 4: 0.0}]
    judges = [None if each is None else (lambda _, s=each: Judgement(s)) for each in scores]
    left = iter([(judge, Split(pairs(2))) for judge in judges])
    monkeypatch.setattr(step_judging, "_judge_data_set", lambda *_: next(left))
    run = settings()
    judge, splits = step_judging.make_judge(run, [DataSet(run, pairs(2))] * 3)
    assert judge is not None and len(splits) == 3
    assert judge(None).scores == {8: 0.5, 4: 0.5}  # type: ignore[arg-type]


def test_a_loss_weight_scales_the_gradients(config: TrainConfig) -> None:  # noqa: F811
    """Of one data set alone it changes nothing but the loss: AdamW divides by the gradient."""
    losses: list[list[float]] = []
    for weight in (1.0, 3.0):
        data = {"train": config.train, "loss_weight": weight}
        run = replace(config, train=(), data_sets=(data,), max_steps=1, max_grad_norm=1e-9)
        losses.append(train(replace(run, out=config.out / str(weight))).model.history["losses"])
    assert losses[1] == pytest.approx([3 * loss for loss in losses[0]], rel=1e-6)


@pytest.mark.parametrize(
    "data, message",
    [
        ([{}], "data set 1: train names no file"),
        ([{"train": ["a"], "mlm_weight": 1}], "data set 1: mlm_weight is set for the whole run"),
        ([{"train": ["a"]}, {"train": ["b"], "colour": 1}], "data set 2: colour is unknown: a da"),
        ([{"train": ["a"], "weight": -1}], "data set 1: weight is -1: expected a number of 0 or"),
        ([{"train": ["a"], "loss_weight": 0}], "data set 1: loss_weight is 0: expected a numb"),
        ([{"train": ["a"], "weight": 0}], "every data set has the weight 0"),
        ([{"train": ["a"], "objective": "classification"}], "data set 1: labels are learnt alone"),
        ([{"train": ["a"], "query_prompt": 3}], "data set 1: query_prompt is 3: expected text"),
        (["a.tsv"], "data_sets holds 'a.tsv': expected objects"),
        ("a.tsv", "data_sets is 'a.tsv': expected a list"),
    ],
)  # fmt: skip
def test_wrong_data_sets_are_named(data: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TrainConfig.from_dict({"data_sets": data, "out": "m"})


@pytest.mark.parametrize(
    "more, message",
    [
        ({"train": ["a.tsv"]}, "train beside data_sets"),
        ({"objective": "similarity"}, "objective similarity beside data_sets"),
        ({"queue_size": 4}, "queue_size would mix the texts"),
    ],
)
def test_what_data_sets_exclude_is_named(more: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TrainConfig.from_dict({"data_sets": [{"train": ["a"]}], "out": "m", **more})


def test_files_of_a_resumed_run_may_have_moved(several: TrainConfig, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        train(several, interrupt_at(6))
    (tmp_path / "elsewhere").mkdir()
    moved = json.loads(several.to_json())["data_sets"]
    for data in moved:
        path = Path(data["train"][0])
        data["train"] = [str(path.rename(tmp_path / "elsewhere" / path.name))]
    changed = ({**moved[0], "weight": 3.0}, *moved[1:])
    with pytest.raises(ConfigError, match=r"was made with data_sets .*: resume with the same con"):
        train(replace(several, data_sets=changed), resume=True)
    last = Path(moved[-1]["train"][0])
    text = last.read_text()
    last.write_text(text + "another sentence\n")
    with pytest.raises(ConfigError, match="the training files changed since the checkpoint"):
        train(replace(several, data_sets=tuple(moved)), resume=True)
    last.write_text(text)
    train(replace(several, data_sets=tuple(moved)), resume=True)
