"""The processor of this machine: its name, and whether it computes bfloat16."""

import platform
from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")  # of Linux
BF16_FLAGS = {"avx512_bf16", "amx_bf16", "bf16", "sve_bf16"}


def cpu_has_native_bf16(cpuinfo: Path = CPUINFO) -> bool:
    """Whether this processor multiplies bfloat16 in hardware (AVX512-BF16, AMX or Arm's)."""
    return cpuinfo.exists() and not BF16_FLAGS.isdisjoint(cpuinfo.read_text().split())


def processor_name(cpuinfo: Path = CPUINFO) -> str:
    """The processor's name, from the system; "unknown" if it gives none."""
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor()) or "unknown"
