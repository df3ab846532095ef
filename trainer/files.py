"""Files on disk: written whole or not at all, synced, with remembered checksums.

A file can get other content and keep its size and time of change. Reading all of a model to see
that takes longer than answering a question, so a checksum is remembered, outside the model's
folder, with the file's inode, size and times. One of these no program can set back: the time of
the last change of status (ctime).
"""

import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self

from safetensors import SafetensorError

from searchengine.errors import FORBIDDEN
from searchengine.trainer.errors import ModelError

CHECKSUMS = "checksums.json"
# A file changed this recently (ns) may change again within one tick of the clock: it is read again.
SETTLED = 1_000_000_000


def read_text(path: Path) -> str:
    """A text file of a model folder; ModelError names the file if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ModelError(f"{path} is missing: the model folder is incomplete") from None
    except PermissionError as error:
        raise ModelError(f"{path}: {FORBIDDEN}") from error
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} cannot be read: {error}") from error


def read_json(path: Path) -> Any:
    """A JSON file of a model folder; ModelError names the file if it is not one."""
    text = read_text(path)
    try:
        return json.loads(text)
    except ValueError as error:
        raise ModelError(f"{path} cannot be read as JSON: {error}") from error


def read_object(path: Path, *, optional: bool = False) -> dict[str, Any]:
    """A JSON object; {} for an optional file that is not there."""
    if optional and not path.is_file():
        return {}
    value = read_json(path)
    if not isinstance(value, dict):
        raise ModelError(f"{path} holds a {type(value).__name__}: expected an object")
    return value


def write_json(path: Path, value: Any) -> None:
    """Indented, in UTF-8."""
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def sync_files(folder: Path) -> None:
    """Push the files to disk, so that a rename never names a folder of unwritten ones.

    Each gets the permissions of its folder: safetensors makes files that nobody else can read.
    """
    for file in sorted(folder.rglob("*")):
        if file.is_file():
            with file.open("rb") as handle:
                file.chmod(file.parent.stat().st_mode & 0o666)
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


class Checksums:
    """sha256 of files, remembered in a folder when the block ends; None remembers nothing."""

    def __init__(self, folder: Path | None):
        self._path = None if folder is None else folder / CHECKSUMS
        self._known: dict[str, list[Any]] = {}
        self._changed = False

    def __enter__(self) -> Self:
        with suppress(OSError, ValueError):
            known = json.loads(self._path.read_bytes()) if self._path else None
            self._known = known if isinstance(known, dict) else {}
        return self

    def __exit__(self, *_: object) -> None:
        if self._path is None or not self._changed:
            return
        present = {name: known for name, known in self._known.items() if os.path.exists(name)}
        with suppress(OSError):  # read-only, or full: the files are read again
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_at_once(self._path, json.dumps(present).encode())

    def of(self, path: Path) -> str:
        """In hex; "" if the file is gone."""
        name = str(path.absolute())
        try:
            known = self._known.get(name)
            if isinstance(known, list) and known[:-1] == file_state(os.stat(path)):
                return str(known[-1])
            with path.open("rb") as file:
                before = os.fstat(file.fileno())
                digest = hashlib.file_digest(file, "sha256").hexdigest()
                same = file_state(os.fstat(file.fileno())) == file_state(before)
        except OSError:
            return ""
        if same and time.time_ns() - before.st_ctime_ns > SETTLED:
            self._known[name] = [*file_state(before), digest]
            self._changed = True
        return digest


def file_state(stat: os.stat_result) -> list[int]:
    """Changes when the content of a file does: inode, size and times (ns)."""
    return [stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns]


def user_cache() -> Path | None:
    """This user's folder for what can be computed again; None where there is no home."""
    place = os.environ.get("XDG_CACHE_HOME")
    try:
        home = Path(place) if place else Path.home() / ".cache"
    except RuntimeError:
        return None
    return home / "searchengine"


def write_at_once(path: Path, content: bytes) -> None:
    """Write a whole file or nothing, readable by this user alone. Raises OSError."""
    handle, scratch = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.replace(scratch, path)
    except BaseException:
        os.unlink(scratch)
        raise


def remove_folder(path: Path) -> None:
    """Remove a folder of ours and everything in it; nothing to do if it is not there."""
    if path.exists():
        shutil.rmtree(path)
