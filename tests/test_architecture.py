"""What must stay true of the packages; `make check` looks at their imports."""

import ast
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import searchengine
import searchengine.indexer
import searchengine.trainer

PACKAGES = [searchengine, searchengine.indexer, searchengine.trainer]
ARROWS, FLOORS = 45, 9
"""At most so many rooms of searchengine import another, and so many stand on each other."""


def modules(package: object) -> list[Path]:
    root, *_ = package.__path__  # type: ignore[attr-defined]
    return sorted(Path(root).rglob("*.py"))


def rooms() -> Iterator[tuple[str, ast.AST]]:
    """Each statement of searchengine with its room: the folder or file directly in the package."""
    root, *_ = searchengine.__path__
    for path in modules(searchengine):
        room = path.relative_to(root).parts[0].removesuffix(".py")
        if room not in ("indexer", "trainer"):
            yield from ((room, node) for node in ast.walk(ast.parse(path.read_text())))


def imported(node: ast.AST) -> set[str]:
    """The rooms that a statement imports from."""
    if not isinstance(node, ast.Import | ast.ImportFrom):
        return set()
    prefix = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
    parts = [f"{prefix}{alias.name}.".split(".") for alias in node.names]
    root, *_ = searchengine.__path__
    named = {path.stem for path in Path(root).iterdir()}
    tops = {
        top if top in named else "__init__" for name, top, *_ in parts if name == "searchengine"
    }
    return tops - {"indexer", "trainer"}


def test_rooms_are_few_arrows_and_floors_apart() -> None:
    below: dict[str, set[str]] = {}
    for room, node in rooms():
        below.setdefault(room, set()).update(imported(node) - {room})
    assert sum(map(len, below.values())) <= ARROWS
    floors: dict[str, int] = {}
    for room in TopologicalSorter(below).static_order():  # raises for a circle
        floors[room] = 1 + max((floors[name] for name in below[room]), default=0)
    assert max(floors.values()) <= FLOORS
    assert floors["errors"] == 1 and floors["__main__"] == FLOORS


def test_nothing_but_backends_asks_which_backend_it_has() -> None:
    kinds = {"Collection", "PostgresCollection"}
    for room, node in rooms():
        if room in ("backends", "corpus"):  # corpus has threading.local
            continue
        assert not (isinstance(node, ast.Attribute) and node.attr == "local"), room
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "isinstance":
            assert not kinds & {name.id for name in ast.walk(node) if isinstance(name, ast.Name)}


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
