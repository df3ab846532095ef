"""Draw each package's folders as an SVG picture, from the import contracts in pyproject.toml.

A picture shows one contract of the type `layers`: the highest layer on top, imports go down. Each
box holds the name of a folder or file, the first sentence of its docstring, and the files in it.

    python docs/draw_architecture.py           # write docs/pictures/*.svg
    python docs/draw_architecture.py --check   # exit with 1 if a picture is out of date
"""

import ast
import sys
import textwrap
import tomllib
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import NamedTuple

REPOSITORY = Path(__file__).resolve().parents[1]
PICTURES = REPOSITORY / "docs" / "pictures"

WIDTH, MARGIN, GAP, PADDING = 760, 40, 10, 12  # pixels
LINE = 17
CHARACTER = 6.7  # pixels of an average character at 13 px, on the safe side
SERIFLESS = "system-ui, -apple-system, 'Segoe UI', Roboto, Helvetica, Arial, sans-serif"
MONOSPACE = "ui-monospace, 'SF Mono', Menlo, Consolas, 'DejaVu Sans Mono', monospace"


class Box(NamedTuple):
    """One folder or file: its name, the first sentence of its docstring, the names in it."""

    name: str
    summary: str
    contents: str


def contracts() -> dict[str, tuple[str, list[str]]]:
    """Picture name → (folder that holds the layers, layers from the top), for every package."""
    settings = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"]["importlinter"]
    layered = [contract for contract in settings["contracts"] if contract["type"] == "layers"]
    folders = [contract["containers"][0].rpartition(".")[2] for contract in layered]
    return {
        folder: (folder, contract["layers"])
        for folder, contract in zip(folders, layered, strict=True)
    }


def box(parent: Path, name: str) -> Box:
    """Read one layer. Raises ValueError if its docstring is missing."""
    folder = parent / name
    source = folder / "__init__.py" if folder.is_dir() else parent / f"{name}.py"
    docstring = ast.get_docstring(ast.parse(source.read_text(encoding="utf-8")))
    if not docstring:
        raise ValueError(f"{source} needs a docstring: its first sentence is drawn")
    summary = " ".join(docstring.split("\n\n")[0].split())
    return Box(name, summary, ", ".join(_names(folder)) if folder.is_dir() else "")


def _names(folder: Path) -> Iterator[str]:
    for path in sorted(folder.iterdir()):
        if path.is_dir() and (path / "__init__.py").exists():
            yield f"{path.name}/"
        elif path.suffix == ".py" and path.stem != "__init__":
            yield path.stem


def rows(container: str, layers: list[str]) -> list[list[Box]]:
    """The boxes of a contract: one row per layer, siblings side by side."""
    parent = REPOSITORY / container
    return [[box(parent, name.strip()) for name in layer.split("|")] for layer in layers]


def draw(container: str, layers: list[str]) -> str:
    """The SVG text of one contract."""
    parts: list[str] = []
    y = MARGIN
    for row in rows(container, layers):
        width = (WIDTH - 2 * MARGIN - GAP * (len(row) - 1)) / len(row)
        texts = [_lines(each, width) for each in row]
        height = max(len(lines) for lines in texts) * LINE + 2 * PADDING - 4
        for column, lines in enumerate(texts):
            x = MARGIN + column * (width + GAP)
            parts.append(
                f'<rect x="{x:g}" y="{y}" width="{width:g}" height="{height}" rx="6" class="box"/>'
            )
            for number, (style, text) in enumerate(lines):
                baseline = y + PADDING + 11 + number * LINE
                place = f'x="{x + PADDING:g}" y="{baseline}"'
                parts.append(f'<text {place} class="{style}">{escape(text)}</text>')
        y += height + GAP
    bottom = y - GAP
    parts += [
        f'<path d="M18 {MARGIN} V{bottom - 8}" class="arrow"/>',
        f'<path d="M13 {bottom - 10} L18 {bottom} L23 {bottom - 10} Z" class="head"/>',
        f'<text x="18" y="{MARGIN - 14}" class="files">imports go down</text>',
    ]
    return _page(f"The package {container}", bottom + 20, parts)


def _lines(each: Box, width: float) -> list[tuple[str, str]]:
    """(style, text) of every line in a box of this width."""
    characters = int((width - 2 * PADDING) / CHARACTER)
    lines = [("name", each.name)]
    lines += [("summary", line) for line in textwrap.wrap(each.summary, characters)]
    lines += [("files", line) for line in textwrap.wrap(each.contents, int(characters * 1.08))]
    return lines


def _page(title: str, height: int, parts: list[str]) -> str:
    body = "\n".join(parts)
    return f"""\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" \
width="{WIDTH}" height="{height}" role="img" aria-label="{title}">
<style>
.page {{ fill: #ffffff }}
.box {{ fill: #f3f6fa; stroke: #9fb3c8 }}
.name {{ font: 600 13px {MONOSPACE}; fill: #102a43 }}
.summary {{ font: 13px {SERIFLESS}; fill: #243b53 }}
.files {{ font: 12px {SERIFLESS}; fill: #627d98 }}
.arrow {{ stroke: #627d98; stroke-width: 1.5; fill: none }}
.head {{ fill: #627d98 }}
</style>
<rect class="page" width="{WIDTH}" height="{height}" rx="8"/>
{body}
</svg>
"""


def main(arguments: list[str]) -> int:
    """Write the pictures, or compare them with those that are stored."""
    outdated = []
    for name, (container, layers) in contracts().items():
        path, picture = PICTURES / f"{name}.svg", draw(container, layers)
        if path.exists() and path.read_text(encoding="utf-8") == picture:
            continue
        outdated.append(path)
        if "--check" not in arguments:
            path.parent.mkdir(exist_ok=True)
            path.write_text(picture, encoding="utf-8")
    if "--check" in arguments and outdated:
        names = ", ".join(path.name for path in outdated)
        sys.stderr.write(f"out of date: {names}; run make generate\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
