"""What must stay true of the packages; `make check` looks at their imports."""

import importlib
import sys
from pathlib import Path

import pytest

import indexer
import searchengine
import trainer

PACKAGES = [searchengine, indexer, trainer]
LUMBER_ROOMS = {"utils", "helpers", "common", "misc", "core"}


def modules(package: object) -> list[Path]:
    root, *_ = package.__path__  # type: ignore[attr-defined]
    return sorted(Path(root).rglob("*.py"))


@pytest.mark.parametrize("package", PACKAGES, ids=lambda p: p.__name__)
def test_no_lumber_rooms(package: object) -> None:
    for path in modules(package):
        assert path.stem not in LUMBER_ROOMS


def test_exported_names_exist() -> None:
    for name in searchengine.__all__:
        assert getattr(searchengine, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = searchengine.nothing


def test_no_pickle() -> None:
    for package in PACKAGES:
        for path in modules(package):
            text = path.read_text()
            assert "import pickle" not in text, path
            assert "torch.load" not in text and "torch.save" not in text, path


STUBS = [
    path
    for package in PACKAGES
    for path in modules(package)
    if "deprecated" in path.parts and path.stem != "__init__"
]


@pytest.mark.parametrize("stub", STUBS, ids=lambda path: path.stem)
def test_former_names_still_import(stub: Path) -> None:
    parts = stub.with_suffix("").parts
    at = parts.index("deprecated")
    name = ".".join((parts[at - 1], *parts[at + 1 :]))
    with pytest.warns(DeprecationWarning, match=f"{name} is now "):
        former = importlib.import_module(name)
    assert former.__name__ != name
    del sys.modules[name]
