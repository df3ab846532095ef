"""Optional packages stay at their edge: only what belongs to an extra imports what the base lacks.

The closures of the requirements say what the base and each extra bring. A process that has no more
than the base imports every module; those that it cannot import are listed with their extra. What
functions import is tried by test_installs.py, where a command names the extra that it lacks.
"""

import json
import subprocess
import sys
from importlib import metadata
from pathlib import Path

from conftest import REPOSITORY
from installs import closure, requirements
from packaging.utils import canonicalize_name

MODULES = {
    "searchengine.backends.postgresql.": "postgresql",
    "searchengine.corpus.formats.pdf": "formats",
    "searchengine.integrations.haystack": "haystack",
    "searchengine.integrations.langchain": "langchain",
    "searchengine.integrations.llamaindex": "llamaindex",
    "searchengine.server.mcp_server": "mcp",
    "searchengine.server.": "serve",
    "searchengine.trainer.card": "train",
    "searchengine.trainer.evaluation.mteb": "mteb",
    "searchengine.trainer.model.model_folder": "train",
    "searchengine.trainer.model.modules": "train",
    "searchengine.trainer.model.network": "train",
    "searchengine.trainer.runtimes.torch_runtime": "train",
    "searchengine.trainer.training.": "train",
}
"""Module, or the beginning of a package's modules → the extra whose packages they import."""
BUILD_ONLY = "searchengine.indexer.native.build_hook"
NAMES = {"haystack": "haystack-ai", "llama_index": "llama-index-core"}  # perhaps not installed

IMPORT_ALL = """
import importlib, json, pkgutil, sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if path is None and top not in known:
            self.last = top
            raise ModuleNotFoundError(f"no {top} in the base", name=top)

known, more = json.loads(sys.argv[1]), sys.argv[2:]
sys.meta_path.insert(0, blocked := Blocked())
import searchengine
modules = [m.name for m in pkgutil.walk_packages(searchengine.__path__, "searchengine.")]
lacks = {}
for name in [*modules, *more]:
    try:
        # The kernels are no modules.
        name.endswith((".__main__", ".kernel")) or importlib.import_module(name)
    except ImportError:  # perhaps with a sentence that names the extra
        lacks[name] = blocked.last
print(json.dumps([len(modules), lacks]))
"""


def brought(extra: str = "") -> set[str]:
    """The distributions of the base, and of an extra."""
    return closure(requirements([extra] if extra else []), installed=False)


def lacking(*more: str, folder: Path = REPOSITORY) -> tuple[int, dict[str, str]]:
    """How many modules there are, and what of others each lacks that the base cannot import."""
    base, tops = brought(), metadata.packages_distributions()
    known = {top for top, names in tops.items() if {*map(canonicalize_name, names)} & base}
    known |= {*sys.stdlib_module_names, "searchengine", *more}
    command = [sys.executable, "-c", IMPORT_ALL, json.dumps(sorted(known)), *more]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    count, lacks = json.loads(done.stdout)
    return count, lacks


def test_optional_packages_are_imported_where_they_are_promised() -> None:
    count, lacks = lacking()
    assert lacks.pop(BUILD_ONLY) == "hatchling" and count > 150
    tops = metadata.packages_distributions()
    for module, top in lacks.items():
        extra = next((extra for name, extra in MODULES.items() if module.startswith(name)), "")
        names = tops.get(top, [NAMES.get(top, top)])
        assert {*map(canonicalize_name, names)} & brought(extra), f"{module} imports {top}"
    needless = {name for name in MODULES if not any(module.startswith(name) for module in lacks)}
    assert not needless


def test_the_closures_are_known() -> None:
    assert {"numpy", "tokenizers", "safetensors"} <= brought()
    heavy = {"torch", "transformers", "scipy", "scikit-learn", "matplotlib", "pandas", "pyarrow"}
    assert not heavy & brought()
    assert {"torch", "transformers", "peft"} <= brought("train")
    assert {"starlette", "pydantic"} <= brought("serve")


def test_what_the_base_lacks_is_named(tmp_path: Path) -> None:
    (tmp_path / "stranger.py").write_text("def f():\n    import scipy\nfrom pandas import Series\n")
    assert lacking("stranger", folder=tmp_path)[1]["stranger"] == "pandas"
