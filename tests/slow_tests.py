"""Name the tests that `make test-quick` leaves out: the slowest ones of a run.

pytest --junitxml=run.xml; python tests/slow_tests.py run.xml    # writes slow_tests.txt
"""

import sys
from collections import defaultdict
from pathlib import Path
from xml.etree import ElementTree

LISTED = Path(__file__).with_suffix(".txt")
BUDGET = 18.0
"""Seconds of one processor for all tests that stay; starting and collecting take twice as long."""


def slowest(report: Path, budget: float = BUDGET) -> list[str]:
    """The functions "folder/test_file.py::test" that do not fit, of a JUnit report of pytest.

    A function counts with all its parameters. The fastest ones stay."""
    seconds = defaultdict[str, float](float)
    for case in ElementTree.parse(report).iter("testcase"):
        module, *_ = case.get("classname", "").removeprefix("tests.").split(".Test")
        module = module.replace(".", "/")
        function = case.get("name", "").partition("[")[0]
        seconds[f"{module}.py::{function}"] += float(case.get("time", 0))
    total, names = 0.0, sorted(seconds, key=lambda name: (seconds[name], name))
    for place, name in enumerate(names):
        total += seconds[name]
        if total > budget:
            return sorted(names[place:])
    return []


if __name__ == "__main__":
    LISTED.write_text("".join(f"{name}\n" for name in slowest(Path(sys.argv[1]))), encoding="utf-8")
