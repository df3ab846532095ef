"""A signal at any point of a run: the training is saved, and resumes as if unbroken."""

import itertools
import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from searchengine.trainer.encoder import Encoder
from searchengine.trainer.training import checkpoint, loop
from searchengine.trainer.training.loop import postponed_signals, train
from searchengine.trainer.training.run import Run
from searchengine.trainer.training.train_config import TrainConfig
from tests.trainer.test_train_loop import (  # noqa: F401  (fixtures)
    config,
    rising,
    scripted,
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


@pytest.mark.parametrize(
    ("place", "step", "saved"),
    [
        ("add_gradients", 0, 1),
        ("add_gradients", 6, 7),
        ("evaluate", 4, 5),
        ("evaluate", 12, 12),
        ("send_report", 8, 9),
        ("finish", 12, None),
    ],
)
def test_a_signal_at_any_place_loses_nothing(
    config: TrainConfig,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    place: str,
    step: int,
    saved: int | None,
) -> None:
    """It is looked at after an update; the result is written whole."""
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", 300)
    short = replace(config, dropout=0.1)
    whole = train(replace(short, out=tmp_path / "whole"), measure=rising())
    real = getattr(loop, place)

    def call(run: Run, *others: Any) -> Any:
        if run.state.step == step:
            terminate()
        return real(run, *others)

    monkeypatch.setattr(loop, place, call)
    with pytest.raises(Ended):
        train(short, measure=rising())
    monkeypatch.undo()
    assert checkpoint.saved_step(short.out) == saved
    later = scripted(itertools.count(100))
    resumed = train(short, resume=True, measure=later) if saved else Encoder.load(short.out)
    ours, theirs = weights(resumed), weights(whole)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert resumed.model.history["losses"] == whole.model.history["losses"]
    assert not checkpoint.file_of(short.out).parent.exists()


def test_a_second_signal_comes_at_once() -> None:
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
