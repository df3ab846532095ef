"""Training a tiny model: it learns, it resumes to the bit, it refuses what cannot work."""

import itertools
import json
import os
import shutil
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import disk_full_at, full_disk
from safetensors import safe_open
from safetensors.torch import save_file

from searchengine.trainer.encoder import Encoder
from searchengine.trainer.errors import ConfigError, ModelError, TrainingError
from searchengine.trainer.training import checkpoint, loop, processes
from searchengine.trainer.training.judging import Measure
from searchengine.trainer.training.loop import Report, postponed_signals, train
from searchengine.trainer.training.train_config import TrainConfig
from tests.tiny_model import WORDS

NOUNS, VERBS = WORDS[2:8], WORDS[8:13]
LAYER = "transformer.encoder.layer.0.output.dense.weight"


def write_triplets(path: Path, ends: Sequence[str]) -> Path:
    triplets = [
        (f"the {n} {v} {w}", f"{w} {v} the {n}", f"the {n} {v} not {w}")
        for n in NOUNS
        for v in VERBS
        for w in ends
    ]
    lines = ["anchor\tpositive\tnegative", *map("\t".join, triplets)]
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture
def on_processor(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Trains on the processor from its call on, also beside a GPU."""
    cpu = torch.device("cpu")
    return lambda: monkeypatch.setattr(processes, "pick_device", lambda _: cpu)


def with_held_out(config: TrainConfig) -> TrainConfig:
    """210 examples; 21 of them are held out."""
    path = config.out.parent / "more.tsv"
    return replace(config, train=(write_triplets(path, [*WORDS[15:20], "fast", "slowly"]),))


@pytest.fixture
def config(base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TrainConfig:
    """Word order does not matter: "dog sleeps near the sea" means "near the sea sleeps dog".

    60 examples: too few to hold some out. A checkpoint is written after every update.
    """
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", -1)
    return TrainConfig(
        train=(write_triplets(tmp_path / "pairs.tsv", ("fast", "slowly")),),
        out=tmp_path / "out",
        base=str(base),
        prefixes=(32, 8),
        rotate=False,
        batch_size=8,
        max_steps=12,
        learning_rate=2e-3,
        eval_every=4,
        precision="fp32",
    )


def weights(encoder: Encoder) -> dict[str, torch.Tensor]:
    return encoder.module.state_dict()


def interrupt_at(step: int) -> Callable[[Report], None]:
    def report(line: Report) -> None:
        if line.step == step:
            raise KeyboardInterrupt

    return report


def scripted(scores: Iterable[float | dict[int, float]], n: int = 20) -> Measure:
    """A measure of n items that gives these in turn: of the base, each step, the result."""
    left = iter(scores)

    def values(_: Encoder, dims: Sequence[int]) -> dict[int, Any]:
        score = next(left)
        by_dim = score if isinstance(score, dict) else dict.fromkeys(dims, score)
        return {dim: np.full(n, float(by_dim[dim])) for dim in dims}

    return Measure("a script", values)


def rising() -> Measure:
    """Every judgement is better than all before, so that `out` holds the last weights."""
    return scripted(itertools.count())


def test_training_learns_saves_and_reports(config: TrainConfig) -> None:
    lines: list[Report] = []
    config = with_held_out(config)
    encoder = train(replace(config, max_steps=120, eval_every=30), lines.append)
    assert [line.step for line in lines] == list(range(121))
    losses = [line.loss for line in lines if line.loss is not None]
    assert np.mean(losses[-5:]) < 0.8 * np.mean(losses[:5])
    judged = {line.step: line.scores for line in lines if line.scores is not None}
    assert list(judged) == [0, 30, 60, 90, 120] and set(judged[0]) == {32, 8}
    means = {step: sum(scores.values()) / 2 for step, scores in judged.items()}
    best = lines[-1].best_step
    assert means[best] == max(means.values()) > means[0]
    (figures,) = encoder.recipe["measures"]
    assert figures["measure"] == "nDCG@10 on held-out examples" and figures["n"] == 21
    assert figures["base"] == {str(dim): score for dim, score in lines[0].base.items()}
    # In the precision that its users get, by processor; a rank of one of 42 moves the mean by 0.01.
    assert np.mean([*figures["result"].values()]) == pytest.approx(means[best], abs=0.05)
    assert 0 < figures["low"] < means[best] - means[0] < figures["high"] < figures["low"] + 0.7
    assert encoder.recipe["verdict"].startswith("Better: nDCG@10 on held-out examples 0.")
    assert encoder.recipe["held_out"] == 21
    assert lines[0].loss is None and lines[0].examples == 189 and lines[0].steps == 120
    again = Encoder.load(config.out, precision="fp32")
    assert again.fingerprint == encoder.fingerprint and again.matryoshka_dims == (32, 8)
    assert again.recipe["best_step"] == again.recipe["kept"] == best
    assert TrainConfig.from_dict(again.recipe["config"]).train == config.train
    assert not checkpoint.file_of(config.out).parent.exists()


@pytest.mark.parametrize("rotate", [False, True])
def test_resumed_run_equals_unbroken_one_to_the_bit(
    config: TrainConfig, tmp_path: Path, rotate: bool
) -> None:
    config = replace(config, batch_size=15, epochs=3, max_steps=None, rotate=rotate)
    whole: list[Report] = []
    unbroken = train(replace(config, out=tmp_path / "whole"), whole.append, measure=rising())
    assert whole[-1].step == 12  # 60 triplets, 4 batches an epoch

    parts: dict[int, Report] = {}

    def stop_at(step: int) -> Callable[[Report], None]:
        def report(line: Report) -> None:
            parts[line.step] = line
            if line.step == step:
                raise KeyboardInterrupt

        return report

    with pytest.raises(KeyboardInterrupt):
        train(config, stop_at(7), measure=rising())
    assert checkpoint.saved_step(config.out) == 7
    assert [*config.out.glob("*/*")] == [checkpoint.file_of(config.out)]
    torch.manual_seed(99)  # whatever happened in between
    with pytest.raises(KeyboardInterrupt):
        train(config, stop_at(10), resume=True, measure=scripted(itertools.count(100)))
    resumed = train(config, stop_at(-1), resume=True, measure=scripted(itertools.count(200)))
    ours, theirs = weights(resumed), weights(unbroken)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert [parts[i].loss for i in range(13)] == [line.loss for line in whole]
    assert [parts[i].learning_rate for i in range(13)] == [line.learning_rate for line in whole]
    assert not torch.equal(*(weights(e)[LAYER] for e in (resumed, Encoder.load(config.base))))


def test_resume_refuses_another_run(config: TrainConfig) -> None:
    with pytest.raises(ConfigError, match=r"no checkpoint in .*: start this run without resume"):
        train(config, resume=True)
    with pytest.raises(KeyboardInterrupt):
        train(config, interrupt_at(6))
    with pytest.raises(ConfigError, match=r"unfinished run \(update 6\): resume it"):
        train(config)
    with pytest.raises(ConfigError, match=r"seed changed since .*, from 0 to 1: restore"):
        train(replace(config, seed=1), resume=True)
    with pytest.raises(ConfigError, match=r"batch_size changed since .*, from 8 to 9: restore"):
        train(replace(config, batch_size=9), resume=True)
    with pytest.raises(ConfigError, match="at update 6, and this run has only 4; "):
        train(replace(config, max_steps=4), resume=True)
    weights = Path(config.base) / "model.safetensors"
    original = weights.read_bytes()
    weights.write_bytes(original[:-4] + bytes(4))
    with pytest.raises(ConfigError, match="the files of the base model changed since the checkp"):
        train(config, resume=True)
    weights.write_bytes(original)
    with config.train[0].open("a") as file:
        file.write("one\tmore\ttriplet\n")
    with pytest.raises(ConfigError, match="the training files changed since the checkpoint"):
        train(config, resume=True)
    file = checkpoint.file_of(config.out)
    with safe_open(file, "pt") as stored:
        written = json.loads(stored.metadata()["run"])
    older = {k: v for k, v in written["origin"].items() if k != "seed"}
    for changed in ({"format": 0}, {"origin": older}):
        save_file({}, file, {"run": json.dumps(written | changed)})
        with pytest.raises(ConfigError, match="was written by another version of this package"):
            train(config, resume=True)
    file.write_bytes(b"torn")
    with pytest.raises(TrainingError, match=r"state\.safetensors cannot be read: .*; remove it"):
        train(config, resume=True)


def test_resume_after_a_move_with_more_steps(config: TrainConfig, tmp_path: Path) -> None:
    home = tmp_path / "home"
    shutil.copytree(config.base, home / "base")
    shutil.copy(config.train[0], home)
    train_file, base = home / "pairs.tsv", str(home / "base")
    here = replace(config, train=(train_file,), base=base, out=home / "out")
    short, longer = list[Report](), list[Report]()
    with pytest.raises(KeyboardInterrupt):
        train(here, lambda line: (short.append(line), interrupt_at(6)(line)))  # type: ignore
    away = home.rename(tmp_path / "away")
    there = replace(here, train=(away / "pairs.tsv",), base=str(away / "base"), out=away / "out")
    train(replace(there, max_steps=20), longer.append, resume=True)
    assert [line.step for line in longer] == list(range(7, 21))
    assert longer[0].learning_rate > short[6].learning_rate  # of the longer schedule
    assert len(Encoder.load(there.out).model.history["losses"]) == 20


def test_a_checkpoint_without_room_leaves_the_older_one(
    config: TrainConfig, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Neither while it is written, nor when it is synced."""
    kept = "the checkpoint of update 7 .*{}.*update 6 was kept"
    with ExitStack() as stack, pytest.raises(TrainingError, match=kept.format("File too large")):
        train(config, lambda line: line.step == 6 and stack.enter_context(full_disk(1000)))
    shutil.rmtree(config.out)
    with pytest.raises(TrainingError, match=kept.format("No space left")):
        train(config, lambda line: line.step == 6 and disk_full_at(monkeypatch, 1))
    left = [entry.name for entry in (config.out / "checkpoint").iterdir()]
    assert left == ["state.safetensors"]
    monkeypatch.undo()
    whole = train(replace(config, out=tmp_path / "whole"))
    assert train(config, resume=True).fingerprint == whole.fingerprint


def test_a_result_without_room_is_written_by_resuming(config: TrainConfig) -> None:
    def filling() -> Iterator[float]:
        yield from range(5)  # of the base, and of the steps 0, 4, 8 and 12
        stack.enter_context(full_disk())
        yield 5

    with ExitStack() as stack, pytest.raises(ModelError, match="File too large"):
        train(config, measure=scripted(filling()))
    assert checkpoint.saved_step(config.out) == 12
    lines: list[Report] = []
    result = train(config, lines.append, resume=True, measure=rising())
    assert result.recipe["kept"] == 12 and not lines


def test_a_loss_that_is_no_number_stops_and_keeps_the_checkpoint(config: TrainConfig) -> None:
    with pytest.raises(TrainingError, match="the loss of update 2 is nan: lower learning_rate"):
        train(replace(config, learning_rate=1e38))
    assert checkpoint.saved_step(config.out) == 1


def test_bf16_keeps_fp32_master_weights(config: TrainConfig) -> None:
    # 1e-5 on weights near 0.3 is far below a bfloat16 step (0.002): it would vanish.
    small = replace(config, precision="bf16", learning_rate=1e-5, max_steps=2)
    before = weights(Encoder.load(config.base))[LAYER]
    after = weights(train(small))[LAYER]
    moved = (after - before).abs()
    assert after.dtype == torch.float32
    assert (moved > 0).float().mean() > 0.9 and moved.max() < 1e-4


def test_the_rotation_leaves_the_full_width_alone(config: TrainConfig) -> None:
    lines: list[Report] = []
    tiny_rate = replace(config, rotate=True, max_steps=1, learning_rate=1e-12)
    train(tiny_rate, lines.append)
    assert [line.step for line in lines] == [0, 1]
    base = Encoder.load(config.base, precision="fp32")
    texts = [f"the {n} {v}" for n in NOUNS for v in VERBS]
    before, after = base.encode(texts), Encoder.load(config.out, precision="fp32").encode(texts)
    np.testing.assert_allclose(after @ after.T, before @ before.T, atol=1e-5)
    # The strongest axes come first: energy never rises, and 8 of 32 numbers hold most of it.
    energy = np.square(after).sum(axis=0) / len(texts)
    assert energy[:8].sum() > 0.9 > 0.6 > np.square(before)[:, :8].sum() / len(texts)


def test_what_fails_later_is_refused_at_the_start(config: TrainConfig, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "letter.txt").write_text("dear")
    with pytest.raises(ModelError, match="exists and is not a model"):
        train(replace(config, out=tmp_path / "full"))
    with pytest.raises(ConfigError, match="prefixes begins with 16: expected 32"):
        train(replace(config, prefixes=(16, 8)))


def test_two_runs_do_not_write_to_one_folder(config: TrainConfig) -> None:
    """Each would remove the other's checkpoint; a run that ended, or was killed, is in no way."""
    config.out.mkdir()
    link, lock = config.out.with_name("link"), config.out.with_name(".out.lock")
    link.symlink_to(config.out, target_is_directory=True)
    refused: list[Path] = []

    def report(line: Report) -> None:
        for out in (config.out, link) if line.step == 1 else ():
            with pytest.raises(ConfigError, match="another run is training into"):
                train(replace(config, out=out))
            refused.append(out)

    before = {*config.out.parent.iterdir()}
    train(config, report)
    assert refused == [config.out, link] and {*config.out.parent.iterdir()} == before
    lock.touch()  # left by a killed run
    train(config)
    lock.mkdir()
    with pytest.raises(ConfigError, match=r"\.out\.lock cannot be locked \(.*\): choose another"):
        train(config)


# --- signals: the training is saved, and resumes as if unbroken -----------------------------------


class Ended(BaseException):
    """What the handler of the program raises, as the command line's does."""


@pytest.fixture
def handler() -> Iterator[None]:
    def end(number: int, _: Any) -> None:
        raise Ended

    before = signal.signal(signal.SIGTERM, end)
    yield
    assert signal.getsignal(signal.SIGTERM) is end  # a run puts it back
    signal.signal(signal.SIGTERM, before)


def terminate() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.parametrize(
    ("reported", "judged", "saved"),
    [
        (1, None, 2),
        (8, None, 9),
        (None, 2, 5),  # judged before: the base and step 0
        (None, 4, 12),
        (None, 5, None),  # the result
    ],
)
def test_a_signal_at_any_place_loses_nothing(
    config: TrainConfig,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    handler: None,
    reported: int | None,
    judged: int | None,
    saved: int | None,
) -> None:
    """It is looked at after an update; the result is written whole."""
    monkeypatch.undo()  # no other checkpoint is written
    short = replace(config, dropout=0.1)
    whole = train(replace(short, out=tmp_path / "whole"), measure=rising())

    def scores() -> Iterator[float]:
        for number in itertools.count():
            if number == judged:
                terminate()
            yield number

    with pytest.raises(Ended):
        train(short, lambda line: line.step == reported and terminate(), measure=scripted(scores()))
    assert checkpoint.saved_step(short.out) == saved
    later = scripted(itertools.count(100))
    resumed = train(short, resume=True, measure=later) if saved else Encoder.load(short.out)
    ours, theirs = weights(resumed), weights(whole)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert resumed.model.history["losses"] == whole.model.history["losses"]
    assert not checkpoint.file_of(short.out).parent.exists()


def test_a_second_signal_comes_at_once(handler: None) -> None:
    with pytest.raises(Ended), postponed_signals():
        terminate()
        terminate()
        pytest.fail("the second one raises")


def test_an_ignored_signal_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with postponed_signals():
            os.kill(os.getpid(), signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)
