"""The NEON level of the kernel, compiled for ARM and run by an emulator."""

import shutil
import subprocess
from pathlib import Path

import pytest

from searchengine.indexer.native.compiler import FLAGS, SOURCE

COMPILER, EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64"
MAIN = Path(__file__).parents[1] / "neon_scores.cpp"


@pytest.mark.long
@pytest.mark.skipif(
    not (shutil.which(COMPILER) and shutil.which(EMULATOR)),
    reason=f"needs {COMPILER} and {EMULATOR} (Debian: g++-aarch64-linux-gnu, qemu-user)",
)
def test_neon_scores_as_the_scalar_level(tmp_path: Path) -> None:
    program = tmp_path / "neon"
    flags = [flag for flag in FLAGS if flag not in ("-shared", "-fPIC")]
    names = ("scores.cpp", "scores_arm.cpp", "prefix.cpp")
    sources = [MAIN, *(SOURCE / name for name in names)]
    command = [COMPILER, *flags, "-static", f"-I{SOURCE}", *map(str, sources), "-o", str(program)]
    subprocess.run(command, check=True)
    result = subprocess.run([EMULATOR, str(program)], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.endswith(" 0 differ\n")
