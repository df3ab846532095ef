"""Two processes over gloo end with the weights of one that has the joint batch."""

import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from searchengine.trainer.encoder import Encoder
from searchengine.trainer.errors import ConfigError
from searchengine.trainer.training import checkpoint, processes
from searchengine.trainer.training.loop import train
from searchengine.trainer.training.train_config import TrainConfig
from tests.tiny_model import WORDS
from tests.trainer.test_train_loop import config, write_triplets  # noqa: F401  (fixtures)

PHRASES = [*itertools.product(("dog", "cat", "whale"), ("sleeps", "eats", "sings", "plays"))]
CASES: dict[str, dict[str, Any]] = {
    "pairs": {},
    "cached": {"gradient_cache": True, "accumulation": 2},
    "queue": {"queue_size": 20, "batch_size": 7},
    "layers": {"layers_per_step": 1, "hard_negative_weight": 2.0},
    # 60 triplets in batches of 59: one is left over, for one process of the two.
    "left over": {"batch_size": 59, "layers_per_step": 1, "epochs": 2, "max_steps": None},
    "turned": {"rotate": True},
    "scores": {"objective": "similarity", "batch_size": 7, "max_steps": 2},
}


# Three that differ most; the others share their code.
OFTEN = {"cached", "queue", "left over"}


no_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")


@pytest.mark.parametrize(
    ("cases", "launched", "devices"),
    [
        pytest.param(OFTEN, False, "", id="often"),
        pytest.param(CASES.keys() - OFTEN, True, "", id="others", marks=pytest.mark.long),
        pytest.param({"pairs", "cached", "left over"}, True, "0", id="one GPU", marks=no_gpu),
    ],
)
def test_two_processes_equal_one(
    config: TrainConfig,  # noqa: F811
    cases: set[str],
    launched: bool,
    devices: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    configs = {}
    for case, settings in CASES.items():
        if case not in cases:
            continue
        # Of few texts the last axes are rounding, which AdamW makes steps of.
        start = config
        if case == "turned":
            start = replace(config, train=(write_triplets(tmp_path / "more.tsv", WORDS[14:20]),))
        # Without dropout: its masks are drawn for rows, which lie elsewhere.
        settings = {"dropout": 0.0, "max_steps": 4, "learning_rate": 1e-3, **settings}
        if case == "scores":
            settings["train"] = (write_scored(tmp_path / "scored.tsv"),)
        configs[case] = replace(start, **settings, out=tmp_path / case / "two")  # type: ignore[arg-type]
    if not devices:
        monkeypatch.setattr(processes, "pick_device", lambda _: torch.device("cpu"))
    run_in_two_processes([*configs.values()], tmp_path, launched=launched, devices=devices)
    for case, shared in configs.items():
        one = train(replace(shared, out=tmp_path / case / "one"))
        check_equal(case, Encoder.load(shared.out), one, Encoder.load(config.base))


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


def test_a_signal_in_one_process_stops_both_after_an_update(
    config: TrainConfig,  # noqa: F811
    tmp_path: Path,
) -> None:
    """The first process saves, though the signal is the second's."""
    long = replace(config, max_steps=12, eval_every=0)
    run_in_two_processes([long], tmp_path, launched=False, first=ENDING, ends=-signal.SIGTERM)
    assert checkpoint.saved_step(long.out) == 4
    assert len(train(long, resume=True).model.history["losses"]) == 12


def write_scored(path: Path) -> Path:
    rows = [f"{i % 5}\tthe {n} {v}\tnear {v}" for i, (n, v) in enumerate(PHRASES)]
    path.write_text("\n".join(["score\tsentence1\tsentence2", *rows]) + "\n")
    return path


def check_equal(case: str, two: Encoder, one: Encoder, base: Encoder) -> None:
    assert two.recipe["best_step"] == one.recipe["best_step"] > 0, case
    losses = [e.model.history["losses"] for e in (two, one)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5), case
    base_weights = dict(base.module.state_dict())
    for name, expected in one.module.state_dict().items():
        found = two.module.state_dict()[name]
        if name.endswith("key.bias"):  # moves no score: AdamW makes steps of its rounding
            continue
        torch.testing.assert_close(
            found.cpu(), expected.cpu(), atol=3e-5, rtol=1e-4, msg=lambda text: f"{case}: {text}"
        )
        if (
            name in base_weights
            and "weight" in name
            and "LayerNorm" not in name
            and "embeddings" not in name
        ):
            assert (expected.cpu() - base_weights[name].cpu()).abs().max() > 1e-4, case


RUN = """
import json, os, socket, sys, torch
torch.set_num_threads(1)
from pathlib import Path
from transformers import BertModel
from searchengine.trainer.encoder import Encoder
from searchengine.trainer.errors import ConfigError
from searchengine.trainer.model.model_folder import read
from searchengine.trainer.training.processes import LONGEST_WAIT
from searchengine.trainer.training.train_config import TrainConfig
from searchengine.trainer.training.loop import train

def run():
    for path in sys.argv[1:]:
        train(TrainConfig.from_dict(json.loads(Path(path).read_text())))
    assert torch.distributed.get_world_size() == 2
    group = torch.distributed.group.WORLD._get_backend(torch.device("cpu"))
    assert group.options._timeout == LONGEST_WAIT, group.options._timeout
"""
# As torch.distributed.run starts them, but that all is imported once.
FORK = """
with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
os.environ |= {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
other = os.fork()
os.environ |= dict.fromkeys(("RANK", "LOCAL_RANK"), "0" if other else "1")
"""
JOIN = """
if other:
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(other, 0)[1]))
"""


def run_in_two_processes(
    configs: Sequence[TrainConfig],
    folder: Path,
    *,
    launched: bool,
    devices: str = "",
    first: str = "",
    ends: int = 0,
) -> None:
    """Train them one after the other, in two processes that are started once.

    launched: by torch.distributed.run, as users start them. devices: numbers of the GPUs. first:
    Python to run before. ends: the exit code.
    """
    paths = [folder / f"{number}.json" for number in range(len(configs))]
    for path, case in zip(paths, configs, strict=True):
        path.write_text(json.dumps(case.to_dict()))
    script = f"{RUN}{first}run()\n" if launched else f"{RUN}{first}{FORK}run()\n{JOIN}"
    (folder / "run.py").write_text(script)
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run(
        [sys.executable, *(launch if launched else []), str(folder / "run.py"), *map(str, paths)],
        env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": devices},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == ends, done.stderr
