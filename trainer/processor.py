"""The processor of this machine: its name, and whether it computes bfloat16."""

import platform
from contextlib import suppress
from pathlib import Path


def cpu_has_native_bf16(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """Whether this processor multiplies bfloat16 in hardware (AVX512-BF16, AMX or Arm's)."""
    with suppress(OSError):  # not Linux
        flags = _read(cpuinfo).split()
        return any(flag in flags for flag in ("avx512_bf16", "amx_bf16", "bf16", "sve_bf16"))
    return False


def processor_name(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """The processor's name, from the system; "unknown" if it gives none."""
    with suppress(OSError):  # not Linux
        for line in _read(cpuinfo).splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or "unknown"


def _read(cpuinfo: Path) -> str:
    return cpuinfo.read_text(encoding="utf-8", errors="replace")
