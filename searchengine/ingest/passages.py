"""Long documents → passages with offsets → vectors.

An encoder reads a limited number of tokens. A longer document is cut into overlapping passages,
preferably at the ends of sentences; each passage is encoded with its document's title in front.
How and why: docs/indexing.md.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from searchengine.backends.contract import Span
from searchengine.corpus.analyzer import aligned, normalized
from searchengine.corpus.documents import Document
from searchengine.corpus.languages import UNSPACED, sentence_ends
from searchengine.encoders.protocol import TextEncoder
from searchengine.errors import CollectionError
from searchengine.indexer.arrays import integer

Offsets = npt.NDArray[np.integer[Any]]

BATCH = 4096
"""Passages encoded in one call, so that a huge document stays bounded too."""
UNLIMITED_ROOM = 512
"""Tokens of a passage where the encoder reads any number, as many as Model2Vec reads."""
_MIN_ROOM = 4  # tokens that an encoder must read to fit a title and a text
_SPACE = np.array([chr(code).isspace() for code in range(0x3001)] + [False])  # by code point


@dataclass(frozen=True, slots=True)
class PassageConfig:
    """How documents are cut into passages.

    Attributes:
        tokens: maximum tokens of text in a passage; 0, or more than fit beside the title: as many
            as fit.

    Raises CollectionError.
    """

    tokens: int = 0

    def __post_init__(self) -> None:
        tokens = integer(self.tokens)
        if tokens is None or tokens < 0:
            raise CollectionError(
                f"tokens of a passage must be 0 (as many as fit) or more, got {self.tokens!r}"
            )
        object.__setattr__(self, "tokens", tokens)

    @classmethod
    def from_stored(cls, settings: Mapping[str, Any]) -> Self | None:
        """That of a collection's settings; None: documents stay whole."""
        stored = settings.get("passages")
        return None if stored is None else cls(stored.get("tokens", 0))

    def sizes(self, room: int) -> tuple[int, int]:
        """Maximum tokens of a passage and of its overlap, with room for `room` tokens of text.

        An eighth of 256 tokens is a sentence or two of English: sentences that a cut separates are
        together in one of the two passages, and few tokens are encoded twice.
        """
        size = min(self.tokens or room, room)
        return size, size // 8


def tokenizes(encoder: TextEncoder) -> bool:
    """Whether an encoder has a tokenizer, by which documents can be cut."""
    return len(encoder.token_spans(["a"])[0]) > 0


def check_tokenizes(encoder: TextEncoder) -> None:
    """Raise CollectionError unless documents can be cut with an encoder."""
    if not tokenizes(encoder):
        raise CollectionError(
            "to cut documents into passages an encoder needs token_spans and room; "
            "this one lacks them: add them, or keep documents whole: passages=False"
        )


class PassageReader:
    """Cuts documents into passages, and writes the texts of these for the encoder.

    Attributes:
        encoder: what encodes them.
        settings: of the state of the collection that they suit, with the `passages`.
        instead: changes an empty collection to the encoder for many languages, and returns its
            reader; None: a user has chosen the encoder.
    """

    def __init__(self, encoder: TextEncoder, settings: Mapping[str, Any]) -> None:
        """Raises CollectionError if documents are to be cut, and the encoder has no tokenizer."""
        self.encoder, self.settings = encoder, settings
        self.instead: Callable[[], PassageReader] | None = None
        self._passages = PassageConfig.from_stored(settings)
        if self._passages is not None:
            check_tokenizes(encoder)

    def cut(self, documents: Sequence[Document]) -> tuple[list[list[Span]], int]:
        """The passages of each document, at least one, and the tokens of all with their titles.

        The encoder truncates none of their `texts`. A document that fits is a single passage,
        (0, len(text)). Raises CollectionError: the encoder reads too few tokens.
        """
        if self._passages is None:
            return [[(0, len(document.text))] for document in documents], 0
        encoder, sizes = self.encoder, self._passages.sizes
        room = _room(encoder)
        titles = [len(spans) for spans in _token_spans([each.title for each in documents], encoder)]
        tokens = _token_spans([document.text for document in documents], encoder)
        lengths = [title + len(spans) for title, spans in zip(titles, tokens, strict=True)]
        available = [max(room - title, room - room // 2) for title in titles]
        passages_of = [
            cut(document.text, spans, *sizes(most))
            for document, spans, most in zip(documents, tokens, available, strict=True)
        ]
        # Most tokenizers split a passage into the tokens that it has within its document. For the
        # others, passages that may not fit are counted, and cut smaller until they do.
        pending = [i for i, length in enumerate(lengths) if length > room - room // 8]
        while pending:
            passages = [(documents[i], span) for i in pending for span in passages_of[i]]
            spans_of = iter(encoder.token_spans(self.texts(passages)))
            unfinished = []
            for i in pending:
                counts = [len(next(spans_of)) for _ in passages_of[i]]
                lengths[i] = sum(counts)
                excess = max(counts) - room
                if excess > 0 and available[i] > 1:
                    available[i] = max(1, available[i] - max(excess, available[i] // 8))
                    passages_of[i] = cut(documents[i].text, tokens[i], *sizes(available[i]))
                    unfinished.append(i)
            pending = unfinished
        return passages_of, sum(lengths)

    def texts(self, passages: Sequence[tuple[Document, Span]]) -> list[str]:
        """The text to encode for each passage: its own with its document's title, normalized.

        The offsets are of texts as they are stored. A title may take half of what the encoder
        reads, or all that the passage leaves; a longer one loses its end.
        """
        if self._passages is None:
            return [normalized(document.full_text) for document, _ in passages]
        room = _room(self.encoder)
        titles = list({document.title: None for document, _ in passages})
        long = {
            title: spans
            for title, spans in zip(titles, _token_spans(titles, self.encoder), strict=True)
            if len(spans) > room // 2
        }
        texts = []
        for document, (start, end) in passages:
            title = document.title
            if title in long:
                tokens = len(_token_spans([document.text[start:end]], self.encoder)[0])
                title = title[: cut(title, long[title], max(room // 2, room - tokens), 0)[0][1]]
            texts.append(normalized(f"{title} {document.text[start:end]}".strip()))
        return texts


def _token_spans(texts: Sequence[str], encoder: TextEncoder) -> list[Offsets]:
    """The offsets in each text of the tokens that it has when it is normalized."""
    plain = [aligned(text) for text in texts]
    spans_of = list(encoder.token_spans([text for text, _ in plain]))
    for i, (text, place) in enumerate(plain):
        if text is not texts[i] and len(spans_of[i]):
            spans_of[i] = np.array([place(*span) for span in spans_of[i].tolist()], np.int64)
    return spans_of


def _room(encoder: TextEncoder) -> int:
    room = encoder.room("document")
    room = UNLIMITED_ROOM if room is None else room
    if room < _MIN_ROOM:
        raise CollectionError(
            f"passages need an encoder that reads at least {_MIN_ROOM} tokens of a document, "
            f"got one that reads {room}; choose another encoder, or keep documents whole"
        )
    return room


# -------------------------------------------------------------------------------------- one text


def cut(text: str, spans: Offsets, size: int, overlap: int) -> list[Span]:
    """The passages of a text as character offsets, from token to token.

    A text of at most `size` tokens is one passage, all of it. Otherwise a passage ends with the
    last sentence that ends in the second half of the window of `size` tokens, or else with the last
    word; the next one begins with the first sentence that begins in the last `overlap` tokens, or
    else with a word. Every token is in a passage. No passage has more than `size` tokens,
    unless a single character has. At least a quarter of the last window is new.

    Args:
        spans: offsets of the tokens, (n, 2), in order; neighbours may share characters.
        size: at least 1.
        overlap: at most half of `size`.
    """
    count = len(spans)
    if count <= size:
        return [(0, len(text))]
    starts, ends, ranks = _bounds(text, spans)
    passages: list[Span] = []
    first = done = 0  # tokens: the next passage begins with `first`; all before `done` are in one
    while count - first > size:
        high = min(first + size, count - size // 4)
        later = first + size // 2
        end = (
            _last(ranks, later, high, _SENTENCE)
            or _last(ranks, later, high, _WORD)
            or _last(ranks, done, high, _TOKEN)
        )
        if not end and first < done:
            first = done  # what follows cannot be divided, and leaves no room for an overlap
            continue
        end = end or _first(ranks, high, count, (_TOKEN,)) or count
        passages.append((int(starts[first]), int(ends[end - 1])))
        if end == count:
            return passages
        first = _first(ranks, max(first + 1, end - overlap), end, (_SENTENCE, _WORD, _TOKEN))
        done = end
    passages.append((int(starts[first]), int(ends[-1])))
    return passages


_TOKEN, _WORD, _SENTENCE = 1, 2, 3


def _bounds(text: str, spans: Offsets) -> tuple[Offsets, Offsets, Offsets]:
    """Ascending starts and ends of the tokens, and the rank of each bound: b is before token b.

    At a bound of rank _TOKEN no character is divided between two passages; at one of _WORD or
    _SENTENCE a word or a sentence begins too. Elsewhere the rank is 0.
    """
    starts = np.minimum.accumulate(spans[::-1, 0])[::-1]
    ends = np.maximum.accumulate(spans[:, 1])
    tokens = np.flatnonzero((starts[1:] >= ends[:-1]) & (starts[1:] > starts[:-1])) + 1
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4")
    after = codes[np.minimum(starts[tokens], len(codes) - 1)]
    before = codes[starts[tokens] - 1]
    # Some tokenizers include the space before a word in the word.
    words = _SPACE[np.minimum(before, 0x3001)] | _SPACE[np.minimum(after, 0x3001)]
    for low, high in UNSPACED:
        words |= (low <= after) & (after <= high)
    stops = np.array(sentence_ends(text), dtype=np.int64)
    behind = np.searchsorted(starts, stops)
    behind, stops = behind[behind > 0], stops[behind > 0]
    ranks = np.zeros(len(spans) + 1, np.int8)
    ranks[tokens] = np.where(words, _WORD, _TOKEN)
    ranks[np.intersect1d(behind[ends[behind - 1] <= stops], tokens)] = _SENTENCE
    return starts, ends, ranks


def _last(ranks: Offsets, low: int, high: int, least: int) -> int:
    """The last bound in (low, high] of at least this rank, or 0."""
    found = np.flatnonzero(ranks[low + 1 : high + 1] >= least)
    return low + 1 + int(found[-1]) if found.size else 0


def _first(ranks: Offsets, low: int, high: int, wanted: Sequence[int]) -> int:
    """The first bound in [low, high] of the first of these ranks that one has, or 0."""
    within = ranks[low : high + 1]
    found = (np.flatnonzero(within >= least) for least in wanted)
    return next((low + int(places[0]) for places in found if places.size), 0)
