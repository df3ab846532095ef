"""Hatch build hook: compile the kernels into the wheel."""

import os
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

WAYS_OUT = (
    "Install a C++ compiler (`apt install g++`, `dnf install gcc-c++`, `xcode-select --install`), "
    "and try again; or set SEARCHENGINE_KERNEL=faiss: faiss then searches, slower, torch encodes"
)


class KernelHook(BuildHookInterface):
    """Compiles for wheels and editable installs. An sdist holds the sources only."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, and tag the wheel for this platform. Without a compiler the build ends.

        With SEARCHENGINE_KERNEL=faiss nothing is compiled, and the wheel is for every platform.
        """
        if self.target_name != "wheel" or os.environ.get("SEARCHENGINE_KERNEL") == "faiss":
            return
        sys.path.insert(0, self.root)
        from searchengine.indexer.native.compiler import ENCODER, LIBRARY, compile_kernel

        with ThreadPoolExecutor() as pool:
            problems = list(filter(None, pool.map(compile_kernel, (LIBRARY, ENCODER))))
        if problems:
            self.app.abort(f"searchengine was not installed: {problems[0]}. {WAYS_OUT}")
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{platform}"
        root = Path(self.root)
        places = (library.relative_to(root).as_posix() for library in (LIBRARY, ENCODER))
        build_data["artifacts"] += [f"/{place}" for place in places]
