"""One import name: files of a user that are called like ours do not disturb the package."""

import subprocess
import sys
from pathlib import Path

import pytest
from conftest import REPOSITORY

PROGRAM = """
import indexer, trainer
assert indexer.MINE and trainer.MINE
from searchengine import Encoder, Goal, SearchEngine, TrainConfig, train
from searchengine.indexer.segment import Segment
assert Encoder.__module__ == "searchengine.trainer.encoder"
print(Segment.__module__)
"""


@pytest.mark.long
def test_files_of_the_user_with_the_names_of_our_folders(tmp_path: Path) -> None:
    for name in ("indexer", "trainer"):
        (tmp_path / f"{name}.py").write_text("MINE = True\n")
    (tmp_path / "program.py").write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, tmp_path / "program.py"],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(REPOSITORY), "PATH": ""},
    )
    assert done.stdout == "searchengine.indexer.segment\n", done.stderr


def test_a_module_has_one_name() -> None:
    program = """
import sys
from searchengine import SearchEngine, train
import searchengine.indexer.segment
files = {name: str(getattr(module, "__file__", "")) for name, module in sys.modules.items()}
print(*(name for name, file in files.items() if file.endswith("indexer/segment.py")))
print(*(name for name in files if name.partition(".")[0] in ("indexer", "trainer")))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=REPOSITORY
    )
    assert done.stdout == "searchengine.indexer.segment\n\n", done.stderr
