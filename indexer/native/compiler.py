"""Compiling the kernels, with the standard library only: the build runs it before anything else.

python -m searchengine.indexer.native.compiler   # compile, each into its folder
"""

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

LIBRARY = Path(__file__).with_name("kernel.so")
ENCODER = Path(__file__).parents[2] / "trainer" / "native" / "kernel.so"
"""The kernel that runs networks; its sources are beside it, too."""

FLAGS = "-O3 -std=c++17 -fPIC -shared -pthread -ffp-contract=off -fno-math-errno".split()
"""No -march: functions name their instruction sets, and the library chooses when it is loaded.
No fused multiply-add: scores are the same on every processor."""


def compiler() -> list[str] | None:
    """The command of a C++ compiler: $CXX, else c++, g++ or clang++; None without one."""
    chosen = shlex.split(os.environ.get("CXX", ""))
    if chosen:
        return chosen
    return next(([name] for name in ("c++", "g++", "clang++") if shutil.which(name)), None)


def compile_kernel(target: Path) -> str | None:
    """Compile the sources beside `target` into it.

    Returns:
        None on success, else the reason in one line. There is then no `target`.
    """
    target.unlink(missing_ok=True)
    command = compiler()
    if command is None:
        return "no C++ compiler was found (g++, clang++, or what CXX names)"
    scratch = target.with_name(f"{target.name}.{os.getpid()}")
    sources = sorted(map(str, target.with_name("source").glob("*.cpp")))
    try:
        line = [*command, *FLAGS, *sources, "-o", str(scratch)]
        subprocess.run(line, check=True, capture_output=True, text=True)
        scratch.replace(target)
    except subprocess.CalledProcessError as error:
        lines = (error.stderr or "").strip().splitlines() or [f"exit status {error.returncode}"]
        reason = next((line for line in lines if "error" in line), lines[0])
        return f"{command[0]} could not compile the kernel: {reason}"
    except OSError as error:
        return f"{command[0]} could not be run: {error}"
    finally:
        scratch.unlink(missing_ok=True)
    return None


def main() -> None:
    """Compile from the command line."""
    sys.exit(compile_kernel(LIBRARY) or compile_kernel(ENCODER))


if __name__ == "__main__":
    main()
