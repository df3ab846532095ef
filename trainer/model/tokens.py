"""Texts to token ids: one tokenizer, right padding, truncation at a fixed length.

Also the description of a model without its weights: most of it is the tokenizer.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from searchengine.trainer.errors import ModelError, first_line

Ids = NDArray[np.int32]  # (n,)
Spans = NDArray[np.int32]
Vectors = NDArray[np.float32]
# Characters tokenised at a time for spans: a tokenizer takes over 100 bytes for each of them.
PIECE = 1 << 15
AT_ONCE = 128  # pieces
# Where a long text is cut. A tokenizer that puts a mark in front of each text has one more there.
GAP = re.compile(r"(?<=\S) (?=\w)")
UNLIMITED = 1 << 30  # a length limit that no text reaches
SURROGATE = re.compile("[\ud800-\udfff]")


def normalised(tokenizer: Tokenizer) -> str:
    """The tokenizer as JSON without its padding and truncation state, keys sorted.

    Both depend on how a tokenizer was last used, so they must not change a fingerprint.
    """
    state = json.loads(tokenizer.to_str())
    state["padding"] = state["truncation"] = None
    return json.dumps(state, sort_keys=True, ensure_ascii=False)


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
        """The ids of each text, int32, in the order given."""
        texts = [self._start(text) for text in texts]
        encoded = _encode(self._tokenizer.encode_batch_fast, texts)
        return [np.array(e.ids, dtype=np.int32) for e in encoded]

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
