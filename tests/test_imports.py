"""Optional packages stay at their edge: only what belongs to an extra imports what the base lacks.

The closures of the requirements say what the base and each extra bring. A module of an extra may
import the extra's packages when it is imported, and only modules of the same extra may import it
so. Others import both within a function, and are listed with the extra that the function promises.
"""

import ast
import subprocess
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from conftest import REPOSITORY
from installs import closure, project, requirements
from packaging.utils import canonicalize_name
from tiny_model import write_model2vec

PACKAGES = ("searchengine", "trainer", "indexer")
MODULES = {
    "searchengine/backends/postgresql/": "postgresql",
    "searchengine/corpus/formats/office.py": "formats",
    "searchengine/corpus/formats/pdf.py": "formats",
    "searchengine/corpus/formats/records.py": "formats",
    "searchengine/integrations/haystack.py": "haystack",
    "searchengine/integrations/langchain.py": "langchain",
    "searchengine/integrations/llamaindex.py": "llamaindex",
    "searchengine/server/mcp_server.py": "mcp",
    "searchengine/measure/judged_folder.py": "train",
    "searchengine/server/": "serve",
    "searchengine/cli/train_display.py": "train",
    "searchengine/cli/train_logs.py": "train",
    "trainer/classifier.py": "train",
    "trainer/card.py": "train",
    "trainer/evaluation/labels.py": "train",
    "trainer/evaluation/mteb.py": "mteb",
    "trainer/model/model_folder.py": "train",
    "trainer/model/modules.py": "train",
    "trainer/model/network.py": "train",
    "trainer/runtimes/torch_runtime.py": "train",
    "trainer/training/": "train",
}
"""File, or folder → the extra whose packages it imports at its head."""
FUNCTIONS = {
    "searchengine/backends/opening.py": "postgresql",
    "searchengine/cli/demo.py": "train",
    "searchengine/cli/measuring/evaluate.py": "mteb train",
    "searchengine/cli/serve.py": "serve mcp",
    "searchengine/cli/train.py": "train",
    "searchengine/corpus/encodings.py": "formats",
    "searchengine/measure/": "plots",
    "trainer/encoder.py": "train",
    "trainer/reading.py": "formats",
    "trainer/runtimes/": "train",
}
"""File or folder → the extras whose packages and modules it imports within functions."""
ELSEWHERE = {
    "indexer/native/build_hook.py": {"hatchling"},  # runs in a build only
    "searchengine/cli/train_logs.py": {"mlflow", "wandb"},  # of no extra: --log names them
}
NAMES = {"haystack": "haystack-ai", "llama_index": "llama-index-core"}  # perhaps not installed


class Import(NamedTuple):
    """An import statement's module, and whether it is run when its file is imported."""

    line: int
    module: str
    at_head: bool


def imports(tree: ast.AST, at_head: bool = True) -> Iterator[Import]:
    """The imports of a file, without those for type checkers alone."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from (Import(node.lineno, alias.name, at_head) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield Import(node.lineno, node.module, at_head)
            if node.module.partition(".")[0] in PACKAGES:  # a name may be a module
                for alias in node.names:
                    yield Import(node.lineno, f"{node.module}.{alias.name}", at_head)
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            for other in node.orelse:
                yield from imports(other, at_head)
        else:
            inner = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            yield from imports(node, at_head and not inner)


@cache
def brought(extra: str = "") -> frozenset[str]:
    """The distributions of the base, and of an extra."""
    wanted = requirements([extra] if extra else [])
    return frozenset(closure(wanted, installed=False))


@cache
def _distributions() -> Mapping[str, list[str]]:
    return metadata.packages_distributions()


def distribution(module: str) -> str:
    """The distribution of a module; of several, one that the base brings."""
    top = module.partition(".")[0]
    names = [canonicalize_name(name) for name in _distributions().get(top, [NAMES.get(top, top)])]
    return next((name for name in names if name in brought()), names[0])


def listed(file: str, table: Mapping[str, str]) -> str | None:
    """The extra of a file, by its own name or that of its folder."""
    return next((extra for path, extra in table.items() if file.startswith(path)), None)


class Edges:
    """The imports of all files under a folder, and what is wrong with them."""

    def __init__(self, root: Path) -> None:
        files = (path for package in PACKAGES for path in sorted((root / package).rglob("*.py")))
        self.imports = {
            path.relative_to(root).as_posix(): list(imports(ast.parse(path.read_text())))
            for path in files
        }
        self.used: set[str] = set()
        self._known: dict[str, bool] = {}

    def faults(self) -> list[str]:
        """A sentence for each import that the tables do not allow."""
        return [
            f"{file}:{statement.line} imports {statement.module}: {fault}"
            for file, statements in self.imports.items()
            for statement in statements
            if (fault := self._fault(file, statement)) is not None
        ]

    def _fault(self, file: str, statement: Import) -> str | None:
        module, at_head = statement.module, statement.at_head
        if module.partition(".")[0] in PACKAGES:
            needed = self._extra_of(module)
            if needed is None:
                return None
            allows, what = {needed}, f"it belongs to the extra {needed}"
        else:
            name = distribution(module)
            if module.partition(".")[0] in sys.stdlib_module_names or name in brought():
                return None
            if name in ELSEWHERE.get(file, ()):
                self.used.add(file)
                return None
            extras = project()["optional-dependencies"]
            allows = {extra for extra in extras if name in brought(extra)}
            what = f"the base does not bring {name}"
        table = MODULES if at_head else {**FUNCTIONS, **MODULES}
        if allows & set((listed(file, table) or "").split()):
            self.used.add(file)
            return None
        return f"{what}; {'import it within a function' if at_head else 'list the file'}"

    def _extra_of(self, module: str) -> str | None:
        """The extra that a module of this project needs to be imported."""
        needing = (file for file in self._files(module) if self._needs(file))
        return next((listed(file, MODULES) for file in needing), None)

    def _needs(self, file: str) -> bool:
        """Whether a file's head imports what the base does not bring, by itself or another file."""
        if file not in self._known:
            self._known[file] = False  # for a circle
            self._known[file] = any(
                self._needs_module(statement.module)
                for statement in self.imports[file]
                if statement.at_head
            )
        return self._known[file]

    def _needs_module(self, module: str) -> bool:
        top = module.partition(".")[0]
        if top not in PACKAGES:
            return top not in sys.stdlib_module_names and distribution(module) not in brought()
        return any(map(self._needs, self._files(module)))

    def _files(self, module: str) -> list[str]:
        stem = module.replace(".", "/")
        if stem.split("/")[1:2] in (["indexer"], ["trainer"]):  # folders beside searchengine
            stem = stem.removeprefix("searchengine/")
        return [file for file in (f"{stem}.py", f"{stem}/__init__.py") if file in self.imports]


def test_optional_packages_are_imported_where_they_are_promised() -> None:
    edges = Edges(REPOSITORY)
    assert edges.faults() == []
    # Nothing is listed that imports nothing optional.
    for path in (*MODULES, *FUNCTIONS, *ELSEWHERE):
        assert any(file.startswith(path) for file in edges.used), f"{path} needs no entry"


def test_the_closures_are_known() -> None:
    assert {"numpy", "tokenizers", "safetensors"} <= brought()
    heavy = {"torch", "transformers", "scipy", "scikit-learn", "matplotlib", "pandas", "pyarrow"}
    assert not heavy & brought()
    assert {"torch", "transformers", "peft"} <= brought("train")
    assert {"starlette", "pydantic"} <= brought("serve")


@pytest.mark.parametrize(
    ("file", "source", "fault"),
    [
        (
            "trainer/a.py",
            "import matplotlib",
            "trainer/a.py:1 imports matplotlib: the base does not",
        ),
        ("trainer/a.py", "try:\n  import mcp\nexcept ImportError:\n  mcp = None", "a.py:2 imports"),
        ("indexer/a.py", "class A:\n    from pandas import Series", "does not bring pandas"),
        ("indexer/a.py", "def f():\n    import pytest", "list the file"),
        ("trainer/a.py", "from sentence_transformers import X", "bring sentence-transformers"),
        ("searchengine/server/a.py", "import matplotlib", "does not bring matplotlib"),
        ("searchengine/corpus/encodings.py", "import chardet", "within a function"),
        ("searchengine/corpus/encodings.py", "def f():\n    import pgvector", "list the file"),
        ("searchengine/a.py", "import searchengine.server.app", "belongs to the extra serve"),
        ("searchengine/a.py", "from searchengine.server import app", "belongs to the extra serve"),
        ("searchengine/a.py", "def f():\n    import searchengine.server.app", "extra serve"),
        (
            "searchengine/server/app.py",
            "from searchengine.trainer.evaluation.mteb import x",
            "the extra mteb",
        ),
        ("searchengine/server/a.py", "import fastapi, starlette.responses", None),
        ("searchengine/cli/serve.py", "def f():\n    from searchengine.server import app", None),
        ("searchengine/corpus/encodings.py", "def f():\n    import chardet", None),
        ("trainer/a.py", "if TYPE_CHECKING:\n    import matplotlib", None),
        ("trainer/a.py", "import json, tokenizers, yaml, faiss, huggingface_hub", None),
    ],
)
def test_what_is_not_allowed_is_named(
    file: str, source: str, fault: str | None, tmp_path: Path
) -> None:
    modules = {
        "searchengine/server/app.py": "import fastapi",
        "trainer/evaluation/mteb.py": "import mteb",
        file: source,
    }
    for name, text in modules.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    faults = Edges(tmp_path).faults()
    assert len(faults) == (fault is not None), faults
    assert fault is None or fault in faults[0]


BLOCKED = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in "torch transformers scipy sklearn matplotlib pandas".split():
            raise ImportError(f"{name} is imported by a command of the base")

sys.meta_path.insert(0, Blocked())
import searchengine.server.app, searchengine.server.mcp_server
from searchengine.cli import cli
encoder, data = sys.argv[1:]
judged = f"--queries {data}/queries.jsonl --qrels {data}/qrels/test.tsv"
for line in (
    f"index {data} c.index --encoder {encoder}",
    *(f"search c.index whale --mode {mode}" for mode in ("vector", "text", "hybrid")),
    "similar c.index whales-01",
    "explain c.index whale whales-01",
    "list c.index",
    "info c.index",
    "index v.npy v.index",
    "tune v.index --target-recall 0.9",
    f"bench c.index {judged}",
    f"evaluate retrieval c.index {judged}",
    f"evaluate sts sts.tsv --encoder {encoder}",
    f"mine pairs.tsv --out mined.jsonl --encoder {encoder}",
):
    cli(line.split(), standalone_mode=False)
"""


def test_no_command_of_the_base_imports_what_it_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    encoder = write_model2vec(tmp_path / "static")
    words = ["dog runs", "cat sits", "whale sleeps", "bird sings"]
    rows = [f"{len(a)}\t{a}\t{a} {b}" for a in words for b in words]
    (tmp_path / "sts.tsv").write_text("\n".join(["score\tsentence1\tsentence2", *rows, ""]))
    (tmp_path / "pairs.tsv").write_text("anchor\tpositive\nthe dog\ta dog\na cat\tthe cat\n")
    np.save(tmp_path / "v.npy", np.random.default_rng(0).standard_normal((1000, 16), np.float32))
    command = [sys.executable, "-c", BLOCKED, encoder, REPOSITORY / "data"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
