"""Loading the compiled encoder, with the types of what it is given; see source/network.h."""

import ctypes
from functools import cache
from pathlib import Path
from typing import Any

LIBRARY = Path(__file__).with_name("kernel.so")
# The levels that add two products of bytes in 16 bits, and their bits of a digit without its sign.
NARROW = {"avx512bw": 6, "avx2": 6}
WIDE = 7

_INT, _POINTER = ctypes.c_int32, ctypes.c_void_p


class CLinear(ctypes.Structure):
    """x · weight + bias."""

    _fields_ = (
        *((name, _INT) for name in ("input", "digits", "output")),
        *((name, _POINTER) for name in ("weights", "scales", "bias", "sums", "shares", "channels")),
    )


class CNorm(ctypes.Structure):
    """Layer normalisation."""

    _fields_ = (("weight", _POINTER), ("bias", _POINTER))


class CLayer(ctypes.Structure):
    """One layer."""

    _fields_ = (
        *((name, CLinear) for name in ("attention", "attended", "inner", "outer")),
        *((name, CNorm) for name in ("first_norm", "second_norm")),
    )


class CNetwork(ctypes.Structure):
    """A network."""

    _fields_ = (
        *((name, _INT) for name in ("width", "heads", "layers", "inner", "bits")),
        ("epsilon", ctypes.c_float),
        *((name, _POINTER) for name in ("words", "word_scales", "positions")),
        ("norm", CNorm),
        ("layer", ctypes.POINTER(CLayer)),
    )


class CTexts(ctypes.Structure):
    """Texts, and where their vectors go."""

    _fields_ = (
        *((name, _POINTER) for name in ("tokens", "lengths")),
        ("count", _INT),
        *((name, _POINTER) for name in ("cls", "means", "maxima")),
    )


class CWordPiece(ctypes.Structure):
    """A vocabulary; see source/wordpiece.h."""

    _fields_ = (
        ("bytes", ctypes.c_char_p),
        *((name, _POINTER) for name in ("lengths", "ids")),
        *((name, _INT) for name in ("count", "added", "unknown", "longest_word", "start", "end")),
    )


@cache
def load(path: Path = LIBRARY) -> Any:
    """The compiled library; None if it is missing or does not load."""
    try:
        library = ctypes.CDLL(str(path))
        library.encoder_level.restype = ctypes.c_char_p
        library.wordpiece_new.restype = _POINTER
        library.wordpiece_free.argtypes = [_POINTER]
        arrays = (_POINTER, ctypes.c_int, ctypes.c_int, _POINTER, _POINTER, ctypes.c_int)
        library.wordpiece_run.argtypes = [_POINTER, ctypes.c_char_p, *arrays]
    except (OSError, AttributeError):  # another platform's library, or one of another version
        return None
    return library


def levels() -> list[str]:
    """The instructions that this machine can run it with, the best first; [] without a library."""
    library = load()
    names: list[str] = []
    while library is not None and (name := library.encoder_level(len(names))):
        names.append(name.decode())
    return names


def kernel() -> str:
    """The best of `levels`; "" without a library."""
    return next(iter(levels()), "")


def digit_bits(level: int = 0) -> int:
    """Bits of a digit without its sign, at most, at one of `levels`."""
    return NARROW.get(levels()[level], WIDE)
