"""A safetensors file, mapped into memory by numpy alone, bfloat16 included.

The library safetensors copies each tensor that it gives numpy, and has no bfloat16 for it.
https://github.com/huggingface/safetensors#format
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from searchengine.trainer.errors import ModelError

Array = NDArray[Any]
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
    """The tensors of a file, by name.

    Attributes:
        path: of the file.
        shapes: of each tensor.
        metadata: strings by name.
        data: the bytes of all tensors.
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

    def __getitem__(self, name: str) -> Array:
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
