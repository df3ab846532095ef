"""What must stay true of the packages; `make check` looks at their imports."""

from pathlib import Path

import pytest

import searchengine
import searchengine.indexer
import searchengine.trainer

PACKAGES = [searchengine, searchengine.indexer, searchengine.trainer]
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
