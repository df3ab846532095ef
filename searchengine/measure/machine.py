"""Description of the machine that measures."""

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from searchengine.indexer.threads import available_cores, threads

_PACKAGES = ("searchengine", "faiss-cpu", "faiss-gpu", "numpy", "torch", "openvino")


def machine() -> dict[str, Any]:
    """Processor, cores, threads of a search, memory (bytes), system, and versions of packages."""
    versions = {}
    for name in _PACKAGES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return {
        "processor": processor(),
        "cores": available_cores(),
        "threads": threads.limit,
        "memory": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "versions": versions,
    }


def processor() -> str:
    """The processor's name, from the system; "unknown" if it gives none."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":")[1].strip() for line in lines if "model name" in line), "unknown")
