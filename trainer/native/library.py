"""Loading the compiled encoder, with the types of what it is given; see source/network.h.

It also gives the token ids of many ASCII texts, in a tenth of the time of tokenizers.
"""

import ctypes
import json
import os
from collections.abc import Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import Any
from weakref import finalize

import numpy as np
from numpy.typing import NDArray

from searchengine.trainer.model.tokens import Ids, TokenIds

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


def threads() -> int:
    """The number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def encode(
    network: CNetwork,
    tokens: NDArray[np.int32],
    lengths: NDArray[np.int32],
    threads: int,
    level: int = 0,
    maxima: bool = False,
) -> tuple[NDArray[np.float32], ...]:
    """The first token's vector of each text, the means and, if asked for, the maxima of all tokens.

    (B, width) float32 each. tokens: of all texts, one behind another; each must be one of the
    network's. lengths: (B,), at least 1 and at most the network's positions. Raises MemoryError,
    and ValueError for digits that the level does not compute with.
    """
    pooled = tuple(np.empty((len(lengths), network.width), np.float32) for _ in range(2 + maxima))
    tokens, lengths = np.ascontiguousarray(tokens), np.ascontiguousarray(lengths)
    places = [rows.ctypes.data for rows in pooled]
    texts = CTexts(tokens.ctypes.data, lengths.ctypes.data, len(lengths), *places)
    problem = load().encoder_run(level, ctypes.byref(network), ctypes.byref(texts), threads)
    if problem == 2:
        raise ValueError(f"{levels()[level]} does not compute with digits of {network.bits} bits")
    if problem:
        raise MemoryError("not enough memory for the texts of a batch")
    return pooled


FEW = 64  # texts that the library tokenizes sooner than a vocabulary is made
LONGEST = 2**31 - 1
NORMALIZER = {"type": "BertNormalizer", "clean_text": True, "lowercase": True}


class FastTokenIds(TokenIds):
    """As TokenIds; of many texts, those in ASCII are read by the compiled library if it can."""

    def __call__(self, texts: Sequence[str]) -> list[Ids]:
        """The ids of each text, int32, in the order given."""
        if len(texts) < FEW or self._vocabulary is None:
            return super().__call__(texts)
        plain = [i for i, text in enumerate(texts) if text.isascii()]
        found = self._ascii([texts[i] for i in plain])
        ids = {i: row for i, row in zip(plain, found, strict=True) if row is not None}
        others = [i for i in range(len(texts)) if i not in ids]
        if others:
            ids.update(zip(others, super().__call__([texts[i] for i in others]), strict=True))
        return [ids[i] for i in range(len(texts))]

    @cached_property
    def _vocabulary(self) -> Any:
        """The vocabulary in the library; None where the library cannot read by it."""
        if (library := load()) is None or self._side != "right":
            return None
        pieces = _pieces(json.loads(self._state))
        if pieces is None:
            return None
        vocabulary = library.wordpiece_new(ctypes.byref(pieces))
        if not vocabulary:
            raise MemoryError("not enough memory for a vocabulary")
        finalize(self, library.wordpiece_free, vocabulary)
        return vocabulary

    def _ascii(self, texts: Sequence[str]) -> list[Ids | None]:
        """The ids of ASCII texts; None for a text that the library cannot read."""
        joined = "".join(texts).encode("ascii")
        starts = np.cumsum([0, *map(len, texts)], dtype=np.int64)
        ids = np.empty(len(joined) + 2 * len(texts), np.int32)
        lengths = np.empty(len(texts), np.int32)
        places = (starts.ctypes.data, len(texts), min(self.max_tokens, LONGEST))
        results = (ids.ctypes.data, lengths.ctypes.data, threads())
        if load().wordpiece_run(self._vocabulary, joined, *places, *results):
            raise MemoryError("not enough memory for the texts of a batch")
        firsts = (starts[:-1] + 2 * np.arange(len(texts))).tolist()
        return [
            ids[first : first + length] if length >= 0 else None
            for first, length in zip(firsts, lengths.tolist(), strict=True)
        ]


def _pieces(state: dict[str, Any]) -> CWordPiece | None:
    """The vocabulary of a tokenizer as JSON; None if it is not one of BERT's kind, or does more."""
    model, normalizer = state["model"], state["normalizer"] or {}
    around, added = _around(state["post_processor"]), state["added_tokens"]
    if (
        model["type"] != "WordPiece"
        or model["continuing_subword_prefix"] != "##"
        or any(normalizer.get(name) != value for name, value in NORMALIZER.items())
        or (state["pre_tokenizer"] or {}).get("type") != "BertPreTokenizer"
        or around is None
        or any(token["normalized"] or not token["content"] for token in added)
    ):
        return None
    vocabulary: dict[str, int] = model["vocab"]
    tokens = [*map(str.encode, vocabulary), *(token["content"].encode() for token in added)]
    lengths = np.array([*map(len, tokens)], np.int32)
    ids = np.array([*vocabulary.values(), *[0] * len(added)], np.int32)
    joined, places = b"".join(tokens), (lengths.ctypes.data, ids.ctypes.data)
    unknown, longest = vocabulary[model["unk_token"]], model["max_input_chars_per_word"]
    pieces = CWordPiece(joined, *places, len(tokens), len(added), unknown, longest, *around)
    pieces.arrays = lengths, ids  # for as long as it is read
    return pieces


def _around(processor: dict[str, Any] | None) -> tuple[int, int] | None:
    """The ids before and behind each text, -1 for none; None where it is more than one."""
    if processor is None:
        return -1, -1
    if processor["type"] == "BertProcessing":
        return processor["cls"][1], processor["sep"][1]
    if processor["type"] != "TemplateProcessing":
        return None
    parts = [next(iter(part.items())) for part in processor["single"]]
    if [kind for kind, _ in parts] != ["SpecialToken", "Sequence", "SpecialToken"]:
        return None
    specials = [processor["special_tokens"][part["id"]]["ids"] for _, part in (parts[0], parts[2])]
    return None if any(len(ids) != 1 for ids in specials) else (specials[0][0], specials[1][0])
