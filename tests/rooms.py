"""Print the size of each room of the house: its lines now, its budget, its target.

python tests/rooms.py             # the table
python tests/rooms.py --lower     # lower each figure of budgets.toml to what is there now

A room is a folder, or the files directly in one. Its size is all lines of Python, as `ruff format`
leaves them.
"""

import ast
import io
import sys
import tokenize
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

REPOSITORY = Path(__file__).resolve().parents[1]
BUDGETS = REPOSITORY / "budgets.toml"
PACKAGES = ("searchengine", "indexer", "trainer")


class Budget(NamedTuple):
    """A row of budgets.toml: the most that a room may have, and what it is to come to."""

    most: int
    target: int


def budgets(text: str | None = None) -> dict[str, Budget]:
    """The rows of budgets.toml, or of another text of it."""
    table = tomllib.loads(BUDGETS.read_text() if text is None else text)
    return {name: Budget(**row) for name, row in table.items()}


def python(*folders: str) -> list[Path]:
    """The Python files under folders of the repository; links are not followed."""
    return [path for folder in folders for path in sorted((REPOSITORY / folder).rglob("*.py"))]


def lines(paths: Iterable[Path]) -> int:
    """Lines in all of the files."""
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in paths)


def words(paths: Iterable[Path]) -> int:
    """Words in all of the files."""
    return sum(len(path.read_text(encoding="utf-8").split()) for path in paths)


def measure() -> dict[str, int]:
    """What each row of budgets.toml counts, now."""
    package = REPOSITORY / "searchengine"
    rooms = [path.name for path in sorted(package.iterdir()) if not path.is_symlink()]
    sizes = {"searchengine/*.py": lines(package.glob("*.py"))}
    for room in rooms:
        if files := python(f"searchengine/{room}"):
            sizes[f"searchengine/{room}"] = lines(files)
    page = package / "server" / "page"
    sizes["searchengine/server/page"] = lines(
        path for path in page.iterdir() if path.suffix in (".html", ".js", ".css")
    )
    sizes |= {folder: lines(python(folder)) for folder in ("indexer", "trainer")}
    sizes["packages"] = lines([*python(*PACKAGES), REPOSITORY / "hatch_build.py"])
    sizes["files of packages"] = len(python(*PACKAGES))
    for folder in ("indexer", "trainer"):
        sources = REPOSITORY / folder / "native" / "source"
        sizes[f"C++ of {folder}"] = lines(sources.iterdir())
    sizes |= {folder: lines(python(folder)) for folder in ("tests", "benchmarks")}
    docs = (REPOSITORY / "docs").glob("*.md")
    by_hand = [path for path in docs if path.name != "cli.md"]
    sizes["words of docs"] = words(
        [*by_hand, REPOSITORY / "README.md", REPOSITORY / "CONTRIBUTING.md"]
    )
    return sizes


def explained(path: Path) -> Iterator[int]:
    """The lines of a file that hold a docstring or nothing but a comment."""
    source = path.read_text(encoding="utf-8")
    for node in ast.walk(ast.parse(source)):
        body = getattr(node, "body", None)
        for statement in body if isinstance(body, list) else []:
            value = getattr(statement, "value", None)
            if isinstance(statement, ast.Expr) and isinstance(getattr(value, "value", None), str):
                yield from range(statement.lineno, (statement.end_lineno or 0) + 1)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and token.line.lstrip().startswith("#"):
            yield token.start[0]


def share_explained(*folders: str) -> float:
    """The share of lines that are docstrings and comments, 0–1."""
    files = python(*folders)
    return sum(len(set(explained(path))) for path in files) / max(lines(files), 1)


def lowered(text: str, sizes: dict[str, int]) -> str:
    """The text of budgets.toml with no figure above the size now, without rooms that are gone."""
    rows = []
    for row in text.splitlines():
        name = row.partition(" = ")[0].strip('"')
        if (budget := budgets(text).get(name)) is None:
            rows.append(row)
        elif name in sizes:
            rows.append(
                f'"{name}" = {{ most = {min(sizes[name], budget.most)}, target = {budget.target} }}'
            )
    return "\n".join(rows) + "\n"


def main(arguments: list[str]) -> None:
    sizes = measure()
    if arguments == ["--lower"]:
        BUDGETS.write_text(lowered(BUDGETS.read_text(), sizes))
    print(f"{'room':26} {'now':>7} {'budget':>7} {'target':>7}")
    for name, budget in budgets().items():
        print(f"{name:26} {sizes[name]:7,} {budget.most:7,} {budget.target:7,}")
    print("\nshare of docstrings and comments")
    for folder in PACKAGES:
        print(f"{folder:26} {share_explained(folder):7.1%}")


if __name__ == "__main__":
    main(sys.argv[1:])
