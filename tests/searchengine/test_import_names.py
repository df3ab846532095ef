"""One import name: files of a user that are called like ours do not disturb the package."""

import subprocess
import sys
from pathlib import Path

from conftest import REPOSITORY

PROGRAM = """
import indexer, trainer
assert indexer.MINE and trainer.MINE
from searchengine import Encoder, Goal, SearchEngine, TrainConfig, train
from searchengine.indexer.segment import Segment
assert Encoder.__module__ == "searchengine.trainer.encoder"
print(Segment.__module__)
"""


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
