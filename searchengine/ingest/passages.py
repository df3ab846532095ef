"""Long documents → passages with offsets.

An encoder reads so many tokens and no more. A document that has more is cut into passages that
overlap, at the ends of sentences where there are any; what is encoded is a passage with its
document's title in front. How and why: docs/passages.md.
"""

import inspect
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, NamedTuple, Protocol, Self, runtime_checkable

import numpy as np
import numpy.typing as npt

from searchengine.corpus.documents import Document
from searchengine.corpus.sentences import UNSPACED, sentence_ends
from searchengine.errors import CollectionError
from searchengine.ingest.encoding import TextEncoder, Vectors, check_shape, unusable
from searchengine.storage.documents.changes import Span

Offsets = npt.NDArray[np.integer[Any]]

_FEWEST = 4  # tokens that an encoder must read, or there is no room for a title and a text
_SPACE = np.array([chr(code).isspace() for code in range(0x3001)] + [False])  # by code point


@runtime_checkable
class Tokenizes(Protocol):
    """What an encoder needs besides `encode` for documents to be cut.

    trainer.encoder.Encoder is one.
    """

    def token_spans(self, texts: Sequence[str]) -> Sequence[Offsets]:
        """Of each text the offsets [start, end) of all its tokens, (n, 2), in order."""

    def room(self, role: Literal["query", "document"]) -> int:
        """How many tokens of a text of this role `encode` reads."""


@dataclass(frozen=True, slots=True)
class PassageConfig:
    """How long documents are cut.

    Attributes:
        tokens: most tokens of text in a passage; 0, or more than fit, is as many as fit beside the
            title.
        overlap: most tokens that a passage shares with the one before, up to half of it; None is an
            eighth. In passages of 256 tokens that is a sentence or two of English: what a cut
            separates stands together in one of the two, and few tokens are encoded twice.

    Raises CollectionError.
    """

    tokens: int = 0
    overlap: int | None = None

    def __post_init__(self) -> None:
        if type(self.tokens) is not int or self.tokens < 0:
            raise CollectionError(
                f"tokens of a passage must be 0 (as many as fit) or more, got {self.tokens!r}"
            )
        if self.overlap is None:
            return
        if type(self.overlap) is not int or self.overlap < 0:
            raise CollectionError(
                f"overlap must be 0 tokens or more, or None for an eighth, got {self.overlap!r}"
            )
        if self.tokens and self.overlap > self.tokens // 2:
            raise CollectionError(
                f"an overlap of {self.overlap} tokens is over half of a passage of {self.tokens}; "
                f"choose at most {self.tokens // 2}"
            )

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """The inverse of `as_dict`. Raises CollectionError."""
        known = [field.name for field in fields(cls)]
        if unknown := sorted(set(values) - set(known)):
            raise CollectionError(
                f"unknown setting of passages: {', '.join(unknown)}; known are {', '.join(known)}"
            )
        return cls(**values)

    def as_dict(self) -> dict[str, Any]:
        """All settings, for JSON."""
        return asdict(self)

    def sizes(self, room: int) -> tuple[int, int]:
        """Most tokens of a passage, and of its overlap, where there is room for so many of text."""
        size = min(self.tokens or room, room)
        overlap = size // 8 if self.overlap is None else min(self.overlap, size // 2)
        return size, overlap


def tokenizer_of(encoder: TextEncoder) -> Tokenizes:
    """The encoder as what lets documents be cut. Raises CollectionError if it does not."""
    if not isinstance(encoder, Tokenizes):
        raise CollectionError(
            "the encoder has no token_spans and room, by which documents are cut into "
            "passages; give it both, or keep documents whole: passages=False"
        )
    return encoder


class PassageReader:
    """Cuts documents into passages and encodes them; ingest.ingestion uses it."""

    def __init__(self, encoder: TextEncoder, passages: PassageConfig | None) -> None:
        """Without `passages` documents stay whole. Raises CollectionError: no tokenizer."""
        self._encoder = encoder
        self._passages = passages
        self._tells = "on_batch" in inspect.signature(encoder.encode).parameters
        self._tokenizer: Tokenizes | None = None
        if passages is not None:
            self._tokenizer = tokenizer_of(encoder)

    def cut(self, documents: Sequence[Document]) -> tuple[list[list[Span]], int]:
        """The passages of each document as character offsets, and how many tokens they hold."""
        if self._passages is None or self._tokenizer is None:
            return [[(0, len(document.text))] for document in documents], 0
        return cut_documents(documents, self._tokenizer, self._passages)

    def texts(self, passages: Sequence[tuple[Document, Span]]) -> list[str]:
        """What is encoded for each passage: its text with its document's title."""
        if self._tokenizer is None:
            return [document.full_text for document, _ in passages]
        return passage_texts(passages, self._tokenizer)

    def encode(
        self,
        passages: Sequence[tuple[Document, Span]],
        texts: Sequence[str],
        on_batch: Callable[[int], None],
    ) -> Vectors:
        """Float32 (n, D) unit rows of the passages' `texts`.

        `on_batch` is handed to an encoder that takes it, as trainer.encoder.Encoder does. Raises
        CollectionError, naming a document that has no usable vector.
        """
        heard: dict[str, Any] = {"on_batch": on_batch} if self._tells else {}
        vectors = self._encoder.encode(texts, role="document", **heard)
        check_shape(vectors, (len(texts), self._encoder.dim), "passages", CollectionError)
        wrong = unusable(vectors)
        if wrong.any():
            document, _ = passages[int(wrong.argmax())]
            raise CollectionError(
                f"{document.origin or 'add'}: the encoder gave NaN, infinity or zero for the "
                f"document {document.key!r}; leave it out or mend the encoder"
            )
        return vectors


# ---------------------------------------------------------------------------------------- documents


def cut_documents(
    documents: Sequence[Document], encoder: Tokenizes, config: PassageConfig
) -> tuple[list[list[Span]], int]:
    """The passages of each document, at least one, and the tokens of all of them with their titles.

    What `passage_texts` makes of them is not truncated by the encoder. A document that fits is one
    passage, (0, len(text)). Raises CollectionError for an encoder that reads next to nothing.
    """
    room = _room(encoder)
    titles = [len(spans) for spans in encoder.token_spans([each.title for each in documents])]
    tokens = encoder.token_spans([each.text for each in documents])
    lengths = [title + len(spans) for title, spans in zip(titles, tokens, strict=True)]
    left = [max(room - title, room - room // 2) for title in titles]
    found = [
        cut(each.text, spans, *config.sizes(most))
        for each, spans, most in zip(documents, tokens, left, strict=True)
    ]
    # Most tokenizers give a passage the tokens that it has within its document. For the others,
    # what may not fit is counted, and cut smaller until it does.
    pending = [i for i, length in enumerate(lengths) if length > room - room // 8]
    while pending:
        passages = [(documents[i], span) for i in pending for span in found[i]]
        spans_of = iter(encoder.token_spans(passage_texts(passages, encoder)))
        again = []
        for i in pending:
            counts = [len(next(spans_of)) for _ in found[i]]
            lengths[i] = sum(counts)
            excess = max(counts) - room
            if excess > 0 and left[i] > 1:
                left[i] = max(1, left[i] - max(excess, left[i] // 8))
                found[i] = cut(documents[i].text, tokens[i], *config.sizes(left[i]))
                again.append(i)
        pending = again
    return found, sum(lengths)


def passage_text(document: Document, span: Span) -> str:
    """A passage with its title, as it is encoded but for titles that leave too little room.

    Of (0, len(text)) it is Document.full_text.
    """
    return _joined(document.title, document, span)


def passage_texts(passages: Sequence[tuple[Document, Span]], encoder: Tokenizes) -> list[str]:
    """What is encoded for passages that `cut_documents` made: each with its document's title.

    A title keeps half of what the encoder reads, or all that the passage leaves; what is longer is
    cut off at its end.
    """
    room = _room(encoder)
    titles = list({document.title: None for document, _ in passages})
    long = {
        title: spans
        for title, spans in zip(titles, encoder.token_spans(titles), strict=True)
        if len(spans) > room // 2
    }
    texts = []
    for document, (start, end) in passages:
        title = document.title
        if title in long:
            taken = len(encoder.token_spans([document.text[start:end]])[0])
            title = title[: cut(title, long[title], max(room // 2, room - taken), 0)[0][1]]
        texts.append(_joined(title, document, (start, end)))
    return texts


def _joined(title: str, document: Document, span: Span) -> str:
    return f"{title} {document.text[slice(*span)]}".strip()


def _room(encoder: Tokenizes) -> int:
    room = encoder.room("document")
    if room < _FEWEST:
        raise CollectionError(
            f"the encoder reads {room} tokens of a document beside its prompt, too few for a "
            f"passage (at least {_FEWEST}); choose another encoder, or keep documents whole"
        )
    return room


# -------------------------------------------------------------------------------------- one text


def cut(text: str, spans: Offsets, size: int, overlap: int) -> list[Span]:
    """The passages of a text as character offsets, from token to token.

    A text of at most `size` tokens is one passage, all of it. Otherwise a passage ends with the
    last sentence that ends in the second half of the window of `size` tokens, or else with the last
    word; the next one begins with the first sentence that begins in the last `overlap` tokens, or
    else with a word. Every token lies in a passage. None has more than `size` tokens, unless one
    character alone has. The last one brings at least a quarter of a window that is new.

    Args:
        spans: offsets of the tokens, (n, 2), in order; neighbours may share characters.
        size: at least 1.
        overlap: at most half of `size`.
    """
    count = len(spans)
    if count <= size:
        return [(0, len(text))]
    bounds = _bounds(text, spans)
    found: list[Span] = []
    first = done = 0  # tokens: the next passage begins with `first`; all before `done` are in one
    while count - first > size:
        high = min(first + size, count - size // 4)
        later = first + size // 2
        end = (
            _last(bounds.sentences, later, high)
            or _last(bounds.words, later, high)
            or _last(bounds.tokens, done, high)
        )
        if not end and first < done:
            first = done  # what follows cannot be divided, and leaves no room for an overlap
            continue
        end = end or _first(bounds.tokens, high, count) or count
        found.append((int(bounds.starts[first]), int(bounds.ends[end - 1])))
        if end == count:
            return found
        low = max(first + 1, end - overlap)
        first = (
            _first(bounds.sentences, low, end)
            or _first(bounds.words, low, end)
            or _first(bounds.tokens, low, end)
        )
        done = end
    found.append((int(bounds.starts[first]), int(bounds.ends[-1])))
    return found


class _Bounds(NamedTuple):
    """Where a text may be cut. Bound b lies before token b; all rise.

    Attributes:
        starts, ends: offsets of the tokens, so that ends rise too.
        tokens: bounds that divide no character between two passages.
        words, sentences: those of them between two words and two sentences.
    """

    starts: Offsets
    ends: Offsets
    tokens: list[int]
    words: list[int]
    sentences: list[int]


def _bounds(text: str, spans: Offsets) -> _Bounds:
    starts = np.minimum.accumulate(spans[::-1, 0])[::-1]
    ends = np.maximum.accumulate(spans[:, 1])
    tokens = np.flatnonzero((starts[1:] >= ends[:-1]) & (starts[1:] > starts[:-1])) + 1
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4")
    after = codes[np.minimum(starts[tokens], len(codes) - 1)]
    before = codes[starts[tokens] - 1]
    # A tokenizer may count the space before a word to the word.
    spaces = _SPACE[np.minimum(before, 0x3001)] | _SPACE[np.minimum(after, 0x3001)]
    unspaced = np.zeros_like(spaces)
    for low, high in UNSPACED:
        unspaced |= (low <= after) & (after <= high)
    stops = np.array(sentence_ends(text), dtype=np.int64)
    behind = np.searchsorted(starts, stops)
    behind, stops = behind[behind > 0], stops[behind > 0]
    sentences = np.intersect1d(behind[ends[behind - 1] <= stops], tokens)
    words = tokens[spaces | unspaced]
    return _Bounds(starts, ends, tokens.tolist(), words.tolist(), sentences.tolist())


def _last(bounds: list[int], low: int, high: int) -> int:
    """The last bound in (low, high], or 0."""
    i = bisect_right(bounds, high)
    return bounds[i - 1] if i and bounds[i - 1] > low else 0


def _first(bounds: list[int], low: int, high: int) -> int:
    """The first bound in [low, high], or 0."""
    i = bisect_left(bounds, low)
    return bounds[i] if i < len(bounds) and bounds[i] <= high else 0
