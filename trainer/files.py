"""Files on disk: read with errors that name them, written whole or not at all, and synced.

JSON, folders, and tensors in safetensors files.
"""

import json
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from searchengine.trainer.errors import ModelError


def read_text(path: Path) -> str:
    """A text file of a model folder; ModelError names the file if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ModelError(f"{path} is missing: the model folder is incomplete") from None
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
def new_folder(path: Path, keep: Sequence[str] = ()) -> Iterator[Path]:
    """An empty folder to write a model to, which replaces `path` at the end of the block.

    It is beside `path` and renamed: an interrupted write leaves what was there. `keep`: names of
    folders inside `path` that move to the new one. Raises ModelError where it cannot be written.
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
                for part in [path / name for name in keep if (path / name).is_dir()]:
                    part.rename(new / part.name)
                path.rename(Path(scratch) / "old")
            new.rename(path)
    except Exception as error:  # tokenizers has no error of its own for a full disk
        if not isinstance(error, OSError | SafetensorError) and type(error) is not Exception:
            raise
        raise ModelError(f"the model cannot be written to {path}: {error}") from error


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


DTYPES = {
    "F64": np.float64,
    "F32": np.float32,
    "F16": np.float16,
    "BF16": np.uint16,  # its bits, which are the upper half of a float32's
    "I64": np.int64,
    "I32": np.int32,
    "I8": np.int8,
    "U8": np.uint8,
}


class Tensors:
    """The tensors of a safetensors file by name, mapped into memory by numpy alone, bfloat16 too.

    The library safetensors copies each tensor that it gives numpy, and has no bfloat16 for it.
    https://github.com/huggingface/safetensors#format. data: the bytes of all tensors.
    """

    def __init__(self, path: Path):
        """Raises ModelError for a file that is missing, cut off or of another format."""
        try:
            with safe_open(path, "numpy") as file:  # which checks the header against the file
                self.metadata: Mapping[str, str] = file.metadata() or {}
            mapped = np.memmap(path, np.uint8, "r")
        except (OSError, SafetensorError) as error:
            raise ModelError(
                f"{path} cannot be read, damaged or half downloaded: {error}"
            ) from error
        self.path = path
        start = 8 + int(mapped[:8].view("<u8")[0])
        self.data: NDArray[np.uint8] = mapped[start:]
        self._entries = json.loads(bytes(mapped[8:start]))
        self._entries.pop("__metadata__", None)
        self.shapes = {name: tuple(entry["shape"]) for name, entry in self._entries.items()}

    def __getitem__(self, name: str) -> NDArray[Any]:
        """The tensor as it is stored; bfloat16 as float32. Raises KeyError and ModelError."""
        entry = self._entries[name]
        if entry["dtype"] not in DTYPES:
            raise ModelError(f"{self.path}: {name} has the type {entry['dtype']}, not floats")
        first, last = entry["data_offsets"]
        values = self.data[first:last].view(DTYPES[entry["dtype"]]).reshape(entry["shape"])
        if entry["dtype"] == "BF16":
            return (values.astype(np.uint32) << 16).view(np.float32)
        return values

    def float32(self, name: str) -> NDArray[np.float32]:
        """The tensor as float32, mapped where it is stored so. Raises KeyError and ModelError."""
        return self[name].astype(np.float32, copy=False)


def aligned(data: bytes) -> bytes:
    """The same file, its unsigned bytes from a multiple of 64 on: the length of a cache line."""
    size = int.from_bytes(data[:8], "little")
    entries = json.loads(data[8 : 8 + size])
    weights = (entry for entry in entries.values() if entry.get("dtype") == "U8")
    first = min((entry["data_offsets"][0] for entry in weights), default=0)
    padding = -(8 + size + first) % 64
    start = (size + padding).to_bytes(8, "little")
    return start + data[8 : 8 + size] + b" " * padding + data[8 + size :]
