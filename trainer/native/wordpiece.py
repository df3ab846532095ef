"""Token ids of many ASCII texts by the compiled library: a tenth of the time of tokenizers."""

import ctypes
import json
from collections.abc import Sequence
from functools import cached_property
from typing import Any
from weakref import finalize

import numpy as np

from searchengine.trainer.model.tokens import Ids, TokenIds
from searchengine.trainer.native.library import CWordPiece, load, threads

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
