"""Loading the compiled kernel, and choosing the instruction set that it runs with."""

import ctypes
import os
from functools import cache
from pathlib import Path
from typing import Any

from searchengine.indexer.errors import SegmentConfigError, shown
from searchengine.indexer.native.compiler import LIBRARY

KERNEL = "SEARCHENGINE_KERNEL"
"""Environment variable that chooses the kernel of segments built or opened afterwards: `native`,
which is the default, one level of it (`scalar`, `avx2`, `avx512vnni`, `neon`), or `faiss`."""

LEVELS = ("avx512vnni", "avx2", "neon", "scalar")

_POINTER, _INT, _LONG = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64
_SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "kernel_level": (ctypes.c_char_p, [_INT]),
    "kernel_title": (ctypes.c_char_p, [_INT]),
    "kernel_open": (_POINTER, [_POINTER, _INT, ctypes.c_char_p, _LONG]),
    "kernel_close": (None, [_POINTER]),
    "kernel_search": (
        _LONG,
        [_POINTER, _POINTER, _POINTER, _LONG, _POINTER, _INT, _POINTER, _POINTER],
    ),
    "kernel_scan": (
        _LONG,
        [_POINTER, _POINTER, _LONG, _POINTER, _POINTER, _LONG, _INT, _POINTER, _POINTER],
    ),
    "kernel_add_best": (_LONG, [_INT, _POINTER, _INT, _POINTER, _POINTER]),
    "kernel_rerank": (_LONG, [_INT, _POINTER, _POINTER, _LONG, _INT, _POINTER, _POINTER]),
    "kernel_build": (
        _POINTER,
        [_POINTER, _POINTER, _POINTER, _INT, _INT, _LONG, _INT, ctypes.c_char_p, _LONG],
    ),
    "kernel_divide": (_LONG, [_POINTER, _POINTER, _LONG, _INT, _INT]),
    "kernel_group": (_LONG, [_POINTER, _LONG]),
    "kernel_compare": (_LONG, [_POINTER, _LONG, _LONG, _INT]),
    "kernel_end": (_LONG, [_POINTER, _LONG, _INT]),
    "kernel_built": (None, [_POINTER]),
    "kernel_best_by_words": (
        _LONG,
        [_POINTER, _LONG, *[_POINTER] * 5, _LONG, *[ctypes.c_double] * 2, _POINTER, _POINTER],
    ),
    "kernel_words_count": (_LONG, [_POINTER, _LONG, _POINTER]),
}


@cache
def load(path: Path = LIBRARY) -> Any:
    """The compiled library, with its functions' types; None if it is missing or does not load."""
    try:
        library = ctypes.CDLL(str(path))
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
    except (OSError, AttributeError):  # another platform's library, or one of another version
        return None
    return library


def levels() -> list[str]:
    """The levels that this machine can run, the best first; none without a compiled library."""
    library = load()
    names: list[str] = []
    while library is not None and (name := library.kernel_level(len(names))):
        names.append(name.decode())
    return names


def chosen_level() -> int | None:
    """The number of the level to search with; None to search with faiss.

    Raises:
        SegmentConfigError: the environment asks for a level that is unknown or not available.
    """
    choice = os.environ.get(KERNEL) or "native"
    available = levels()
    if choice == "faiss" or (choice == "native" and not available):
        return None
    if choice == "native":
        return 0
    if choice not in LEVELS:
        choices = ", ".join(("native", "faiss", *LEVELS))
        raise SegmentConfigError(f"{KERNEL} must be one of {choices}, got {shown(choice)}")
    if choice not in available:
        here = ", ".join(("native", "faiss", *available)) if available else "native or faiss"
        raise SegmentConfigError(
            f"{KERNEL}={choice} is not available on this machine; set it to {here}"
        )
    return available.index(choice)


def description() -> str:
    """The library that searches graphs, in one line.

    Raises:
        SegmentConfigError: as `chosen_level`.
    """
    level = chosen_level()
    if level is not None:
        return f"native, {load().kernel_title(level).decode()}"
    if levels():
        return f"faiss (chosen by {KERNEL})"
    return "faiss (no compiled kernel: reinstall with a C++ compiler)"
