"""Hatch build hook: compile the kernels into the wheel, or build a pure wheel without them."""

import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class KernelHook(BuildHookInterface):  # type: ignore[misc]  # hatchling is there only in a build
    """Compiles for wheels and editable installs. An sdist holds the sources only."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, and tag the wheel for this platform. A failure is reported, not raised."""
        if self.target_name != "wheel":
            return
        sys.path.insert(0, self.root)
        try:
            from searchengine.indexer.native.compiler import ENCODER, LIBRARY, compile_kernel
        finally:
            sys.path.remove(self.root)
        for library in (LIBRARY, ENCODER):
            if (problem := compile_kernel(library)) is not None:
                self.app.display_warning(f"search runs on faiss, encoding on torch: {problem}")
                return
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{platform}"
        for library in (LIBRARY, ENCODER):
            place = library.relative_to(Path(self.root)).as_posix()
            build_data["artifacts"].append(f"/{place}")
