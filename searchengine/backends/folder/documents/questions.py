"""A question as text: its words, and its phrases in quotation marks."""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from typing import NamedTuple

from searchengine.corpus.analyzer import Analyzer, is_letter, runs
from searchengine.corpus.language_traits import UNSPACED_OR_KOREAN
from searchengine.corpus.normalization import normalized

WORDS = 1024
"""Maximum distinct words of a query; the first ones are used."""

PHRASES = 16
"""Maximum phrases of a question; of further ones only the words count."""

_STRAIGHT, _OPENING, _CLOSING = '"', "“„", "”“"
_ALL_MARKS = frozenset(_STRAIGHT + _OPENING + _CLOSING)
_MARKS = str.maketrans(dict.fromkeys(_ALL_MARKS, " "))
# Takes 5 ms to compile, and is seldom needed.
_PIECES = f"([{UNSPACED_OR_KOREAN}]+)|[^{UNSPACED_OR_KOREAN}]+"


class Word(NamedTuple):
    """A word to search for; `unfinished`: every word that begins with it, as one."""

    text: str
    unfinished: bool = False


def words(text: str) -> dict[str, int]:
    """The runs of letters, digits and marks, in order, and how often each occurs.

    Runs that are equal but for case count as the last of them.
    """
    # FTS5 folds case its own way (it knows no final sigma), so the words stay as they were written.
    all_runs = runs(text)
    times = Counter(word.casefold() for word in all_runs)
    last = {word.casefold(): word for word in all_runs}
    return {word: times[folded] for folded, word in last.items()}


class Phrase(NamedTuple):
    """A text between quotation marks; `required`: with a plus sign before it."""

    text: str
    required: bool = False


def phrases(question: str) -> tuple[Phrase, ...]:
    """The distinct texts between pairs of quotation marks that have words, at most PHRASES.

    A straight mark opens a phrase where no word ends, and closes one where none begins: those of
    7" and 12" are inches. A mark without a second one has no meaning.
    """
    question = normalized(question)
    if _ALL_MARKS.isdisjoint(question):
        return ()
    required: dict[str, bool] = {}
    opened = None
    for place, mark in enumerate(question):
        if opened is not None and _closes(question, place, mark):
            text = " ".join(question[opened + 1 : place].split())
            if runs(text):
                plus = _at(question, opened - 1) == "+" and _at(question, opened - 2).isspace()
                required[text] = required.get(text, False) or plus
            opened = None
        elif opened is None and _opens(question, place, mark):
            opened = place
    return tuple(Phrase(*pair) for pair in required.items())[:PHRASES]


def joins_words(phrase: str) -> bool:
    """Whether a phrase is more than a word; in scripts without spaces, than three letters."""
    return len(runs(phrase)) > 1 or bool(re.search(f"[{UNSPACED_OR_KOREAN}]{{4}}", phrase))


def _opens(question: str, place: int, mark: str) -> bool:
    return mark in _OPENING or (mark == _STRAIGHT and not _joins(_at(question, place - 1)))


def _closes(question: str, place: int, mark: str) -> bool:
    return mark in _CLOSING or (mark == _STRAIGHT and not _joins(_at(question, place + 1)))


def _at(text: str, place: int) -> str:
    """A character, or a space before the first one and after the last one."""
    return text[place] if 0 <= place < len(text) else " "


def _joins(character: str) -> bool:
    """Whether a word ends at a mark next to it; in scripts without spaces none does."""
    return is_letter(character) and not re.match(f"[{UNSPACED_OR_KOREAN}]", character)


def unquoted(question: str) -> str:
    """The question, normalized, with spaces in place of the marks around phrases."""
    return normalized(question).replace('+"', '"').translate(_MARKS).strip()


def stems(
    query: Mapping[str, float],
    analyzer: Analyzer,
    question: str,
    occurs: Callable[[Word], bool],
) -> dict[Word, float]:
    """The terms of an analyzer with the tokenizer stem, and how often each counts.

    `question`: the text that tells the language; `query` has the words of synonyms, too.

    A run that is shorter than the parts of its script is the beginning of terms. Of a word that may
    have several terms, by language, those count that a document has (`occurs`), or the first.
    """
    counts = defaultdict[Word, float](float)
    orders = analyzer.orders(question)
    for word, times in query.items():
        for piece in analyzer.pieces(word):
            if piece.part:
                short = len(piece.text) < piece.part
                terms = [Word(term, short) for term in piece.parts(ended=False)]
            else:
                by_order = [Word(analyzer.word(piece.text, order)) for order in orders]
                terms = list(dict.fromkeys(by_order))
                if len(terms) > 1:
                    terms = list(filter(occurs, terms)) or terms[:1]
            for term in terms:
                counts[term] += times
    return counts


def trigrams(query: Mapping[str, float]) -> dict[Word, float]:
    """The words for a trigram index, and how often each counts: those of three letters or more.

    In scripts without spaces, and in Korean, which attaches particles to words, every three letters
    are a word, because a whole run rarely occurs. One or two such letters are the beginning of
    trigrams. So are those of other scripts, if the question has no longer words.
    """
    short = all(len(word) < 3 for word in query)
    counts = defaultdict[Word, float](float)
    for word, times in query.items():
        for piece in re.finditer(_PIECES, word):
            run = piece[0]
            terms = []
            if len(run) < 3 and (piece[1] or short):
                terms = [Word(run, unfinished=True)]
            elif piece[1]:
                terms = [Word(run[i : i + 3]) for i in range(len(run) - 2)]
            elif len(run) >= 3:
                terms = [Word(run)]
            for term in terms:
                counts[term] += times
    return counts
