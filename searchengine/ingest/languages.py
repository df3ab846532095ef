"""The languages of a new collection: which tokenizer suits them, and does the encoder read them?

A sample of the first documents decides both, and how questions are ranked. An encoder reads a
language if its tokenizer does: a vocabulary of English splits German into many short pieces, Korean
into single strokes, and has no token for most Chinese characters. Measured: docs/searching.md.
"""

import unicodedata
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from searchengine.backends.contract import Backend, Snapshot
from searchengine.backends.mode import CHOSEN, WEIGHT, Mode
from searchengine.corpus.analyzer import DEFAULT, Analyzer, Tokenizer, language_name
from searchengine.corpus.documents import Document
from searchengine.corpus.language_traits import SCRIPTS, identify_languages, prose
from searchengine.encoders.protocol import TextEncoder
from searchengine.errors import LanguageWarning
from searchengine.ingest.passages import PassageReader
from searchengine.trainer.sources.source import MULTILINGUAL, multilingual_installed

_SAMPLE = 256  # documents of the first block that are looked at
_READ = 16  # stored documents read at a time: they may be long
_STORED = 1024  # stored documents that are looked at
_CHECKED = 32  # texts of a language that are tokenised
_PRESENT = 0.1  # share of the texts from which a language counts
_MOSTLY = 0.5  # share of texts that the encoder does not read, from which words count most
# Weight of the cosine where the encoder does not read the language, but its script: names and
# borrowed words still place a text. The lower weight applies from _BARELY_READ times as many tokens
# as English (Spanish 1.5, French and German 1.6; Turkish 1.9, Vietnamese 2.0). Other scripts: words
# alone.
_UNREAD_WEIGHT, _BARELY_READ_WEIGHT, _BARELY_READ = 0.2, 0.1, 1.75
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
# A tokenizer that knows both is one of many languages: it reads those of Latin letters too, though
# rare ones take many tokens.
_OTHER_SCRIPTS = (
    "Киты спят одной половиной мозга, а другая следит за водой вокруг них.",
    "鲸鱼用半个大脑睡觉，另一半看着周围的水。",
)

Unread = Mapping[str, tuple[float, float]]
"""Languages that an encoder does not read: share of the texts, and the weight of `weight_for`."""


class Languages:
    """Looks at the first block of documents, while the collection is empty."""

    def __init__(self, reader: PassageReader | None) -> None:
        """`reader`: encodes them; None: vectors come with them."""
        self._reader = reader
        self._texts: list[str] = []
        self._languages: list[str | None] = []

    def look(
        self, documents: Sequence[Document], settings: Mapping[str, Any]
    ) -> PassageReader | None:
        """Take a sample of a block; returns the reader that is to encode from now on, if another.

        Warns (LanguageWarning) before anything is encoded.
        """
        step = max(1, len(documents) // _SAMPLE)
        sample = documents[::step][:_SAMPLE]
        self._texts, self._languages = _sample(document.full_text for document in sample)
        reader = self._reader
        if reader is None or not (unread := self._unread()):
            return None
        name = reader.encoder.source or settings["encoder"].get("name", "")
        share = sum(share for share, _ in unread.values())
        message = f"{_in_words(unread)}, which the encoder {name}".rstrip() + " does not read well"
        changes = reader.instead if share > _MOSTLY and multilingual_installed() else None
        if changes is None:
            message += (
                ", so searches by meaning miss much of them; for better results index into a new "
                f"collection with a multilingual encoder, such as --encoder {MULTILINGUAL}, in "
                f'Python encoder="{MULTILINGUAL}"'
            )
            if {**settings, **self.choose(settings)}.get("mode") != Mode.TEXT:
                message += ", or search by words: search --mode text"
        else:
            message += f": encoding by {MULTILINGUAL} instead (--encoder {name} keeps that one)"
        warnings.warn(message, LanguageWarning, stacklevel=2)
        self._reader = reader if changes is None else changes()
        return None if changes is None else self._reader

    def choose(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """The settings to change of an empty collection: mode, weight and tokenizer.

        None removes one. What a user has chosen stays.
        """
        chosen: dict[str, Any] = {}
        if not self._languages:
            return chosen
        if settings.get("mode") in (Mode.HYBRID, Mode.TEXT) and not settings.get(CHOSEN):
            mode, weight = default_for(self._unread())
            chosen |= {"mode": mode, "weight": None if weight == WEIGHT else weight}
        if settings.get("tokenizer_auto"):
            chosen["tokenizer"] = str(analyzer_for(self._languages))
        elif settings["tokenizer"] == Tokenizer.STEM:  # its creator left the languages open
            chosen["tokenizer"] = str(Analyzer(Tokenizer.STEM, _frequent(self._languages)))
        return chosen

    def _unread(self) -> Unread:
        reader = self._reader
        return {} if reader is None else _unread(reader.encoder, self._texts, self._languages)


def _sample(texts: Iterable[str]) -> tuple[list[str], list[str | None]]:
    """Pieces of prose of the texts, and their languages."""
    pieces = [piece for text in texts for piece in prose(text)]
    return pieces, identify_languages(pieces)


def _unread(encoder: TextEncoder, texts: Sequence[str], sample: Sequence[str | None]) -> Unread:
    """The languages that an encoder does not read, most frequent first. sample: of the texts."""
    unread = {}
    for language, count in Counter(sample).most_common():
        share = count / len(sample)
        if language not in (None, "en") and share >= _PRESENT:
            pairs = zip(texts, sample, strict=True)
            own = [text for text, each in pairs if each == language]
            if (weight := weight_for(encoder, own[:_CHECKED])) != WEIGHT:
                unread[str(language)] = share, weight
    return unread


def default_for(unread: Unread) -> tuple[Mode, float]:
    """The mode, and the weight of the cosine, where an encoder does not read these languages."""
    share = sum(share for share, _ in unread.values())
    if share <= _MOSTLY:
        return Mode.HYBRID, WEIGHT
    by_words = sum(share for share, weight in unread.values() if not weight)
    weight = sum(share * weight for share, weight in unread.values()) / share
    return (Mode.TEXT if by_words > _MOSTLY else Mode.HYBRID), round(weight, 2)


def default_of(encoder: TextEncoder, snapshot: Snapshot) -> tuple[Mode, float]:
    """The mode, and the weight of the cosine, of a collection with the texts of a commit."""
    return default_for(_unread(encoder, *_sample(_stored_texts(snapshot))))


def analyzer_for(sample: Sequence[str | None]) -> Analyzer:
    """The analyzer for texts like these."""
    languages = _frequent(sample)
    return Analyzer(Tokenizer.STEM, languages) if languages else DEFAULT


def choose_again(backend: Backend) -> None:
    """Choose the analyzer by the present documents, unless the collection's creator chose it.

    So a collection that has grown gets stems of its languages.
    """
    with backend.reading(newest=True) as snapshot:
        settings = snapshot.settings
        texts = _stored_texts(snapshot) if settings.get("tokenizer_auto") else ()
        _, sample = _sample(texts)
    if sample and (chosen := str(analyzer_for(sample))) != settings["tokenizer"]:
        backend.configure({"tokenizer": chosen})


def _stored_texts(snapshot: Snapshot) -> Iterable[str]:
    """Texts from all over the collection, read a few documents at a time."""
    ids = snapshot.ids_after(-1, None, snapshot.count())
    chosen = ids[np.linspace(0, len(ids) - 1, min(_STORED, len(ids))).astype(np.int64)]
    for start in range(0, len(chosen), _READ):
        for document in snapshot.documents(chosen[start : start + _READ].tolist()):
            yield document.full_text


def _frequent(sample: Sequence[str | None]) -> tuple[str, ...]:
    """The languages of the texts, the most frequent first, without rare ones."""
    counts = Counter(filter(None, sample))
    return tuple(name for name, count in counts.most_common() if count >= _PRESENT * counts.total())


# --------------------------------------------------------------------- what a tokenizer knows


def weight_for(encoder: TextEncoder, texts: Sequence[str]) -> float:
    """The weight that the cosine should have among texts of one language; 0: words alone.

    WEIGHT if the encoder's tokenizer knows the language, as far as can be measured.
    """
    letters = [character for text in texts for character in text if character.isalpha()]
    (joined,) = identify_languages(["\n".join(texts)])
    if joined not in SCRIPTS and 2 * sum(map(_is_latin, letters)) >= len(letters):
        english = _tokens_per_letter(encoder, [_ENGLISH], str.isalpha)
        tokens = _tokens_per_letter(encoder, texts, str.isalpha) / (english or 1.0)
        if tokens <= _PER_LATIN_LETTER or all(weight_for(encoder, [t]) for t in _OTHER_SCRIPTS):
            return WEIGHT
        return _BARELY_READ_WEIGHT if tokens > _BARELY_READ else _UNREAD_WEIGHT
    # No marks count, which tokenizers drop or join to a letter.
    tokens = _tokens_per_letter(encoder, texts, lambda c: c.isalpha() and not _is_latin(c))
    is_whole = tokens <= (_PER_SYLLABLE if joined in SCRIPTS else _PER_LETTER)
    return WEIGHT if is_whole and _unknown_tokens(encoder, texts) <= _UNKNOWN else 0.0


def _unknown_tokens(encoder: TextEncoder, texts: Sequence[str]) -> float:
    """Share of the tokens that the vocabulary does not have: all of them get the same vector."""
    spans = encoder.token_spans(texts)
    parts = (text[a:b] for text, of in zip(texts, spans, strict=True) for a, b in of.tolist())
    if not (tokens := [token for token in parts if token.strip()]):
        return 0.0
    vectors = encoder.encode([_UNKNOWN_SIGN, *tokens[:: len(tokens) // _COMPARED + 1]])
    return float((vectors[1:] @ vectors[0] > _SAME_VECTOR).mean())


def _tokens_per_letter(
    encoder: TextEncoder, texts: Sequence[str], counts: Callable[[str], bool]
) -> float:
    """Tokens that have one of the letters that count, per such letter; 0 without such letters."""
    tokens = letters = 0
    for text, spans in zip(texts, encoder.token_spans(texts), strict=True):
        before = np.concatenate([[0], np.cumsum([counts(character) for character in text])])
        letters += int(before[-1])
        tokens += int((before[spans[:, 1]] > before[spans[:, 0]]).sum())
    return tokens / letters if letters else 0.0


def _is_latin(letter: str) -> bool:
    """Whether a letter is Latin; beyond ASCII, too: Vietnamese has letters at U+1EA0."""
    return letter < "\u0250" or unicodedata.name(letter, "").startswith("LATIN ")


def _in_words(unread: Unread) -> str:
    """The start of a sentence about the documents in these languages."""
    named = [f"{share:.0%} in {language_name(code)}" for code, (share, _) in unread.items()]
    named[0] = named[0].replace(" ", " of these documents are ", 1)
    return " and ".join(filter(None, [", ".join(named[:-1]), named[-1]]))
