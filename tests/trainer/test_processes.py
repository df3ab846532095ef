"""Two processes over gloo end with the weights of one that has the joint batch."""

import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from searchengine.trainer.encoder import Encoder
from searchengine.trainer.errors import ConfigError
from searchengine.trainer.training import checkpoint
from searchengine.trainer.training.loop import train
from searchengine.trainer.training.train_config import TrainConfig
from tests.tiny_model import WORDS
from tests.trainer.test_train_loop import (  # noqa: F401  (fixtures)
    config,
    on_processor,
    write_triplets,
)

# Without dropout: its masks are drawn for rows, which lie elsewhere.
PLAIN = {"dropout": 0.0, "max_steps": 4, "learning_rate": 1e-3}
CASES: dict[str, dict[str, Any]] = {
    "cached": {"gradient_cache": True},
    "queue": {"queue_size": 20, "batch_size": 7},
    # 60 triplets in batches of 59: one is left over, for one process of the two.
    "left over": {"batch_size": 59, "layers_per_step": 1, "epochs": 2, "max_steps": None},
    "rotated": {"rotate": True},
    "scores": {"objective": "similarity", "batch_size": 7, "max_steps": 2},
}
OFTEN = {"cached", "queue", "left over"}  # the others share their code
no_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")


@pytest.mark.parametrize(
    ("cases", "devices"),
    [
        pytest.param(OFTEN, "", id="often", marks=pytest.mark.long),
        pytest.param(CASES.keys() - OFTEN, "", id="others", marks=pytest.mark.long),
        pytest.param({"cached", "left over"}, "0", id="one GPU", marks=no_gpu),
    ],
)
def test_two_processes_equal_one(
    config: TrainConfig,  # noqa: F811
    cases: set[str],
    devices: str,
    tmp_path: Path,
    on_processor: Callable[[], None],  # noqa: F811
) -> None:
    scored = [*itertools.product(("dog", "cat", "whale"), ("sleeps", "eats", "sings", "plays"))]
    rows = [f"{i % 5}\tthe {n} {v}\tnear {v}" for i, (n, v) in enumerate(scored)]
    (tmp_path / "scored.tsv").write_text("\n".join(["score\tsentence1\tsentence2", *rows]) + "\n")
    # Of few texts the last axes are rounding, which AdamW makes steps of.
    more = write_triplets(tmp_path / "more.tsv", WORDS[14:20])
    files = {"scores": (tmp_path / "scored.tsv",), "rotated": (more,)}
    configs = {}
    for case in cases:
        settings = {**PLAIN, "train": files.get(case, config.train), **CASES[case]}
        configs[case] = replace(config, **settings, out=tmp_path / case / "two")
    if not devices:
        on_processor()
    run_in_two_processes([*configs.values()], tmp_path, devices=devices)
    for case, shared in configs.items():
        one = train(replace(shared, out=tmp_path / case / "one"))
        two, base = Encoder.load(shared.out), Encoder.load(config.base)
        assert two.recipe["best_step"] == one.recipe["best_step"] > 0, case
        losses = [e.model.history["losses"] for e in (two, one)]
        assert losses[0] == pytest.approx(losses[1], rel=1e-5), case
        weights, before = two.module.state_dict(), base.module.state_dict()
        for name, expected in one.module.state_dict().items():
            if name.endswith("key.bias"):  # moves no score: AdamW makes steps of its rounding
                continue
            close = {"atol": 3e-5, "rtol": 1e-4, "msg": f"{case}: {name}"}
            torch.testing.assert_close(weights[name].cpu(), expected.cpu(), **close)
            if name in before and name.endswith(("query.weight", "dense.weight")):
                assert (expected.cpu() - before[name].cpu()).abs().max() > 1e-4, case


def test_processes_that_do_not_connect_train_nothing(
    config: TrainConfig,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="2 processes cannot connect: start them with torchrun"):
        train(config)
    assert not config.out.exists()


ENDING = """
import signal
from searchengine.trainer.training import loop

real = loop.add_gradients
def add_gradients(run, *others):
    if run.processes.rank == 1 and run.state.step == 3:
        os.kill(os.getpid(), signal.SIGTERM)
    return real(run, *others)
loop.add_gradients = add_gradients
"""


@pytest.mark.long
def test_a_signal_in_one_process_stops_both_after_an_update(
    config: TrainConfig,  # noqa: F811
    tmp_path: Path,
) -> None:
    """The first process saves, though the signal is the second's."""
    long = replace(config, max_steps=12, eval_every=0)
    run_in_two_processes([long], tmp_path, first=ENDING, ends=-signal.SIGTERM)
    assert checkpoint.saved_step(long.out) == 4
    assert len(train(long, resume=True).model.history["losses"]) == 12


# As torch.distributed.run starts them, but that all is imported once.
RUN = """
import json, os, socket, sys, torch
torch.set_num_threads(1)
from pathlib import Path
from searchengine.trainer.training.train_config import TrainConfig
from searchengine.trainer.training.loop import train
{first}
with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
os.environ |= {{"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}}
os.environ |= {{"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}}
other = os.fork()
os.environ |= dict.fromkeys(("RANK", "LOCAL_RANK"), "0" if other else "1")
for path in sys.argv[1:]:
    train(TrainConfig.from_dict(json.loads(Path(path).read_text())))
assert torch.distributed.get_world_size() == 2
if other:
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(other, 0)[1]))
"""


def run_in_two_processes(
    configs: Sequence[TrainConfig],
    folder: Path,
    *,
    devices: str = "",
    first: str = "",
    ends: int = 0,
) -> None:
    """Train them one after the other, in two processes that are started once.

    devices: numbers of the GPUs. first: Python to run before. ends: the exit code.
    """
    paths = [folder / f"{number}.json" for number in range(len(configs))]
    for path, case in zip(paths, configs, strict=True):
        path.write_text(json.dumps(case.to_dict()))
    done = subprocess.run(
        [sys.executable, "-c", RUN.format(first=first), *map(str, paths)],
        env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": devices},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == ends, done.stderr
