"""A part of the sample data, for tests that run what works on all of it."""

import re
import shutil
from pathlib import Path

from searchengine.cli.demo import sample_folder

SUBJECTS = re.compile('"(whales|bread|databases|coffee|sleep)-')
DOCUMENTS = 105
QUESTIONS = 20


def write_small_sample(folder: Path) -> Path:
    """The subjects of the demo's questions, and enough others for its longest shortlist."""
    shutil.copytree(sample_folder(), folder)
    lines = (folder / "corpus.jsonl").read_text().splitlines(keepends=True)
    chosen = [line for line in lines if SUBJECTS.search(line)]
    assert len(chosen) == DOCUMENTS
    (folder / "corpus.jsonl").write_text("".join(chosen))
    questions = (folder / "queries.jsonl").read_text().splitlines(keepends=True)
    (folder / "queries.jsonl").write_text("".join(questions[:QUESTIONS]))
    return folder
