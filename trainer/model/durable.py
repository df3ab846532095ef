"""Writing JSON, and syncing files to disk."""

import json
import os
from pathlib import Path
from typing import Any


def write_json(path: Path, value: Any) -> None:
    """Indented, in UTF-8."""
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def sync_files(folder: Path) -> None:
    """Push the files to disk, so that a rename never names a folder of unwritten ones."""
    for file in sorted(folder.rglob("*")):
        if file.is_file():
            with file.open("rb") as handle:
                os.fsync(handle.fileno())
