"""Which runtime is chosen; what the native one keeps; what its callers share."""

import os
import shutil
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from faults import in_child
from safetensors.torch import load_file, save_file
from tiny_model import WORDS, write_bert

from searchengine.trainer.encoder import Encoder
from searchengine.trainer.errors import ModelError
from searchengine.trainer.model.tokens import Vectors
from searchengine.trainer.native import library
from searchengine.trainer.runtimes import runtime_config
from searchengine.trainer.runtimes.runtime_config import RuntimeConfig, choose

TEXTS = ["a whale sings", "", "x", "the dog sleeps in the house near the sea " * 9, "고래 🐋 ½"]
needs_kernel = pytest.mark.skipif(not library.levels(), reason="the kernel is not compiled")


# ------------------------------------------------------------------------------- the choice

KERNEL, ODD = "avx2", "its activation is relu, not GELU"
NATIVE = "native int8 a BERT network on a processor, by avx2"
COMPILER = "the native kernel is not compiled"


@pytest.mark.parametrize(
    ("options", "obstacle", "kernel", "gpu", "expected"),
    [
        ({}, "", KERNEL, False, NATIVE),
        ({"device": "cpu"}, "", KERNEL, True, NATIVE),
        ({"runtime": "native"}, "", KERNEL, True, NATIVE),
        ({}, "", KERNEL, True, "torch auto there is a GPU"),
        ({}, ODD, "", False, f"torch auto {ODD}"),
        ({}, "", "", False, f"torch auto {COMPILER}"),
        ({"runtime": "torch"}, "", KERNEL, False, "torch auto the runtime torch was asked for"),
        ({"precision": "fp32"}, "", KERNEL, False, "torch fp32 fp32 was asked for"),
        ({"device": "cuda:1"}, "", KERNEL, True, "torch auto the device cuda:1 was asked for"),
        ({"runtime": "native"}, ODD, KERNEL, False, ODD),
        ({"runtime": "native"}, "", "", False, COMPILER),
        ({"precision": "fp8"}, "", KERNEL, False, "precision is 'fp8': expected one of auto, fp32"),
        ({"precision": "int8"}, "", KERNEL, False, "precision is 'int8'"),
        ({"runtime": "steam"}, "", KERNEL, False, "runtime is 'steam': expected one of auto, nat"),
        ({"runtime": "native", "device": "cuda"}, "", KERNEL, True, "the native runtime computes"),
    ],
)
def test_the_runtime_of_a_model(
    options: dict[str, Any],
    obstacle: str,
    kernel: str,
    gpu: bool,
    expected: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("SEARCHENGINE_RUNTIME")
    monkeypatch.setattr(runtime_config, "has_gpu", lambda: gpu)
    try:
        choice = choose(RuntimeConfig(**options), obstacle, kernel)
        found = f"{choice.kind} {choice.precision} {choice.reason}"
    except ModelError as error:
        found = str(error).removeprefix("the native runtime cannot run this model: ")
    assert found.startswith(expected)
    if found.startswith("torch"):
        monkeypatch.setattr(runtime_config, "find_spec", lambda name: None)
        with pytest.raises(ModelError, match="this encoder needs torch and transformers, because "):
            choose(RuntimeConfig(**options), obstacle, kernel)


# ------------------------------------------------------------------------- rounded weights


@pytest.fixture
def folder(tmp_path: Path, own_cache: Path, without_gpu: None) -> Path:
    """A network that the kernel runs, with an empty cache and no runtime named."""
    return write_bert(tmp_path / "model")


@pytest.fixture
def rounds(caplog: pytest.LogCaptureFixture) -> Callable[[], int]:
    """How often weights have been rounded since the last call."""
    caplog.set_level("INFO")

    def count() -> int:
        rounded = sum("Rounding the encoder" in message for message in caplog.messages)
        caplog.clear()
        return rounded

    return count


@needs_kernel
def test_weights_are_rounded_once(
    folder: Path, rounds: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Encoder.load(folder)
    chosen = f"native int8 (a BERT network on a processor, by {library.levels()[0]})"
    assert first.runs_on == chosen and rounds() == 0  # known without starting it
    vectors = first.encode(TEXTS)
    assert (first.runs_on, first.runtime, first.precision) == (chosen, "native", "int8")
    assert rounds() == 1
    fingerprint = first.fingerprint
    again = Encoder.load(folder, runtime="native")
    np.testing.assert_array_equal(again.encode(TEXTS), vectors)
    assert again.fingerprint == fingerprint and rounds() == 0
    monkeypatch.chdir(folder.parent)
    for path in (folder.name, f"../{folder.parent.name}/{folder.name}"):
        np.testing.assert_array_equal(Encoder.load(path).encode(TEXTS), vectors)
    assert rounds() == 0
    assert Encoder.load(folder, layers=1).encode(TEXTS).shape == vectors.shape
    assert rounds() == 1  # a truncated network is another one


def other_weights(folder: Path) -> None:
    """Of the same size, written at the same time as the former."""
    path = folder / "model.safetensors"
    before = path.stat()
    tensors = {name: tensor + 1 / 64 for name, tensor in load_file(path).items()}
    save_file(tensors, path, {"format": "pt"})
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)


@needs_kernel
def test_a_model_that_is_replaced_while_it_is_open_stays_what_it_was(
    folder: Path, tmp_path: Path
) -> None:
    other = shutil.copytree(folder, tmp_path / "other")
    other_weights(other)
    vectors, fingerprint = Encoder.load(other).encode(TEXTS), Encoder.load(other).fingerprint
    former, by_torch = Encoder.load(folder), Encoder.load(folder, runtime="torch")
    os.replace(other / "model.safetensors", folder / "model.safetensors")
    assert np.abs(former.encode(TEXTS) - vectors).max() > 1e-3
    assert former.fingerprint != fingerprint
    with pytest.raises(ModelError, match="was changed after it was loaded: load it again"):
        by_torch.encode(TEXTS)
    after = Encoder.load(folder)  # what the former process kept is not of these files
    np.testing.assert_array_equal(after.encode(TEXTS), vectors)
    assert after.fingerprint == fingerprint


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "cut in its header": lambda whole: whole[:100],
    "one bit": lambda whole: whole[:-9] + bytes([whole[-9] ^ 1]) + whole[-8:],
    "another format": lambda whole: whole.replace(b"[3, ", b"[2, ", 1),
    "another name": lambda whole: whole.replace(b"0.inner.shares", b"0.inner.shapes", 1),
}


@needs_kernel
@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_file_is_written_again(
    name: str, folder: Path, own_cache: Path, rounds: Callable[[], int]
) -> None:
    vectors = Encoder.load(folder).encode(TEXTS)
    (path,) = own_cache.rglob("*.safetensors")
    whole = path.read_bytes()
    damaged = DAMAGE[name](whole)
    assert damaged != whole
    path.unlink()  # mapped files are replaced, never written to
    path.write_bytes(damaged)
    np.testing.assert_array_equal(Encoder.load(folder).encode(TEXTS), vectors)
    assert path.read_bytes() == whole and rounds() == 2


@needs_kernel
def test_it_works_where_nothing_can_be_kept(
    folder: Path, own_cache: Path, rounds: Callable[[], int]
) -> None:
    own_cache.parent.write_text("not a folder")
    found = [Encoder.load(folder).encode(TEXTS) for _ in range(2)]
    np.testing.assert_array_equal(*found)
    assert rounds() == 2 and not list(own_cache.parent.rglob("*.safetensors"))
    exact = Encoder.load(folder, runtime="torch", precision="fp32")
    assert Encoder.load(folder).fingerprint == exact.fingerprint
    assert np.einsum("nd,nd->n", found[0], exact.encode(TEXTS)).min() > 0.999


@needs_kernel
def test_a_network_that_8_bits_change_is_run_by_torch(
    folder: Path, rounds: Callable[[], int]
) -> None:
    write_bert(folder, initializer_range=2.0)
    encoder = Encoder.load(folder, device="cpu")
    assert encoder.runs_on.startswith("native")
    vectors = encoder.encode(TEXTS)
    assert encoder.runs_on.startswith(f"torch {encoder.precision} (8 bits are not accurate")
    expected = Encoder.load(folder, runtime="torch", device="cpu").encode(TEXTS)
    np.testing.assert_array_equal(vectors, expected)
    assert rounds() == 1
    # That is remembered, with the fingerprint.
    again = Encoder.load(folder, device="cpu")
    assert again.runs_on.startswith("torch auto (8 bits are not accurate")
    assert again.fingerprint == encoder.fingerprint
    with pytest.raises(ModelError, match=r"cannot run .* 8 bits are not accurate"):
        Encoder.load(folder, runtime="native")
    assert rounds() == 0


# ------------------------------------------------------------------------------- callers


@needs_kernel
def test_threads_share_it_and_start_it_once(folder: Path, rounds: Callable[[], int]) -> None:
    encoder = Encoder.load(folder)
    texts = [" ".join(WORDS[i : i + 1 + i % 5]) for i in range(24)]
    barrier = threading.Barrier(8)

    def encode(text: str) -> Vectors:
        barrier.wait(60)
        return encoder.encode([text])

    with ThreadPoolExecutor(8) as threads:
        rows = np.concatenate([*threads.map(encode, texts)])
    np.testing.assert_array_equal(rows, encoder.encode(texts))
    assert rounds() == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
@pytest.mark.parametrize("runtime", [pytest.param("native", marks=needs_kernel), "torch"])
def test_a_forked_child_refuses_its_parents_model(folder: Path, runtime: str) -> None:
    encoder = Encoder.load(folder, runtime=runtime)
    encoder.encode(TEXTS)

    def child(say: Callable[[Any], None]) -> None:
        with pytest.raises(ModelError, match="start workers by multiprocessing's spawn"):
            encoder.encode(TEXTS)
        say("refused")

    ended = in_child(child)
    assert (ended.problem, ended.said) == (None, ["refused"])
