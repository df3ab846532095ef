"""Texts to token ids: one tokenizer, right padding, truncation at a fixed length.

Also the description of a model without its weights: most of it is the tokenizer.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from searchengine.trainer.errors import ModelError

# (n,), or (n, 2) for a pair: beside each id the text of the pair that it belongs to, 0 or 1.
Ids = NDArray[np.int32]
Text = str | tuple[str, str]
Spans = NDArray[np.int32]
# Characters tokenised at a time for spans: a tokenizer takes over 100 bytes for each of them.
PIECE = 1 << 15
SHORT = 64  # characters; texts with no more in all are seldom truncated
AT_ONCE = 1 << 22
# Where a text may be cut and give the same tokens, if the tokenizer passes the probe below.
GAP = re.compile(r"(?<=\S) (?=\w)")
# The width of packed rows: a multiple of PACK_STEP, at most PACK_WIDTH or the longest text.
PACK_STEP, PACK_WIDTH = 16, 128
PROBE = ("Whales sleep,", " half 고래는", " 잔다. 42", " birds sing")
# A length limit that no text reaches; and the tokens of a passage where that is the limit. Such a
# model averages, and a mean of many tokens says little of any. As many as Model2Vec reads.
UNLIMITED, PASSAGE = 1 << 30, 512
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


def without_surrogates(text: str) -> str:
    """Surrogate pairs become their character, lone ones U+FFFD: tokenizers take only UTF-8."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


@dataclass(frozen=True, slots=True)
class Padded:
    """Token ids as a forward pass takes them, padded on the right.

    ids, mask: (B, T) int64, 1 in the mask on real tokens. prompt_tokens: number of leading tokens
    of every row that are a prompt and are not pooled. types: (B, T) int64, of pairs of texts: the
    one that a token belongs to, 0 or 1.
    """

    ids: NDArray[np.int64]
    mask: NDArray[np.int64]
    prompt_tokens: int = 0
    types: NDArray[np.int64] | None = None

    def widened(self, width: int) -> Self:
        """The same rows, padded to this width."""
        more = np.zeros((len(self.ids), width - self.ids.shape[1]), np.int64)
        ids, mask = np.hstack((self.ids, more)), np.hstack((self.mask, more))
        types = None if self.types is None else np.hstack((self.types, more))
        return replace(self, ids=ids, mask=mask, types=types)

    def part(self, rows: slice) -> Self:
        """Some of the rows, as wide as they are."""
        types = None if self.types is None else self.types[rows]
        return replace(self, ids=self.ids[rows], mask=self.mask[rows], types=types)

    def packing(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Positions that pack the rows one after another into fewer, longer ones, to save padding.

        Returns slots (P, W): the position in the flat ids of each packed token, B · T for none; and
        places (B, T): the position in the flat slots of each token, 0 for padding. A row goes whole
        into the first packed row that has room for it. W is the width with the fewest slots.
        """
        rows, width = self.ids.shape
        real = self.mask.astype(bool)
        real[:, 0] = True  # a text without tokens takes a place as well
        if rows == 1:  # a question, which waits for each step: it stays as it is
            places = np.arange(width)
            return np.where(real, places, width), np.where(real, places, 0)
        lengths = real.sum(axis=1).tolist()
        narrowest = -(-max(lengths) // PACK_STEP) * PACK_STEP
        widths = range(narrowest, max(narrowest, PACK_WIDTH) + 1, PACK_STEP)
        packings = [(_first_fit(lengths, pack), pack) for pack in widths]
        (targets, before), pack = min(packings, key=lambda item: (max(item[0][0]) + 1) * item[1])
        starts = np.array(targets) * pack + np.array(before)
        places = np.where(real, starts[:, None] + np.arange(width), 0)
        slots = np.full((max(targets) + 1, pack), rows * width)
        slots.flat[places[real]] = np.flatnonzero(real)
        return slots, places


def _encoded_by(tokenizer: Tokenizer, texts: Sequence[str]) -> list[Any]:
    """Texts without special tokens."""
    try:
        return list(tokenizer.encode_batch(texts, add_special_tokens=False))
    except (UnicodeEncodeError, TypeError):
        # As in TokenIds.__call__, but pairs must stay two characters, or offsets would shift.
        whole = [SURROGATE.sub("\ufffd", text) for text in texts]
        return list(tokenizer.encode_batch(whole, add_special_tokens=False))


def _first_fit(lengths: Sequence[int], width: int) -> tuple[list[int], list[int]]:
    """The row of `width` tokens that each text goes to, and how many tokens are before it there."""
    room: list[int] = []
    targets, before = [], []
    full, shortest = 0, min(lengths)
    for length in lengths:
        while full < len(room) and room[full] < shortest:
            full += 1
        row = next((i for i in range(full, len(room)) if room[i] >= length), len(room))
        if row == len(room):
            room.append(width)
        targets.append(row)
        before.append(width - room[row])
        room[row] -= length
    return targets, before


@dataclass(frozen=True, slots=True)
class Tokenization:
    """How a model splits texts into tokens.

    state: the tokenizer as JSON, by `tokenizers`. pairs: whether it reads two texts at a time.
    """

    state: str
    max_tokens: int
    pad_id: int
    special_ids: tuple[int, ...]
    truncation_side: str
    pairs: bool = False

    @classmethod
    def of(cls, tokenizer: Any, max_tokens: int, *, pairs: bool = False) -> Self:
        """From a tokenizer of transformers."""
        return cls(
            tokenizer.backend_tokenizer.to_str(),
            max_tokens,
            tokenizer.pad_token_id or 0,
            tuple(tokenizer.all_special_ids),
            tokenizer.truncation_side,
            pairs,
        )


class TokenIds:
    """Turns texts into token ids of at most `max_tokens`, special tokens included.

    Where the model reads pairs, each text is a pair, whose longer half is cut first.
    Owns a copy of the tokenizer, so that two users never change each other's truncation.
    """

    def __init__(self, tokenization: Tokenization):
        self.max_tokens, self.pairs = tokenization.max_tokens, tokenization.pairs
        self.pad_id = tokenization.pad_id
        self._specials = frozenset(tokenization.special_ids)
        self._state = tokenization.state
        self._tokenizer = Tokenizer.from_str(self._state)
        self._tokenizer.no_padding()
        self._side = tokenization.truncation_side
        self._tokenizer.enable_truncation(self.max_tokens, direction=self._side)

    def __call__(self, texts: Sequence[Text]) -> list[Ids]:
        """The ids of each text, int32, in the order given."""
        texts = [self._start(text) if isinstance(text, str) else text for text in texts]
        try:
            encoded = self._tokenizer.encode_batch_fast(texts)
        except (UnicodeEncodeError, TypeError):
            # A lone surrogate, as a lenient JSON reader gives. Rare: pay only when it happens.
            clean = [
                without_surrogates(t) if isinstance(t, str) else tuple(map(without_surrogates, t))
                for t in texts
            ]
            encoded = self._tokenizer.encode_batch_fast(clean)
        if self.pairs:
            return [np.array([e.ids, e.type_ids], dtype=np.int32).T for e in encoded]
        return [np.array(e.ids, dtype=np.int32) for e in encoded]

    def prompt_tokens(self, prompt: str) -> int:
        """Number of leading tokens that are the prompt (a closing [SEP] is not)."""
        if not prompt:
            return 0
        ids = self([prompt])[0]
        return len(ids) - (1 if len(ids) and int(ids[-1]) in self._specials else 0)

    def spans(self, texts: Sequence[str]) -> list[Spans]:
        """Character offsets [start, end) of each text's tokens: int32 (n, 2), in order.

        No special tokens, no truncation. Tokens may share characters: bytes of a character, say.
        """
        spans: list[list[Spans]] = [[] for _ in texts]
        for batch in self._batches(texts):
            pieces = [texts[row][start:end] for row, start, end in batch]
            for (row, start, _), tokens in zip(batch, self._encoded(pieces), strict=True):
                offsets = np.array(tokens.offsets, dtype=np.int32).reshape(-1, 2)
                spans[row].append(offsets + np.int32(start))
        return [np.concatenate(parts) if len(parts) != 1 else parts[0] for parts in spans]

    @property
    def vocabulary_size(self) -> int:
        """Number of tokens that the tokenizer knows."""
        return int(self._tokenizer.get_vocab_size())

    def unknown(self, texts: Sequence[str]) -> float:
        """Share of the texts' tokens that the vocabulary does not know, 0–1."""
        ids = [i for encoding in self._encoded(texts) for i in encoding.ids]
        model = json.loads(self._state)["model"]
        unknown = model.get("unk_id")  # SentencePiece names it by its id, others by its text
        if unknown is None and model.get("unk_token") is not None:
            unknown = self._tokenizer.token_to_id(model["unk_token"])
        return ids.count(unknown) / len(ids) if ids and unknown is not None else 0.0

    def room(self, prompt: str) -> int:
        """Number of tokens of a text that are read beside the prompt and the special tokens.

        Where a tokenizer joins the prompt's last space to the text, one more may fit. A model that
        reads any number has room for PASSAGE.
        """
        limit = PASSAGE if self.max_tokens == UNLIMITED else self.max_tokens
        encoded = self._untruncated.encode(without_surrogates(prompt))
        return max(0, limit - len(encoded.ids))

    def _encoded(self, texts: Sequence[str]) -> list[Any]:
        """Whole texts without special tokens."""
        if sum(map(len, texts)) <= SHORT:  # a word, which waits for no second copy of the tokenizer
            encoded = _encoded_by(self._tokenizer, texts)
            if not any(each.overflowing for each in encoded):
                return encoded
        return _encoded_by(self._untruncated, texts)

    @cached_property
    def _untruncated(self) -> Tokenizer:
        """A second copy: truncation is a state of the tokenizer, which threads share."""
        tokenizer = Tokenizer.from_str(self._state)
        tokenizer.no_padding()
        tokenizer.no_truncation()
        return tokenizer

    @cached_property
    def _cuts(self) -> bool:
        """Whether a long text may be cut at spaces, which would change the tokens of some."""

        def tokens(text: str) -> list[str]:
            pieces: list[str] = self._untruncated.encode(text, add_special_tokens=False).tokens
            return pieces

        whole = tokens("".join(PROBE))
        return whole == [token for part in PROBE for token in tokens(part)]

    def _batches(self, texts: Sequence[str]) -> Iterator[list[tuple[int, int, int]]]:
        """Pieces (row, start, end) of texts, in order, as many as are tokenised at once."""
        batch: list[tuple[int, int, int]] = []
        characters = 0
        for row, text in enumerate(texts):
            for start, end in self._pieces(text):
                batch.append((row, start, end))
                characters += end - start
                if characters >= AT_ONCE:
                    yield batch
                    batch, characters = [], 0
        if batch:
            yield batch

    def _start(self, text: str) -> str:
        """A start of the text that has all the tokens that are read: the rest costs memory."""
        if len(text) <= PIECE or self._side != "right":
            return text
        tokens = 0
        for start, end in self._pieces(text):
            tokens += len(self._encoded([text[start:end]])[0].ids)
            if tokens >= self.max_tokens:
                return text[:end]
        return text

    def _pieces(self, text: str) -> Iterator[tuple[int, int]]:
        start = 0
        while len(text) - start > PIECE and self._cuts:
            gap = GAP.search(text, start + PIECE)
            if gap is None:
                break
            yield start, gap.start()
            start = gap.start()
        yield start, len(text)

    def pad(self, rows: Sequence[Ids], prompt_tokens: int = 0, multiple: int = 1) -> Padded:
        """Rows of ids as one right-padded batch, its width a multiple of `multiple` if it fits."""
        width = max(1, max(len(row) for row in rows))
        width = max(width, min(-(-width // multiple) * multiple, self.max_tokens))
        ids = np.full((len(rows), width), self.pad_id, dtype=np.int64)
        mask = np.zeros((len(rows), width), dtype=np.int64)
        types = np.zeros_like(mask) if self.pairs else None
        for i, row in enumerate(rows):
            if types is not None:
                types[i, : len(row)] = row[:, 1]
                row = row[:, 0]
            ids[i, : len(row)] = row
            mask[i, : len(row)] = 1
        return Padded(ids, mask, prompt_tokens, types)


@dataclass(frozen=True, slots=True)
class Description:
    """A model without its weights.

    Attributes:
        dim: width of a vector.
        layers: number of layers of the network.
        matryoshka_dims: trained prefix lengths, descending; the first is `dim`.
        tokens: how texts become token ids.
        prompts, default_prompt: put in front of texts, by name.
        include_prompt: whether the prompt's tokens are pooled.
        recipe: how the model was trained.
    """

    dim: int
    layers: int
    matryoshka_dims: tuple[int, ...]
    tokens: Tokenization
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt: str | None = None
    include_prompt: bool = True
    recipe: Mapping[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """As JSON values."""
        values = asdict(self)
        return values | {"prompts": dict(self.prompts), "recipe": dict(self.recipe)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """The inverse of `as_dict`. Raises TypeError or KeyError for anything else."""
        tokens = dict(values["tokens"])
        tokens["special_ids"] = tuple(tokens["special_ids"])
        dims = tuple(values["matryoshka_dims"])
        rest = dict(values) | {"tokens": Tokenization(**tokens), "matryoshka_dims": dims}
        return cls(**rest)
