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
        found = self._vocabulary.ids([texts[i] for i in plain], self.max_tokens)
        ids = {i: row for i, row in zip(plain, found, strict=True) if row is not None}
        others = [i for i in range(len(texts)) if i not in ids]
        if others:
            rows = super().__call__([texts[i] for i in others])
            ids.update(zip(others, rows, strict=True))
        return [ids[i] for i in range(len(texts))]

    @cached_property
    def _vocabulary(self) -> "_Pieces | None":
        if load() is None or self._side != "right":
            return None
        return _Pieces.of(json.loads(self._state))


class _Pieces:
    """A vocabulary in the compiled library."""

    def __init__(self, vocabulary: CWordPiece):
        self._library = load()
        self._made = self._library.wordpiece_new(ctypes.byref(vocabulary))
        if not self._made:
            raise MemoryError("not enough memory for a vocabulary")
        finalize(self, self._library.wordpiece_free, self._made)

    @classmethod
    def of(cls, state: dict[str, Any]) -> "_Pieces | None":
        """state: of `tokenizers`; None if it is not one of BERT's kind, or does more."""
        model, normalizer = state["model"], state["normalizer"] or {}
        cut = state["pre_tokenizer"] or {}
        around = _around(state["post_processor"])
        if (
            model["type"] != "WordPiece"
            or model["continuing_subword_prefix"] != "##"
            or any(normalizer.get(name) != value for name, value in NORMALIZER.items())
            or cut.get("type") != "BertPreTokenizer"
            or around is None
        ):
            return None
        added = [token["content"] for token in state["added_tokens"]]
        if any(token["normalized"] for token in state["added_tokens"]) or "" in added:
            return None
        vocabulary: dict[str, int] = model["vocab"]
        tokens = [token.encode() for token in [*vocabulary, *added]]
        lengths = np.array([len(token) for token in tokens], np.int32)
        ids = np.array([*vocabulary.values(), *[0] * len(added)], np.int32)
        return cls(
            CWordPiece(
                b"".join(tokens),
                lengths.ctypes.data,
                ids.ctypes.data,
                len(tokens),
                len(added),
                vocabulary[model["unk_token"]],
                model["max_input_chars_per_word"],
                *around,
            )
        )

    def ids(self, texts: Sequence[str], most: int) -> list[Ids | None]:
        """The ids of ASCII texts, int32, at most `most` each; None for a text that it cannot read.

        Raises MemoryError.
        """
        joined = "".join(texts).encode("ascii")
        starts = np.zeros(len(texts) + 1, np.int64)
        np.cumsum([len(text) for text in texts], out=starts[1:])
        ids = np.empty(len(joined) + 2 * len(texts), np.int32)
        lengths = np.empty(len(texts), np.int32)
        failed = self._library.wordpiece_run(
            self._made,
            joined,
            starts.ctypes.data,
            len(texts),
            min(most, LONGEST),
            ids.ctypes.data,
            lengths.ctypes.data,
            threads(),
        )
        if failed:
            raise MemoryError("not enough memory for the texts of a batch")
        places = (starts[:-1] + 2 * np.arange(len(texts))).tolist()
        return [
            ids[at : at + length] if length >= 0 else None
            for at, length in zip(places, lengths.tolist(), strict=True)
        ]


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
