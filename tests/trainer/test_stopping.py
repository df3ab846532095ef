"""A signal at any point of a run: the training is saved, and resumes as if unbroken."""

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from searchengine.trainer.encoder import Encoder
from searchengine.trainer.errors import TrainingError
from searchengine.trainer.training import checkpoint, loop
from searchengine.trainer.training.judging import Measure
from searchengine.trainer.training.loop import Report, train
from searchengine.trainer.training.result import Run
from searchengine.trainer.training.stopping import Signals, Stopped
from searchengine.trainer.training.train_config import TrainConfig
from tests.trainer.test_train_loop import (  # noqa: F401  (fixtures)
    NOUNS,
    VERBS,
    base,
    config,
    weights,
)


class Ended(BaseException):
    """What the handler of the program raises, as the command line's does."""


@pytest.fixture(autouse=True)
def handler() -> Iterator[None]:
    def end(number: int, _: Any) -> None:
        raise Ended

    before = signal.signal(signal.SIGTERM, end)
    yield
    assert signal.getsignal(signal.SIGTERM) is end  # a run puts it back
    signal.signal(signal.SIGTERM, before)


def terminate() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def distance_from(base: str) -> Measure:  # noqa: F811
    """A measure that training raises: how far it moved the vectors."""
    texts = [f"the {noun} {verb}" for noun in NOUNS for verb in VERBS]
    before = Encoder.load(base, precision="fp32").encode(texts)

    def values(encoder: Encoder, dims: Sequence[int]) -> dict[int, Any]:
        moved = np.linalg.norm(encoder.encode(texts) - before, axis=1)
        return {dim: np.round(moved.astype(np.float64), 2) for dim in dims}

    return Measure("distance", values)


def ends_in(
    place: str,
    step: int,
    monkeypatch: pytest.MonkeyPatch,
    settings: TrainConfig,
    measure: Measure,
) -> None:
    """Train, with a signal at `step` updates: in an update, an evaluation, or between them."""

    def ending(name: str, ends: Callable[[Run], bool]) -> None:
        real = getattr(loop, name)

        def call(run: Run, *others: Any) -> Any:
            if ends(run):
                terminate()
            return real(run, *others)

        monkeypatch.setattr(loop, name, call)

    if place == "update":
        ending("add_gradients", lambda run: run.step == step - 1)
    if place == "evaluation":
        ending("evaluate", lambda run: run.step == step)
    with pytest.raises(Ended):
        train(
            settings,
            lambda line: terminate() if (place, line.step) == ("between", step) else None,
            measure=measure,
        )
    monkeypatch.undo()


@pytest.mark.parametrize(
    ("place", "step"),
    [
        *(("update", step) for step in (1, 4, 7, 12)),
        *(("evaluation", step) for step in (4, 12)),
        *(("between", step) for step in (3, 8)),
    ],
)
def test_a_signal_at_any_place_loses_nothing(
    config: TrainConfig,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    place: str,
    step: int,
) -> None:
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", 300)
    short = replace(config, dropout=0.1)
    measure = distance_from(config.base)
    whole = train(replace(short, out=tmp_path / "whole"), measure=measure)
    ends_in(place, step, monkeypatch, short, measure)
    found = checkpoint.latest(short.out)
    assert found is not None and found.name == f"step-{step:07d}"
    resumed = train(short, resume=True, measure=measure)
    ours, theirs = weights(resumed), weights(whole)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert resumed.model.history == whole.model.history
    assert not checkpoint.folder_of(short.out).exists()


def test_a_second_signal_ends_an_update_at_once() -> None:
    with pytest.raises(Ended), Signals() as signals, signals.whole():
        terminate()
        terminate()
        pytest.fail("the second one raises")


def test_an_ignored_signal_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Signals():
            os.kill(os.getpid(), signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_signal_outside_an_update_comes_at_once() -> None:
    reached = []
    with pytest.raises(Ended), Signals():
        try:
            terminate()
            pytest.fail("it raises here")
        except Stopped:
            reached.append("saved")
            raise
    assert reached == ["saved"]


def test_the_last_two_checkpoints_are_kept(
    config: TrainConfig,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def stop(line: Report) -> None:
        if line.step == 10:
            terminate()

    with pytest.raises(Ended):
        train(config, stop)
    left = sorted(path.name for path in checkpoint.folder_of(config.out).iterdir())
    assert left == ["step-0000009", "step-0000010"]
    newest = checkpoint.latest(config.out)
    assert newest is not None
    (newest / "weights.safetensors").write_bytes(b"torn")
    with pytest.raises(TrainingError, match="remove it to resume from the one before it"):
        train(config, resume=True)
