"""The README's first command as a newcomer runs it: `make demo` in a fresh clone.

    make demo-check

The other tests run where everything is installed, and cannot see that the demo needs a package that
it does not install. Here the last commit is cloned into a folder whose path has a space. The clone
has no `.venv`, the home is empty, and of the variables only those stay that find programs and
packages. Then the output must have the answers and the table, and `.venv` nothing from the extras
that the demo does not install. Only the standard library is imported: nothing else is there yet.
"""

import os
import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
# The questions of searchengine demo, and the document that must be the first hit of each.
ANSWERS = {
    "do dolphins ever lose consciousness completely when they rest?": "whales-01",
    "why is my loaf dense and gummy in the middle": "bread-19",
    "what keeps a table small when rows are updated all day": "databases-06",
}
TABLE = "Operating points, compared with exact search"
COLUMNS = 6
KEPT = re.compile(r"(?i)PATH|TERM|LANG|LC_\w+|(PIP|SSL|OPENBLAS)_\w+|REQUESTS_CA_BUNDLE|\w+_PROXY")
# Required by the package of the starter encoder.
REQUIRED = {"sentence-transformers", "scikit-learn", "scipy"}


def faults(output: str) -> list[str]:
    """What is missing from the output of the demo, a sentence each."""
    found = []
    lines = [line.strip() for line in output.splitlines()]
    for question, key in ANSWERS.items():
        if question not in lines:
            found.append(f"the question is missing: {question}")
            continue
        after = lines[lines.index(question) + 1 :]
        if not (after and re.match(rf"0\.\d{{3}}  {key}  \S", after[0])):
            found.append(f"the first hit of {question!r} is not {key}")
    rows = table_rows(lines)
    if not rows:
        found.append(f"the table is missing: {TABLE}")
    elif rows[0][1:2] != ["exact"] or len(rows) < 2:
        found.append("the table does not compare an operating point with exact search")
    elif any(len(row) != COLUMNS or not all(map(is_number, row[2:])) for row in rows):
        found.append(f"the table has a row without {COLUMNS - 2} figures")
    return found


def table_rows(lines: list[str]) -> list[list[str]]:
    """The cells of each row of the table, without its head."""
    start = next((i for i, line in enumerate(lines) if line.startswith(TABLE)), len(lines))
    rows = [line for line in lines[start:] if line.startswith("│")]
    return [[cell.strip() for cell in row.strip("│").split("│")] for row in rows]


def is_number(text: str) -> bool:
    """Whether a cell is a number, perhaps with its interval behind it."""
    try:
        float(text.partition(" (")[0])
    except ValueError:
        return False
    return True


def superfluous(environment: Path, project: dict[str, object]) -> set[str]:
    """The distributions of `.venv` that only extras which the demo does not install ask for."""
    extras = project["optional-dependencies"]
    assert isinstance(extras, dict)
    others = {
        distribution(requirement)
        for extra, requirements in extras.items()
        if extra not in ("starter", "train")
        for requirement in requirements
    }
    installed = {
        distribution(path.name.split("-")[0])
        for path in environment.glob("lib/python3*/site-packages/*.dist-info")
    }
    assert "torch" in installed, f"{environment} has no torch: were its packages looked for?"
    return installed & others - REQUIRED - {"searchengine"}


def distribution(requirement: str) -> str:
    """The normalized name in a requirement such as `psycopg[binary]>=3.2`."""
    match = re.match(r"[\w.-]+", requirement)
    assert match, requirement
    return re.sub(r"[-_.]+", "-", match[0]).lower()


def empty_environment(home: Path) -> dict[str, str]:
    """The variables that find programs and packages, and an empty home."""
    variables = {name: value for name, value in os.environ.items() if KEPT.fullmatch(name)}
    settings = Path.home() / ".config" / "pip" / "pip.conf"
    if settings.is_file():
        variables.setdefault("PIP_CONFIG_FILE", str(settings))
    ask = [sys.executable, "-m", "pip", "cache", "dir"]
    cache = subprocess.run(ask, capture_output=True, text=True).stdout.strip()
    if cache:
        variables.setdefault("PIP_CACHE_DIR", cache)
    return {**variables, "HOME": str(home)}


def run_demo(clone: Path, home: Path) -> tuple[int, str]:
    """The exit status of `make demo`, and its output, which is shown meanwhile."""
    with subprocess.Popen(
        ["make", "demo"],
        cwd=clone,
        env=empty_environment(home),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        assert process.stdout is not None
        output = []
        for line in process.stdout:
            print(line, end="", flush=True)
            output.append(line)
    return process.returncode, "".join(output)


def main() -> None:
    """Clone, run the demo, and exit with what is wrong."""
    with tempfile.TemporaryDirectory(prefix="first contact ") as folder:
        clone, home = Path(folder, "clone"), Path(folder, "home")
        home.mkdir()
        subprocess.run(["git", "clone", "--quiet", REPOSITORY, clone], check=True)
        status, output = run_demo(clone, home)
        found = faults(output)
        if status:
            found.insert(0, f"make demo ended with exit status {status}")
        else:
            project = tomllib.loads((clone / "pyproject.toml").read_text())["project"]
            names = superfluous(clone / ".venv", project)
            found += [f".venv has {name}, which the demo must not need" for name in sorted(names)]
    if found:
        sys.exit("\n".join(["The demo fails in an empty environment:", *found]))
    print("The demo works in an empty environment: it shows the answers and the table.")


if __name__ == "__main__":
    main()
