"""Writing JSON and model folders, and syncing files to disk."""

import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from trainer.errors import ModelError


def write_json(path: Path, value: Any) -> None:
    """Indented, in UTF-8."""
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def sync_files(folder: Path) -> None:
    """Push the files to disk, so that a rename never names a folder of unwritten ones."""
    for file in sorted(folder.rglob("*")):
        if file.is_file():
            with file.open("rb") as handle:
                os.fsync(handle.fileno())


@contextmanager
def new_folder(path: Path, keep: str | None = None) -> Iterator[Path]:
    """An empty folder to write a model to, which replaces `path` at the end of the block.

    It is beside `path` and renamed: an interrupted write leaves what was there. `keep`: the name of
    a folder inside `path` that moves to the new one. Raises ModelError where it cannot be written.
    """
    path = path.absolute()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as scratch:
            new = Path(scratch) / "new"
            new.mkdir()
            yield new
            sync_files(new)
            if path.exists():
                if keep is not None and (path / keep).is_dir():
                    (path / keep).rename(new / keep)
                path.rename(Path(scratch) / "old")
            new.rename(path)
    except Exception as error:  # tokenizers has no error of its own for a full disk
        if not isinstance(error, OSError | SafetensorError) and type(error) is not Exception:
            raise
        raise ModelError(f"the model cannot be written to {path}: {error}") from error
