"""The native kernel: every level gives the bits of the scalar one, and vectors near float32's."""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from searchengine.indexer.native import compiler
from searchengine.trainer.encoder import Encoder
from searchengine.trainer.native import library, weights

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
            parts = weights.quantize_linear(weight, bias, largest, 13, np.eye(len(weight)))
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
    pooled = library.encode(network, np.concatenate(texts), lengths, 2, level, maxima=True)
    assert all(np.isfinite(rows).all() for rows in pooled)
    return b"".join(rows.tobytes() for rows in pooled)


def random_texts(seed: int) -> list[NDArray[np.int32]]:
    random = np.random.default_rng(seed)
    return [random.integers(0, TOKENS, length, np.int32) for length in LENGTHS]


@needs_kernel
@pytest.mark.parametrize("largest", [False, True])
@pytest.mark.parametrize("bits", [6, 7])
@pytest.mark.parametrize("level", library.levels())
def test_every_level_gives_the_bits_of_the_scalar_one(level: str, bits: int, largest: bool) -> None:
    """largest: of weights of 255 and equal inputs, so that each digit is the largest there is."""
    arrays, texts, levels = random_arrays(1), random_texts(2), library.levels()
    for name, values in arrays.items() if largest else ():
        if name.endswith("weights"):
            values[:] = 255
        elif name.endswith((".bias", "norm.weight")):
            values[:] = 1
    if bits > library.digit_bits(levels.index(level)):
        with pytest.raises(ValueError, match=f"{level} does not compute with digits of {bits} b"):
            vectors(arrays, texts, levels.index(level), bits)
        return
    exact = vectors(arrays, texts, levels.index("scalar"), bits)
    assert vectors(arrays, texts, levels.index(level), bits) == exact


@needs_kernel
def test_the_starter_is_near_float32() -> None:
    """The mean error of questions is 2.9e-4; 3.8e-4 with one digit for inputs of attention."""
    asked = ("how do {} sleep", "why are {} so large", "who wrote about {}", "{} in winter")
    named = ("whales", "owls", "bees", "ships", "bridges", "old maps", "rivers", "the moon")
    texts = [question.format(name) for question in asked for name in named]
    texts += ["", "the dog sleeps near the sea " * 60, "고래 🐋 ½"]
    exact = Encoder.load("starter-768", runtime="torch", precision="fp32").encode(texts)
    ours = Encoder.load("starter-768", runtime="native").encode(texts)
    cosines = np.einsum("nd,nd->n", ours, exact)
    assert cosines.min() >= 0.99 and 1 - cosines[:32].mean() < 3.3e-4
    assert not np.array_equal(ours, exact)


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
        "'level or of_the_library or around', *sys.argv[2:]]))"
    )
    files = [__file__, str(Path(__file__).with_name("test_wordpiece.py"))]
    subprocess.run(
        [sys.executable, "-c", program, str(target), *files], check=True, env=environment
    )
