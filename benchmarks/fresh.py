"""Measure in a fresh process: no memory, caches or threads are left over from what ran before."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

MEGABYTE = 2**20


def measure(script: str, *arguments: object) -> Any:
    """Run a script with `--child` and these arguments; what it answered.

    None where the system ended it for want of memory. Raises RuntimeError with the end of its
    messages where it failed otherwise.
    """
    command = [sys.executable, script, "--child", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode == -9:
        return None
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def answer(figures: Any) -> None:
    """What a child found out, as its last line."""
    print(json.dumps(figures))


def peak_mb() -> float:
    """The most memory this process has had at once, in MB.

    Not getrusage's ru_maxrss, which begins with the parent's.
    """
    return _status("VmHWM")


def resident_mb() -> float:
    """The memory this process has now, in MB."""
    return _status("VmRSS")


def _status(name: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    kilobytes = next(line.split()[1] for line in lines if line.startswith(f"{name}:"))
    return round(int(kilobytes) * 1024 / MEGABYTE, 1)
