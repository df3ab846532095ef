"""The native libraries: faiss, and the compiled kernel with its instruction sets."""

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

_TYPES = {
    "p": ctypes.c_void_p,
    "s": ctypes.c_char_p,
    "i": ctypes.c_int,
    "l": ctypes.c_int64,
    "d": ctypes.c_double,
    "-": None,
}
_SIGNATURES = {  # the type of the result, and those of the arguments (source/interface.cpp)
    "kernel_level": "s i",
    "kernel_title": "s i",
    "kernel_open": "p pisl",
    "kernel_close": "- p",
    "kernel_search": "l ppplpipp",
    "kernel_scan": "l pplpplipp",
    "kernel_add_best": "l ipipp",
    "kernel_rerank": "l ipplipp",
    "kernel_build": "p pppiilisl",
    "kernel_divide": "l pplii",
    "kernel_group": "l pl",
    "kernel_compare": "l plli",
    "kernel_end": "l pli",
    "kernel_built": "- p",
    "kernel_best_by_words": "l plppppplddpp",
    "kernel_words_count": "l plp",
}


try:
    import faiss as _faiss
except ModuleNotFoundError as error:
    if error.name != "faiss":
        raise
    raise ImportError("faiss is not installed: pip install faiss-cpu (or faiss-gpu)") from error

faiss: Any = _faiss  # its type stubs describe the C++ side, not the Python methods laid over it

# For more queries faiss calls its own BLAS, of 2021, which takes newer processors for old ones.
faiss.cvar.distance_compute_blas_threshold = 1 << 30


@cache
def load(path: Path = LIBRARY) -> Any:
    """The compiled library, with its functions' types; None if it is missing or does not load."""
    try:
        library = ctypes.CDLL(str(path))
        for name, signature in _SIGNATURES.items():
            function, (result, arguments) = getattr(library, name), signature.split()
            function.restype = _TYPES[result]
            function.argtypes = [_TYPES[argument] for argument in arguments]
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
    if choice not in available:
        choices = ", ".join(("native", "faiss", *available))
        raise SegmentConfigError(f"{KERNEL} must be one of {choices} here, got {shown(choice)}")
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
