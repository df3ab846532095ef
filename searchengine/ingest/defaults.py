"""What suits the first documents of a collection: its tokenizer, its mode, and which encoder.

A sample of them decides, by their languages and whether the encoder reads these. It reads a
language if its tokenizer does: a vocabulary of English splits German into many short pieces, Korean
into single strokes, and has no token for most Chinese characters. Measured: docs/searching.md.
"""

import warnings
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from searchengine.backends.contract import Snapshot
from searchengine.backends.mode import CHOSEN, WEIGHT, Mode
from searchengine.corpus.analyzer import DEFAULT, Analyzer, Tokenizer, language_name
from searchengine.corpus.documents import Document
from searchengine.corpus.languages import SCRIPTS, identify_languages, prose
from searchengine.encoders.protocol import TextEncoder
from searchengine.errors import LanguageWarning
from searchengine.ingest.passages import PassageReader
from searchengine.trainer.sources.source import MULTILINGUAL, multilingual_installed

_SAMPLE = 256  # documents that are looked at
_CHECKED = 32  # texts of a language that are tokenised
_PRESENT = 0.1  # share of the texts from which a language counts
_MOSTLY = 0.5  # share of texts that the encoder does not read, from which words count most
# Weight of the cosine where the encoder does not read the language, but its script: names and
# borrowed words still place a text. Other scripts: words alone.
_UNREAD_WEIGHT = 0.1
_ENGLISH = (
    "Whales are warm-blooded mammals that breathe air, bear live young, and sleep with half of "
    "the brain at a time; the other half keeps watch over the water around them."
)
# Tokens per letter from which on a language is not read; docs/searching.md has the rule.
_PER_LATIN_LETTER = 1.35  # times as many as in _ENGLISH
_PER_LETTER = 0.75  # of another alphabet
_PER_SYLLABLE = 1.3  # of scripts without spaces, and of Korean
_UNKNOWN = 0.05  # share of tokens that the vocabulary does not have
_UNKNOWN_SIGN = "\U00013000"  # a hieroglyph, which no vocabulary has but as bytes
_COMPARED = 256  # tokens whose vectors are compared with that of the sign
_SAME_VECTOR = 0.9999  # cosine; rounding in bfloat16 leaves 0.99999

ByLanguage = Mapping[str | None, Sequence[str]]
"""Pieces of prose by their language, the most frequent first."""


class Languages:
    """Looks at the first block of documents, while the collection is empty."""

    def __init__(self, reader: PassageReader | None) -> None:
        """`reader`: encodes them; None: vectors come with them."""
        self._reader = reader
        self._texts: ByLanguage = {}

    def look(self, documents: Sequence[Document]) -> PassageReader | None:
        """Take a sample of a block; returns the reader that is to encode from now on.

        Warns (LanguageWarning) before anything is encoded.
        """
        sample = documents[:: 1 + len(documents) // _SAMPLE]
        self._texts = by_language(document.full_text for document in sample)
        reader = self._reader
        if reader is None or not (unread := _judged(reader.encoder, self._texts)[0]):
            return reader
        share, name = sum(unread.values()), reader.encoder.source or "of this collection"
        way_out = (
            ", so searches by meaning miss much of them; for better results index into a new "
            f"collection with a multilingual encoder, such as --encoder {MULTILINGUAL}, in "
            f'Python encoder="{MULTILINGUAL}"'
        )
        changes = reader.instead if share > _MOSTLY and multilingual_installed() else None
        if changes is not None:
            way_out = f": encoding by {MULTILINGUAL} instead (--encoder {name} keeps that one)"
        warnings.warn(
            f"{share:.0%} of these documents are in {' and '.join(map(language_name, unread))}, "
            f"which the encoder {name} does not read well{way_out}",
            LanguageWarning,
            stacklevel=2,
        )
        if changes is not None:
            self._reader = changes()
        return self._reader

    def choose(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """The settings to change of an empty collection: mode, weight and tokenizer.

        None removes one. What a user has chosen stays.
        """
        chosen: dict[str, Any] = {}
        if settings.get("mode") in (Mode.HYBRID, Mode.TEXT) and not settings.get(CHOSEN):
            encoder = None if self._reader is None else self._reader.encoder
            _, mode, weight = _judged(encoder, self._texts)
            chosen = {"mode": mode, "weight": None if weight == WEIGHT else weight}
        if settings.get("tokenizer_auto") or settings["tokenizer"] == Tokenizer.STEM:
            chosen["tokenizer"] = str(analyzer_for(self._texts))
        return chosen


def by_language(texts: Iterable[str]) -> ByLanguage:
    """The prose of texts by its language."""
    pieces = [piece for text in texts for piece in prose(text)]
    found = defaultdict[str | None, list[str]](list)
    for language, piece in zip(identify_languages(pieces), pieces, strict=True):
        found[language].append(piece)
    return dict(sorted(found.items(), key=lambda item: -len(item[1])))


def analyzer_for(texts: ByLanguage) -> Analyzer:
    """The analyzer for texts like these, with the languages that are not rare."""
    counts = {language: len(pieces) for language, pieces in texts.items() if language}
    least = _PRESENT * sum(counts.values())
    languages = tuple(language for language, count in counts.items() if count >= least)
    return Analyzer(Tokenizer.STEM, languages) if languages else DEFAULT


def default_of(encoder: TextEncoder, snapshot: Snapshot) -> tuple[Mode, float]:
    """The mode, and the weight of the cosine, of a collection with the texts of a commit."""
    ids = snapshot.ids_after(-1, None, snapshot.count()).tolist()
    sample = ids[:: 1 + len(ids) // _SAMPLE]
    documents = (Document.stored(*row) for each in sample for row in snapshot.documents([each]))
    return _judged(encoder, by_language(document.full_text for document in documents))[1:]


def _judged(encoder: TextEncoder | None, texts: ByLanguage) -> tuple[dict[str, float], Mode, float]:
    """The share of each language that an encoder does not read; mode, and weight of the cosine."""
    unread, by_words, total = dict[str, float](), 0.0, sum(map(len, texts.values()))
    for language, pieces in texts.items():
        if encoder and language not in (None, "en") and len(pieces) >= _PRESENT * total:
            if (weight := weight_for(encoder, pieces[:_CHECKED], language)) != WEIGHT:
                unread[language] = share = len(pieces) / total
                by_words += share if weight == 0 else 0
    if sum(unread.values()) <= _MOSTLY:
        return unread, Mode.HYBRID, WEIGHT
    if by_words > _MOSTLY:
        return unread, Mode.TEXT, 0.0
    return unread, Mode.HYBRID, _UNREAD_WEIGHT


# --------------------------------------------------------------------- what a tokenizer knows


def weight_for(encoder: TextEncoder, texts: Sequence[str], language: str) -> float:
    """The weight that the cosine should have among texts of one language; 0: words alone.

    WEIGHT if the encoder's tokenizer knows the language, as far as can be measured.
    """
    tokens, letters = _tokens(encoder, texts), [*filter(str.isalpha, "".join(texts))]
    others = sum(map(_is_other, letters))
    if language not in SCRIPTS and 2 * others <= len(letters):
        most = (
            _PER_LATIN_LETTER * len(_tokens(encoder, [_ENGLISH])) / sum(map(str.isalpha, _ENGLISH))
        )
        is_read = len(tokens) <= most * len(letters) or encoder.source == MULTILINGUAL  # if rare
        return WEIGHT if is_read else _UNREAD_WEIGHT
    most = _PER_SYLLABLE if language in SCRIPTS else _PER_LETTER
    is_whole = sum(any(map(_is_other, token)) for token in tokens) <= most * others
    return WEIGHT if is_whole and _unknown(encoder, tokens) <= _UNKNOWN else 0.0


def _tokens(encoder: TextEncoder, texts: Sequence[str]) -> list[str]:
    """Those that have a letter."""
    spans = encoder.token_spans(texts)
    every = (text[a:b] for text, of in zip(texts, spans, strict=True) for a, b in of.tolist())
    return [token for token in every if any(map(str.isalpha, token))]


def _unknown(encoder: TextEncoder, tokens: Sequence[str]) -> float:
    """Share of the tokens that the vocabulary does not have: all of them get the same vector."""
    if not tokens:
        return 0.0
    vectors = encoder.encode([_UNKNOWN_SIGN, *tokens[:: len(tokens) // _COMPARED + 1]])
    return float((vectors[1:] @ vectors[0] > _SAME_VECTOR).mean())


def _is_other(letter: str) -> bool:
    """Whether a letter is not Latin, and no mark, which tokenizers drop or join to a letter."""
    return letter.isalpha() and not (letter < "\u0370" or "\u1e00" <= letter < "\u1f00")
