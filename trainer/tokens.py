"""Texts to token ids: one tokenizer, right padding, truncation at a fixed length."""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer

from trainer.modules import Batch

Ids = NDArray[np.int32]


def normalised(tokenizer: Tokenizer) -> str:
    """The tokenizer as JSON without its padding and truncation state, keys sorted.

    Both are how a tokenizer was last used, not what it is; they must not change a fingerprint.
    """
    state = json.loads(tokenizer.to_str())
    state["padding"] = state["truncation"] = None
    return json.dumps(state, sort_keys=True, ensure_ascii=False)


def without_surrogates(text: str) -> str:
    """Surrogate pairs become their character, lone ones U+FFFD: tokenizers take only UTF-8."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


class TokenIds:
    """Turns texts into token ids of at most `max_tokens`, special tokens included.

    Owns a copy of the tokenizer, so that two users never change each other's truncation.
    """

    def __init__(self, tokenizer: Any, max_tokens: int):
        self.max_tokens = max_tokens
        self.pad_id = tokenizer.pad_token_id or 0
        self._specials = frozenset(tokenizer.all_special_ids)
        self._tokenizer = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(max_tokens, direction=tokenizer.truncation_side)

    def __call__(self, texts: Sequence[str]) -> list[Ids]:
        """The ids of each text, int32, in the order given."""
        texts = list(texts)
        try:
            encoded = self._tokenizer.encode_batch_fast(texts)
        except (UnicodeEncodeError, TypeError):
            # A lone surrogate, as a lenient JSON reader gives. Rare: pay only when it happens.
            encoded = self._tokenizer.encode_batch_fast([without_surrogates(t) for t in texts])
        return [np.array(e.ids, dtype=np.int32) for e in encoded]

    def prompt_tokens(self, prompt: str) -> int:
        """How many leading tokens of a prompted text are the prompt (a closing [SEP] is not)."""
        if not prompt:
            return 0
        ids = self([prompt])[0]
        return len(ids) - (1 if len(ids) and int(ids[-1]) in self._specials else 0)

    def pad(self, rows: Sequence[Ids], prompt_tokens: int = 0) -> Batch:
        """Rows of ids as one right-padded batch."""
        width = max(1, max(len(row) for row in rows))
        ids = np.full((len(rows), width), self.pad_id, dtype=np.int64)
        mask = np.zeros((len(rows), width), dtype=np.int64)
        for i, row in enumerate(rows):
            ids[i, : len(row)] = row
            mask[i, : len(row)] = 1
        return Batch(torch.from_numpy(ids), torch.from_numpy(mask), prompt_tokens)
