"""Parts of the site: pictures drawn from the import contracts, API pages, contents."""

import ast
import importlib.util
import re
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from types import ModuleType

import pytest
from conftest import REPOSITORY

DOCS = REPOSITORY / "docs"
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def drawing() -> ModuleType:
    return script("draw_architecture")


@pytest.fixture(scope="module")
def api() -> ModuleType:
    return script("write_api")


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # NamedTuple looks its module up
    spec.loader.exec_module(module)
    return module


def texts(picture: str, style: str) -> list[str]:
    found = ElementTree.fromstring(picture).iter(f"{SVG}text")
    return [text.text or "" for text in found if text.get("class") == style]


def test_every_layer_is_drawn_from_the_top(drawing: ModuleType) -> None:
    assert list(drawing.contracts()) == ["searchengine", "trainer", "indexer"]
    for container, layers in drawing.contracts().values():
        names = texts(drawing.draw(container, layers), "name")
        assert names == [name.strip() for layer in layers for name in layer.split("|")]


def test_every_folder_of_a_package_is_drawn(drawing: ModuleType) -> None:
    for name in ("searchengine", "trainer", "indexer"):
        names = set(texts(drawing.draw(*drawing.contracts()[name]), "name"))
        inside = {path.stem for path in (REPOSITORY / name).iterdir() if path.suffix == ".py"}
        inside |= {path.parent.name for path in (REPOSITORY / name).glob("*/__init__.py")}
        inside |= {"indexer", "trainer"} if name == "searchengine" else set()
        assert names == inside - {"__init__"}


def test_text_stays_inside_its_box(drawing: ModuleType) -> None:
    for container, layers in drawing.contracts().values():
        tree = ElementTree.fromstring(drawing.draw(container, layers))
        height = float(tree.get("height", ""))
        boxes = [box for box in tree.iter(f"{SVG}rect") if box.get("class") == "box"]
        assert max(float(box.get("y", "")) + float(box.get("height", "")) for box in boxes) < height
        places = [[float(box.get(k, "")) for k in ("x", "y", "width", "height")] for box in boxes]
        for text in tree.iter(f"{SVG}text"):
            left, baseline = float(text.get("x", "")), float(text.get("y", ""))
            if text.text == "imports go down":
                continue
            (room,) = [
                width - 2 * drawing.PADDING
                for x, y, width, tall in places
                if x < left < x + width and y < baseline < y + tall
            ]
            assert len(text.text or "") * 5.5 <= room, text.text


def test_the_docstring_is_what_is_drawn(drawing: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "attic").mkdir()
    (tmp_path / "attic" / "__init__.py").write_text('"""Old <things>.\n\nMore."""')
    (tmp_path / "attic" / "box.py").write_text("")
    assert drawing.box(tmp_path, "attic") == ("attic", "Old <things>.", "box")
    (tmp_path / "cellar.py").write_text("x = 1")
    with pytest.raises(ValueError, match=r"cellar.py needs a docstring"):
        drawing.box(tmp_path, "cellar")


def test_stored_pictures_are_current(
    drawing: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert drawing.main(["--check"]) == 0
    monkeypatch.setattr(drawing, "PICTURES", tmp_path)
    assert drawing.main(["--check"]) == 1
    assert "searchengine.svg, trainer.svg" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
    assert drawing.main([]) == 0
    assert drawing.main(["--check"]) == 0


def test_the_pages_of_the_api_are_written(
    api: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "API", tmp_path / "api")
    api.main()
    assert {page.stem for page in (tmp_path / "api").iterdir()} == {*api.PAGES, "index"}
    engine = (tmp_path / "api" / "engine.md").read_text()
    assert engine.startswith("# searchengine\n\n## SearchEngine\n")
    assert "\n### SearchEngine.search\n" in engine


CLASS = """
class Shelf(Base):
    '''Books.

    Attributes:
        size: metres, of
            all boards.
    '''

    size: float = 1.0
    _hidden = 1

    @property
    def full(self) -> bool: ...

    @overload
    def get(self, key: str) -> "Shelf": ...
    @overload
    def get(self, key: int, *, deep: bool = False) -> None: ...
    def get(self, key: Any, **more: Any) -> Any:
        '''A book.'''

    def put(
        self, a_long_name: Sequence[str], another_very_long_name: int, /, third: int | None = None
    ): ...
"""


def test_a_class_as_markdown(api: ModuleType) -> None:
    (node,) = ast.parse(CLASS).body
    expected = """## Shelf

```python
class Shelf(Base):
    size: float = 1.0
```

Books.

**Attributes**

* `size`: metres, of
    all boards.

### Shelf.full

```python
full: bool
```

### Shelf.get

```python
get(key: str) -> Shelf
get(key: int, *, deep: bool = False) -> None
```

A book.

### Shelf.put

```python
put(
    a_long_name: Sequence[str],
    another_very_long_name: int,
    /,
    third: int | None = None,
)
```"""
    assert "\n\n".join(filter(None, api.class_parts(node, "##", ""))) == expected


def test_files_that_pages_name_are_there() -> None:
    for page in (REPOSITORY / "CONTRIBUTING.md", *DOCS.glob("*.md")):
        named = r"`((?:searchengine|trainer|indexer|tests|benchmarks|docs)/[\w./-]+)`"
        for name in re.findall(named, page.read_text()):
            assert (REPOSITORY / name).exists(), (page.name, name)


def test_every_page_is_in_the_contents() -> None:
    contents = (DOCS / "index.md").read_text()
    for page in DOCS.glob("*.md"):
        listed = rf"^{page.stem}$|<{page.stem}>$"
        assert page.stem == "index" or re.search(listed, contents, re.MULTILINE), page.name
