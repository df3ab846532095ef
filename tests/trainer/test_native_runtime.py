"""The native kernel: every level gives the bits of the scalar one, and vectors near float32's."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from tiny_model import write_json, write_plain

from searchengine.errors import SearchEngineError
from searchengine.indexer.native import compiler
from searchengine.trainer.encoder import Encoder
from searchengine.trainer.errors import ModelError
from searchengine.trainer.model.numpy_models import Described, find_described
from searchengine.trainer.model.source import Source
from searchengine.trainer.model.tokens import Padded
from searchengine.trainer.native import library, weights
from searchengine.trainer.runtimes import handle, native_runtime, torch_runtime
from searchengine.trainer.runtimes.graph import Accuracy
from searchengine.trainer.runtimes.numpy_runtime import Layer, Linear, Norm, NumpyRuntime
from searchengine.trainer.runtimes.runtime_config import RuntimeConfig

LENGTHS = (1, 2, 3, 5, 16, 47, 48, 63, 64, 65, 130)
WIDTH, HEADS, INNER, TOKENS = 96, 2, 208, 50
COMPILER = "aarch64-linux-gnu-g++"
EMULATOR = shutil.which("qemu-aarch64") or shutil.which("qemu-aarch64-static")
needs_kernel = pytest.mark.skipif(not library.levels(), reason="the kernel is not compiled")


def random_arrays(seed: int) -> weights.Arrays:
    """Two layers, with some large channels; no width is a multiple of a panel."""
    random = np.random.default_rng(seed)

    def normal(*shape: int) -> NDArray[np.float32]:
        return random.normal(size=shape).astype(np.float32)

    arrays = weights.quantize_words(normal(TOKENS, WIDTH))
    arrays |= {"positions": normal(max(LENGTHS), WIDTH), "norm.weight": 1 + normal(WIDTH) / 9}
    arrays["norm.bias"] = normal(WIDTH)
    shapes = {"attention": (WIDTH, 3 * WIDTH), "attended": (WIDTH, WIDTH)}
    shapes |= {"inner": (WIDTH, INNER), "outer": (INNER, WIDTH)}
    for layer in range(2):
        for name, (channels, outputs) in shapes.items():
            largest = np.where(np.arange(channels) % 40 == 7, 9, 1)
            weight, bias = normal(channels, outputs) / channels**0.5, normal(outputs)
            parts = weights.quantize_linear(weight, bias, largest, 13)
            arrays |= {f"{layer}.{name}.{part}": values for part, values in parts.items()}
        for name in ("first_norm", "second_norm"):
            scale = np.where(np.arange(WIDTH) % 40 == 7, 9, 1).astype(np.float32)
            arrays[f"{layer}.{name}.weight"], arrays[f"{layer}.{name}.bias"] = scale, normal(WIDTH)
    return arrays


def vectors(
    arrays: weights.Arrays,
    texts: Sequence[NDArray[np.int32]],
    level: int = 0,
    bits: int | None = None,
) -> bytes:
    network = weights.network(
        arrays, 2, HEADS, 1e-12, library.digit_bits() if bits is None else bits
    )
    lengths = np.array([len(text) for text in texts], np.int32)
    cls, means = library.encode(network, np.concatenate(texts), lengths, 2, level)
    assert np.isfinite(cls).all() and np.isfinite(means).all()
    return cls.tobytes() + means.tobytes()


def random_texts(seed: int) -> list[NDArray[np.int32]]:
    random = np.random.default_rng(seed)
    return [random.integers(0, TOKENS, length, np.int32) for length in LENGTHS]


@needs_kernel
@pytest.mark.parametrize("bits", [6, 7])
@pytest.mark.parametrize("level", library.levels())
def test_every_level_gives_the_bits_of_the_scalar_one(level: str, bits: int) -> None:
    arrays, texts = random_arrays(1), random_texts(2)
    levels = library.levels()
    assert levels[-1] == "scalar"
    if bits > library.digit_bits(levels.index(level)):
        with pytest.raises(ValueError, match=f"{level} does not compute with digits of {bits} b"):
            vectors(arrays, texts, levels.index(level), bits)
        return
    exact = vectors(arrays, texts, levels.index("scalar"), bits)
    assert vectors(arrays, texts, levels.index(level), bits) == exact


@needs_kernel
@pytest.mark.parametrize("level", library.levels())
def test_the_largest_products_do_not_overflow(level: str) -> None:
    """Weights of 255 and equal inputs, so that each digit is the largest there is."""
    number = library.levels().index(level)
    arrays, texts = random_arrays(1), random_texts(2)
    for name, values in arrays.items():
        if name.endswith("weights"):
            values[:] = 255
        elif name.endswith((".bias", "norm.weight")):
            values[:] = 1
    bits = library.digit_bits(number)
    exact = vectors(arrays, texts, library.levels().index("scalar"), bits)
    assert vectors(arrays, texts, number, bits) == exact


@needs_kernel
def test_a_text_has_the_same_vector_in_any_batch() -> None:
    arrays, texts = random_arrays(3), random_texts(4)
    size = 4 * WIDTH
    together = vectors(arrays, texts)
    for i, text in enumerate(texts):
        alone = vectors(arrays, [text])
        for half in range(2):
            at = half * size * len(texts) + i * size
            assert alone[half * size : half * size + size] == together[at : at + size]


@needs_kernel
@pytest.mark.parametrize(("bits", "least"), [(6, 0.9998), (7, 0.9999)])
def test_it_computes_what_numpy_computes_of_the_same_weights(bits: int, least: float) -> None:
    """Weights of whole numbers are exact in 8 bits, so that activations alone are rounded."""
    arrays, texts = random_arrays(5), random_texts(6)
    described = find_described(Source.find("starter"))
    assert described is not None
    numpy = NumpyRuntime(described)
    numpy._network = described.network.__class__(heads=HEADS, width=WIDTH)

    def linear(name: str) -> Linear:
        parts = {part: arrays[f"{name}.{part}"] for part in ("weights", "scales", "shares")}
        outputs, channels = len(parts["scales"]), len(parts["shares"])
        steps = parts["weights"].size // outputs // 4
        panels, at = [], 0
        for first in range(0, outputs, weights.PANEL):
            wide = min(weights.PANEL, outputs - first)
            panel = parts["weights"][at : at + steps * wide * 4].reshape(steps, wide, 4)
            panels.append(panel.swapaxes(1, 2).reshape(-1, wide)[:channels].astype(np.float32))
            at += steps * wide * 4
        whole = np.concatenate(panels, axis=1) - 128
        return Linear(whole * parts["scales"], arrays[f"{name}.bias"])

    def norm(name: str) -> Norm:
        return Norm(arrays[f"{name}.weight"], arrays[f"{name}.bias"], 1e-12)

    numpy.words = arrays["words"] * arrays["word_scales"][:, None]
    numpy.positions, numpy.norm = arrays["positions"], norm("norm")
    numpy.layers = [
        Layer(
            linear(f"{i}.attention"),
            linear(f"{i}.attended"),
            norm(f"{i}.first_norm"),
            linear(f"{i}.inner"),
            linear(f"{i}.outer"),
            norm(f"{i}.second_norm"),
        )
        for i in range(2)
    ]
    network = weights.network(arrays, 2, HEADS, 1e-12, bits)
    level = library.levels().index("scalar")
    for text in texts:
        ids = text[None].astype(np.int64)
        (expected,) = numpy._hidden(ids, np.ones_like(ids, bool))
        cls, means = library.encode(network, text, np.array([len(text)], np.int32), 1, level)
        for ours, theirs in ((cls[0], expected[0]), (means[0], expected.mean(axis=0))):
            cosine = ours @ theirs / np.linalg.norm(ours) / np.linalg.norm(theirs)
            assert cosine > least, len(text)


@needs_kernel
def test_the_starter_is_near_float32_and_needs_neither_torch_nor_openvino() -> None:
    texts = ["how do whales sleep", "", "the dog sleeps near the sea " * 60, "고래 🐋 ½"]
    exact = Encoder.load("starter-768", runtime="torch", precision="fp32").encode(texts)
    encoder = Encoder.load("starter-768", runtime="native")
    ours = encoder.encode(texts)
    assert encoder.runs_on == "native int8"
    assert np.einsum("nd,nd->n", ours, exact).min() >= 0.99
    assert not np.array_equal(ours, exact)
    program = (
        "import sys; from searchengine.trainer.encoder import Encoder; "
        "encoder = Encoder.load('starter-768', runtime='native'); "
        "sys.stdout.buffer.write(encoder.encode(['how do whales sleep']).tobytes()); "
        "assert not {'torch', 'openvino', 'transformers'} & set(sys.modules)"
    )
    path = {"PYTHONPATH": os.pathsep.join(sys.path)}
    second = subprocess.run(
        [sys.executable, "-c", program], env=os.environ | path, stdout=subprocess.PIPE, check=True
    )
    assert second.stdout == ours[:1].tobytes()


@needs_kernel
def test_questions_have_finer_digits() -> None:
    """The mean error of the cosines is 2.9e-4; 3.8e-4 with one digit for inputs of attention."""
    asked = ("how do {} sleep", "why are {} so large", "who wrote about {}", "{} in winter")
    named = ("whales", "owls", "bees", "ships", "bridges", "old maps", "rivers", "the moon")
    texts = [question.format(name) for question in asked for name in named]
    exact = Encoder.load("starter-768", runtime="torch", precision="fp32").encode(texts)
    ours = Encoder.load("starter-768", runtime="native").encode(texts)
    assert 1 - np.einsum("nd,nd->n", ours, exact).mean() < 3.3e-4


def write_heads(folder: Path, seed: int = 0) -> Path:
    """A network with heads of 16 channels."""
    write_plain(folder, seed=seed)
    config = json.loads((folder / "config.json").read_text())
    write_json(folder / "config.json", config | {"num_attention_heads": 2})
    return folder


def write_small(folder: Path) -> tuple[Described, Source]:
    """A network with heads of 16 channels, which torch has read."""
    write_heads(folder)
    with suppress(ModelError):  # its random weights may be too far apart in 8 bits
        Encoder.load(folder, runtime="native").encode(["a"])
    source = Source.find(folder)
    described = find_described(source)
    assert described is not None
    return described, source


@needs_kernel
def test_a_damaged_file_of_weights_is_written_again(own_cache: Path, tmp_path: Path) -> None:
    model, source = write_small(tmp_path / "small")
    path = native_runtime._place(source)
    assert path is not None
    whole = path.read_bytes()
    batch = Padded(np.array([[2, 5, 3]]), np.ones((1, 3), np.int64))
    first = native_runtime._find(model, source)
    assert first is not None
    expected = first.run(batch)
    path.unlink()  # mapped files are replaced, never written to
    flipped = whole[:-9] + bytes([whole[-9] ^ 1]) + whole[-8:]
    for damaged in (b"", whole[:100], whole[: len(whole) // 2], b"\xff" * 64, flipped):
        path.write_bytes(damaged)
        assert native_runtime._find(model, source) is None
        path.unlink()
    again = native_runtime._quantized(model, source)
    assert path.read_bytes() == whole
    path.with_suffix(".sha256").unlink()
    assert native_runtime._find(model, source) is None
    np.testing.assert_array_equal(again.run(batch), expected)
    arrays, _ = weights.read(path)
    channels = arrays["0.inner.channels"].copy()
    channels[0] = len(arrays["0.inner.shares"])
    with pytest.raises(ValueError, match="names a channel that it does not have"):
        weights.network(arrays | {"0.inner.channels": channels}, 2, 2, 1e-12, 7)


@needs_kernel
def test_what_it_does_not_run_is_refused_in_one_sentence(
    own_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ModelError, match="native computes on the processor, not on 'cuda'"):
        Encoder.load("starter", runtime="native", device="cuda")
    with pytest.raises(ModelError, match="leave the precision out, got fp32"):
        Encoder.load("starter", runtime="native", precision="fp32")
    write_plain(tmp_path / "narrow")
    with pytest.raises(ModelError, match="widths that are multiples of 16"):
        Encoder.load(tmp_path / "narrow", runtime="native").encode(["a"])
    runtime = native_runtime._find(*write_small(tmp_path / "small"))
    assert runtime is not None
    for ids, message in (([[99999]], "below 94, got 99999"), ([[1] * 60], "1 to 48 tokens")):
        with pytest.raises(ModelError, match=message):
            runtime.run(Padded(np.array(ids), np.ones_like(ids)))
    monkeypatch.setattr(native_runtime, "levels", list)
    with pytest.raises(SearchEngineError, match="not compiled: install searchengine again"):
        Encoder.load("starter", runtime="native").encode(["a"])


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> None:
    """The choice is free, and the processor has VNNI but no AMX."""
    monkeypatch.delenv("SEARCHENGINE_RUNTIME", raising=False)
    monkeypatch.setattr(handle, "adds_bytes", lambda: True)
    monkeypatch.setattr(handle, "digit_bits", lambda: library.WIDE)
    monkeypatch.setattr(handle, "cpu_has_amx", lambda: False)


@needs_kernel
def test_auto_takes_it_for_the_starter_once_numpy_has_answered_first_texts(
    free: None, own_cache: Path
) -> None:
    texts = ["how do whales sleep", "the dog sleeps near the sea " * 60]
    first = Encoder.load("starter")
    assert first.runs_on == "numpy for the first texts, then native int8"
    by_numpy = first.encode(texts[:1])
    assert first.runs_on.startswith("numpy")
    first.start()
    assert (first.runs_on, first.runtime, first.precision) == ("native int8", "native", "int8")
    vectors = first.encode(texts)
    assert 0.99 < (by_numpy @ vectors[0])[0] < 0.999999
    second = Encoder.load("starter")
    assert second.runs_on == "native int8"
    np.testing.assert_array_equal(second.encode(texts), vectors)
    exact = Encoder.load("starter", precision="fp32")
    assert exact.runs_on.split(",")[0] in ("torch", "torch fp32", "openvino")


@needs_kernel
@pytest.mark.parametrize(("adds", "bits", "amx"), [(0, 7, 0), (1, 7, 1), (1, 6, 0)])
def test_auto_does_not_take_it_where_another_runtime_is_better(
    adds: bool, bits: int, amx: bool, free: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handle, "adds_bytes", lambda: adds)
    monkeypatch.setattr(handle, "digit_bits", lambda: bits)
    monkeypatch.setattr(handle, "cpu_has_amx", lambda: amx)
    monkeypatch.setattr(RuntimeConfig, "tries_openvino", True)
    assert "native" not in Encoder.load("starter").runs_on
    monkeypatch.setattr(RuntimeConfig, "tries_openvino", False)
    assert ("native" in Encoder.load("starter").runs_on) == adds


@needs_kernel
def test_auto_takes_it_for_a_network_that_it_does_not_know(
    free: None,
    own_cache: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(RuntimeConfig, "tries_openvino", False)
    monkeypatch.setattr(torch_runtime, "cpu_has_native_bf16", lambda: False)
    folder = write_heads(tmp_path / "small")
    rounds: list[Described] = []
    rounded = native_runtime._rounded

    def counted(model: Described) -> tuple[weights.Arrays, Accuracy]:
        rounds.append(model)
        arrays, measured = rounded(model)
        return arrays, replace(measured, cosine=cosine)

    monkeypatch.setattr(native_runtime, "_rounded", counted)
    cosine = 0.991
    encoder = Encoder.load(folder)
    assert encoder.runs_on == "native int8, or else torch"
    vectors = encoder.encode(["a whale sings"])
    assert encoder.runs_on == "native int8" and len(rounds) == 1
    again = Encoder.load(folder)
    assert again.runs_on == "native int8"
    np.testing.assert_array_equal(again.encode(["a whale sings"]), vectors)
    assert len(rounds) == 1
    # One that is not accurate enough is not rounded again, and runs as it would without the kernel.
    inaccurate = write_heads(tmp_path / "other", seed=2)
    cosine = 0.98
    caplog.set_level("INFO")
    encoder = Encoder.load(inaccurate)
    exact = Encoder.load(inaccurate, runtime="torch", precision="fp32").encode(["a whale sings"])
    np.testing.assert_allclose(encoder.encode(["a whale sings"]), exact, atol=1e-5)
    assert encoder.runs_on == "torch fp32" and len(rounds) == 2
    assert "got int8 0.9800: another runtime is taken" in caplog.text
    assert Encoder.load(inaccurate).runs_on == "numpy for the first texts, then torch"
    with pytest.raises(ModelError, match=r"0\.99, got int8 0\.98"):
        Encoder.load(inaccurate, runtime="native").encode(["a"])
    assert len(rounds) == 2


def test_rounding_makes_up_for_errors() -> None:
    random = np.random.default_rng(7)
    inputs = random.normal(size=(500, 48)) @ random.normal(size=(48, 48))
    weight = random.normal(size=(48, 16)).astype(np.float32)
    arrays = weights.quantize_linear(weight, np.zeros(16), np.ones(48), 0, inputs.T @ inputs)
    plain = weights.quantize_linear(weight, np.zeros(16), np.ones(48), 0)

    def error(parts: weights.Arrays) -> float:
        whole = parts["weights"].reshape(12, 16, 4).swapaxes(1, 2).reshape(48, 16)
        exact = inputs @ weight
        return float(np.square(inputs @ ((whole - 128.0) * parts["scales"]) - exact).sum())

    assert error(arrays) < error(plain) / 2


@pytest.mark.parametrize("size", [1, 127, 128, 300])
def test_a_triangle_is_inverted_in_parts(size: int) -> None:
    upper = np.triu(np.random.default_rng(size).normal(size=(size, size))) + 9 * np.eye(size)
    inverse = weights._inverse(upper)
    np.testing.assert_allclose(inverse @ upper, np.eye(size), atol=1e-10)
    assert not np.tril(inverse, -1).any()


@pytest.mark.long
@pytest.mark.skipif(
    not (shutil.which(COMPILER) and EMULATOR),
    reason=f"needs {COMPILER} and qemu-aarch64 (Debian: g++-aarch64-linux-gnu, qemu-user)",
)
def test_the_neon_level_gives_the_bits_of_the_scalar_one(tmp_path: Path) -> None:
    source, program = compiler.ENCODER.with_name("source"), tmp_path / "neon"
    sources = [Path(__file__).parents[1] / "neon_encoder.cpp", *source.glob("*.cpp")]
    flags = [flag for flag in compiler.FLAGS if flag not in ("-shared", "-fPIC")]
    command = [COMPILER, *flags, "-static", f"-I{source}", *map(str, sources), "-o", str(program)]
    subprocess.run(command, check=True)
    done = subprocess.run([str(EMULATOR), str(program)], stdout=subprocess.PIPE, text=True)
    assert (done.returncode, done.stdout) == (0, "neon and 1 others: 0 differ\n")


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="the checks are preloaded as on Linux")
def test_nothing_is_read_or_written_out_of_bounds(tmp_path: Path) -> None:
    """The levels again, by a library that checks its memory accesses and its arithmetic."""
    (tmp_path / "source").symlink_to(compiler.ENCODER.with_name("source"))
    target = tmp_path / "kernel.so"
    problem = compiler.compile_kernel(target, (*compiler.SANITIZE, "-DVNNI_BY_AVX512"))
    assert problem is None, problem
    command = [*(compiler.compiler() or []), "-print-file-name=libasan.so"]
    preloaded = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    environment = os.environ | {
        "LD_PRELOAD": preloaded,
        "ASAN_OPTIONS": "detect_leaks=0",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    program = (
        "import sys; from pathlib import Path; from searchengine.trainer.native import library; "
        "library.LIBRARY = Path(sys.argv[1]); load = library.load; "
        "library.load = lambda: load(library.LIBRARY); assert library.levels(); "
        "import pytest; sys.exit(pytest.main(['-q', '-p', 'no:cacheprovider', '-k', "
        "'level or batch or numpy_computes or of_the_library or around', *sys.argv[2:]]))"
    )
    files = [__file__, str(Path(__file__).with_name("test_wordpiece.py"))]
    subprocess.run(
        [sys.executable, "-c", program, str(target), *files], check=True, env=environment
    )
