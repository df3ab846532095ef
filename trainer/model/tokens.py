"""Texts to token ids: one tokenizer, truncated at a fixed length; batches of similar length.

Also the description of a model without its weights: most of it is the tokenizer.
"""

import ctypes
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from typing import Any, Self
from weakref import finalize

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from searchengine.trainer.errors import ModelError, first_line
from searchengine.trainer.native.library import CWordPiece, load

Ids = NDArray[np.int32]  # (n,)
Spans = NDArray[np.int32]
Vectors = NDArray[np.float32]
# Characters tokenised at a time for spans: a tokenizer takes over 100 bytes for each of them.
PIECE = 1 << 15
AT_ONCE = 128  # pieces
# Where a long text is cut. A tokenizer that puts a mark in front of each text has one more there.
GAP = re.compile(r"(?<=\S) (?=\w)")
FEW = 64  # texts that the library tokenizes sooner than a vocabulary is made
LONGEST = 2**31 - 1
NORMALIZER = {"type": "BertNormalizer", "clean_text": True, "lowercase": True}
UNLIMITED = 1 << 30  # a length limit that no text reaches
SURROGATE = re.compile("[\ud800-\udfff]")


def normalised(tokenizer: Tokenizer) -> str:
    """The tokenizer as JSON without its padding and truncation state, keys sorted.

    Both depend on how a tokenizer was last used, so they must not change a fingerprint.
    """
    state = json.loads(tokenizer.to_str())
    state["padding"] = state["truncation"] = None
    return json.dumps(state, sort_keys=True, ensure_ascii=False)


def threads() -> int:
    """The number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def check_texts(texts: Sequence[str]) -> None:
    """Raise ModelError for anything that is not a sequence of str."""
    if isinstance(texts, str | bytes) or not isinstance(texts, Sequence):
        raise ModelError(
            f"texts is a {type(texts).__name__}: expected a list of str, such as [{'text'!r}]"
        )
    for i, text in enumerate(texts):
        if not isinstance(text, str):
            raise ModelError(f"texts[{i}] is a {type(text).__name__}: expected str")


def _encode(encode: Callable[..., list[Any]], texts: Sequence[str], **options: bool) -> list[Any]:
    """The encodings of texts by a method of a tokenizer, which takes UTF-8 alone.

    A surrogate, as a lenient JSON reader gives, becomes U+FFFD. Rare: pay only when it happens.
    """
    try:
        return encode(texts, **options)
    except (UnicodeEncodeError, TypeError):
        return encode([SURROGATE.sub("\ufffd", text) for text in texts], **options)


@dataclass(frozen=True, slots=True)
class Tokenization:
    """How a model splits texts into tokens. state: the JSON of the package `tokenizers`."""

    state: str
    max_tokens: int
    pad_id: int
    truncation_side: str

    @classmethod
    def of(cls, tokenizer: Any, max_tokens: int) -> Self:
        """From a tokenizer of transformers."""
        return cls(
            tokenizer.backend_tokenizer.to_str(),
            max_tokens,
            tokenizer.pad_token_id or 0,
            tokenizer.truncation_side,
        )


class TokenIds:
    """Turns texts into token ids of at most `max_tokens`, special tokens included.

    Owns a copy of the tokenizer, so that two users never change each other's truncation.
    """

    def __init__(self, tokenization: Tokenization):
        """Raises ModelError unless the state is that of a tokenizer."""
        self.max_tokens, self.pad_id = tokenization.max_tokens, tokenization.pad_id
        self._state = tokenization.state
        self._side = tokenization.truncation_side
        try:
            self._tokenizer = Tokenizer.from_str(self._state)
            self._tokenizer.no_padding()
            self._tokenizer.enable_truncation(self.max_tokens, direction=self._side)
        except Exception as error:  # the library raises plain Exception
            raise ModelError(f"tokenizer.json is not a tokenizer: {first_line(error)}") from error

    def __call__(self, texts: Sequence[str]) -> list[Ids]:
        """The ids of each text, int32, in the order given.

        Of many texts, those in ASCII are read by the compiled library if it can: in a tenth of the
        time.
        """
        ids: dict[int, Ids] = {}
        if len(texts) >= FEW and self._vocabulary is not None:
            plain = [i for i, text in enumerate(texts) if text.isascii()]
            found = self._ascii([texts[i] for i in plain])
            ids = {i: row for i, row in zip(plain, found, strict=True) if row is not None}
        others = [i for i in range(len(texts)) if i not in ids]
        encoded = _encode(
            self._tokenizer.encode_batch_fast, [self._start(texts[i]) for i in others]
        )
        ids |= {i: np.array(e.ids, np.int32) for i, e in zip(others, encoded, strict=True)}
        return [ids[i] for i in range(len(texts))]

    @cached_property
    def _vocabulary(self) -> Any:
        """The vocabulary in the library; None where the library cannot read by it."""
        if (library := load()) is None or self._side != "right":
            return None
        pieces = _wordpieces(json.loads(self._state))
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

    def spans(self, texts: Sequence[str]) -> list[Spans]:
        """Character offsets [start, end) of each text's tokens, without special ones: (n, 2)."""
        spans: list[list[Spans]] = [[] for _ in texts]
        pieces = ((row, *piece) for row, text in enumerate(texts) for piece in self._pieces(text))
        while batch := list(islice(pieces, AT_ONCE)):
            offsets = self._offsets([texts[row][start:end] for row, start, end in batch])
            for (row, start, _), found in zip(batch, offsets, strict=True):
                spans[row].append(found + np.int32(start))
        return [np.concatenate(parts) if len(parts) != 1 else parts[0] for parts in spans]

    @property
    def vocabulary_size(self) -> int:
        """Number of tokens that the tokenizer knows, without those that were added to it."""
        return int(self._tokenizer.get_vocab_size(with_added_tokens=False))

    def room(self, prompt: str) -> int:
        """Number of tokens of a text that are read beside the prompt and the special tokens."""
        special = self._tokenizer.num_special_tokens_to_add(False)
        return max(0, self.max_tokens - special - len(self._offsets([prompt])[0]))

    def _offsets(self, texts: Sequence[str]) -> list[Spans]:
        """The spans of texts, each tokenised at once."""
        encoded = _encode(self._tokenizer.encode_batch, texts, add_special_tokens=False)
        offsets = (
            [span for part in self._parts(each) for span in part.offsets] for each in encoded
        )
        return [np.array(spans, dtype=np.int32).reshape(-1, 2) for spans in offsets]

    def _parts(self, encoded: Any) -> list[Any]:
        """A text's encodings in order: what is read, and what truncation left over."""
        return [encoded, *encoded.overflowing][:: 1 if self._side == "right" else -1]

    def _start(self, text: str) -> str:
        """A start of the text that has all the tokens that are read: the rest costs memory."""
        if len(text) <= PIECE or self._side != "right":
            return text
        tokens = 0
        for start, end in self._pieces(text):
            tokens += len(self._offsets([text[start:end]])[0])
            if tokens >= self.max_tokens:
                return text[:end]
        return text

    def _pieces(self, text: str) -> Iterator[tuple[int, int]]:
        start = 0
        while len(text) - start > PIECE and (gap := GAP.search(text, start + PIECE)):
            yield start, gap.start()
            start = gap.start()
        yield start, len(text)


def _wordpieces(state: dict[str, Any]) -> CWordPiece | None:
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


def token_budget_batches(
    lengths: Sequence[int], budget: int, min_ratio: float = 0.0
) -> Iterator[list[int]]:
    """Positions grouped by similar length, so that width · rows of a batch stays within `budget`.

    Longest first: if memory runs out, it does so at once. A row longer than the budget is a batch
    of its own. No row is shorter than `min_ratio` times its batch's width, which bounds padding.
    """
    batch: list[int] = []
    for i in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        widest = lengths[batch[0]] if batch else 0  # the first row of a batch is its longest
        full = max(1, widest) * (len(batch) + 1) > budget or lengths[i] < min_ratio * widest
        if batch and full:
            yield batch
            batch = []
        batch.append(i)
    if batch:
        yield batch


@dataclass(frozen=True, slots=True)
class Description:
    """A model without its weights.

    matryoshka_dims: trained prefix lengths, descending; the first is `dim`, the width of a vector.
    prompts, default_prompt: put in front of texts, by name.
    """

    dim: int
    layers: int
    matryoshka_dims: tuple[int, ...]
    tokens: Tokenization
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt: str | None = None
    recipe: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raises ModelError for settings that do not fit one another."""
        dims = list(self.matryoshka_dims)
        if dims[0] != self.dim or dims != sorted({*dims}, reverse=True) or dims[-1] < 1:
            raise ModelError(
                f"matryoshka_dims is {dims}: expected descending, distinct lengths that start with "
                f"the model's width {self.dim}"
            )
        if self.tokens.max_tokens < 3:
            raise ModelError(f"max_tokens is {self.tokens.max_tokens}: expected 3 or more")
        if self.default_prompt is not None and self.default_prompt not in self.prompts:
            raise ModelError(
                f"the default prompt {self.default_prompt!r} is not one of the model's prompts "
                f"({', '.join(self.prompts) or 'it has none'})"
            )
