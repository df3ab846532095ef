"""Optional packages stay at their edge: only what belongs to an extra imports what the base lacks.

The closures of the requirements say what the base and each extra bring. A process that has no more
than the base imports every module; those that it cannot import are listed with their extra. What
functions import is tried by test_installs.py, where a command names the extra that it lacks.
"""

import json
from importlib import metadata
from pathlib import Path

from conftest import REPOSITORY
from installs import View, closure, requirements
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
NAMES = {"haystack": "haystack-ai", "llama_index": "llama-index-core"}  # perhaps not installed

IMPORT_ALL = """
import importlib, json, pkgutil, sitecustomize
import searchengine
modules = [m.name for m in pkgutil.walk_packages(searchengine.__path__, "searchengine.")]
lacks = {}
for name in modules:
    try:
        # The kernels are no modules.
        name.endswith((".__main__", ".kernel")) or importlib.import_module(name)
    except ImportError:  # perhaps with a sentence that names the extra
        lacks[name] = sitecustomize.Finder.missing
print(json.dumps([len(modules), lacks]))
"""


def brought(extra: str = "") -> set[str]:
    """The distributions of the base, and of an extra."""
    return closure(requirements([extra] if extra else []))


def test_optional_packages_are_imported_where_they_are_promised(tmp_path: Path) -> None:
    done = View(tmp_path).program(IMPORT_ALL, REPOSITORY)
    assert done.returncode == 0, done.stderr
    count, lacks = json.loads(done.stdout)
    assert count > 150
    tops = metadata.packages_distributions()
    for module, top in lacks.items():
        extra = next((extra for name, extra in MODULES.items() if module.startswith(name)), "")
        names = tops.get(top, [NAMES.get(top, top)])
        assert {*map(canonicalize_name, names)} & brought(extra), f"{module} imports {top}"
    needless = {name for name in MODULES if not any(module.startswith(name) for module in lacks)}
    assert not needless


def test_the_base_stays_small() -> None:
    heavy = {"torch", "transformers", "scipy", "scikit-learn", "matplotlib", "pandas", "pyarrow"}
    assert {"numpy", "tokenizers"} <= brought() and not heavy & brought()
