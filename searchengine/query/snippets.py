"""The part of a text to show for a question, and the headings that it is under."""

import re
import unicodedata
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Sequence, Set
from functools import cache, lru_cache
from itertools import pairwise
from operator import attrgetter
from textwrap import dedent
from typing import NamedTuple

from searchengine.corpus.analyzer import ALGORITHMS, Analyzer, Tokenizer
from searchengine.corpus.function_words import function_words
from searchengine.corpus.language_traits import OTHER_UNSPACED, language_of
from searchengine.corpus.normalization import aligned, normalized
from searchengine.corpus.sentences import UNSPACED, sentence_ends

Span = tuple[int, int]
WIDTH = 200
"""Characters of a snippet."""
LONG = 20_000
"""Characters of a passage from which only the part around the words is looked at closely."""
_FEW = 32  # words of a question that are looked up one by one in a long text
_HAN = "".join(f"{chr(low)}-{chr(high)}" for low, high in UNSPACED)
_MARKS = "\u0300-\u036f\u064b-\u065f\u0900-\u0963\u0966-\u0dff"  # also letters of Indian scripts
_APART = f"{_HAN}가-힣{OTHER_UNSPACED}"  # letters whose words are found by their parts
_LETTERS = f"(?:[^\\W{_APART}]|[{_MARKS}])"
_TERM = re.compile(f"(?P<two>[{_HAN}가-힣]+)|(?P<three>[{OTHER_UNSPACED}]+)|{_LETTERS}+")
# Letters of a part, as for the index of words.
_PARTS: dict[str | None, int] = {"two": 2, "three": 3}
_LETTER = re.compile(_LETTERS)
_HIRAGANA = re.compile("[\u3041-\u309f]")  # a part that begins so is an ending or a particle
_COMMON_PARTS = frozenset(  # words of questions and particles, whose parts tell little
    word[i : i + size]
    for size, words in (
        (2, "에서 으로 에게 까지 부터 하는 하고 습니다 합니다 나요 는가 인가 이다 한다 된다"),
        (2, "어떻게 무엇 어디 언제 누구 왜"),
        (2, "什么 怎么 怎样 如何 为什么 哪里 哪个 哪些 多少 什麼 怎麼 為什麼 哪裡"),
        (3, "อย่างไร อะไร เมื่อไร เมื่อไหร่ ทำไม ที่ไหน เท่าไร เท่าไหร่"),
    )
    for word in words.split()
    for i in range(max(1, len(word) - size + 1))
)
_ENDINGS = "(?:ies|ing|ed|es|ly|s|y|e)"
_ENDING = re.compile(rf"(?<=\w{{3}}){_ENDINGS}\Z")
_GROWING = re.compile("[ßİŉǰΐΰևẖ-ẚẞὐ-\u1fff]")  # their casefold may be longer
_LINE_END = re.compile("\n")
_SPACE = re.compile(r"\s")
_JUDGED, _LONGEST = 4000, 160  # characters of a passage, and of a line, that show if it is code
_CODE = re.compile(
    r"""
      .*[{};\\]                                # blocks and statements
    | [)\]}]+[;,:]?                            # ends of brackets
    | (?:@|\#include|\#define|import|from|return|const|let|var|use|export|using)\b[ "<(].*
    | (?:[\w*&:<>\[\],.]+\ )*(?:def|class|func|fn|function|struct|enum|interface|impl)\ \w+.*[:({)]
    | (?:if|elif|else|for|while|try|except|finally|with|match|case|switch|assert|raise)\b.*[:({)]
    | (?:else|try|finally|break|continue|pass|done|fi|end)[:;]?
    | [\w.\[\]"'$:*&\ ]+?\ ?[-+*/|&:?]?=\ ?\S.*  # assignments
    | ["']?[\w.-]+["']?:\ ?["'\[{\d].*         # mappings
    | .*\w\([^()]*(?:\([^()]*\)[^()]*)*\)?[,:;)]*  # calls
    | [\w.]+\(.*
    | \$\ \S.*                                 # of a shell
    | .*(?:->|=>|==|!=|&&|\|\||::).*
    """,
    re.VERBOSE,
)
_WITHIN = re.compile(f"(?:[^\\W{_HAN}]|[{_MARKS}{OTHER_UNSPACED}]){{2}}")  # two letters of one word


def snippet(text: str, question: str, start: int, end: int, width: int = WIDTH) -> str:
    """The part of text[start:end], about `width` characters, with most words of the question.

    It begins at a sentence if that leaves room for the words, else at a word. "…" marks omitted
    text; white space becomes one space. If none of the words occurs, it is the beginning. Long and
    rare words count more. What looks like code keeps its lines and their indentation, and begins
    at a line.
    """
    code = _is_code(text[start : min(end, start + _JUDGED)])
    low, high = _around_words(text, question, start, end, width)
    passage = _compact(text, low, high) if code else " ".join(text[low:high].split())
    before, after = low > start, high < end  # whether text is left out there
    if len(passage) <= width:
        return f"{'…' if before else ''}{passage}{'…' if after else ''}"
    begin, end = _densest(_places(passage, question), width)
    # The last sentence start that keeps the words inside and fills the width.
    first = max(0, end - width)
    if code:
        stops = [match.end() for match in _LINE_END.finditer(passage, max(0, first - 1), begin)]
    else:
        stops = sentence_ends(passage, first, begin)
    begins = [stop for stop in stops if first <= stop <= begin]
    latest = len(passage) - width  # where a snippet begins that ends with the passage
    filling = [stop for stop in begins if stop <= latest]
    start = (filling or (begins[:1] if code else []) or [0])[-1]
    at_end = bool(begins) and not code and begins[-1] > latest  # the last sentence is shown whole
    if at_end or end - start > width:
        start = latest if at_end else min((begin + end - width) // 2, latest)
        while start < begin and (_WITHIN.match(passage, start - 1) or not passage[start].isalnum()):
            start += 1
    low, high = max(end, start + (width + 1) // 2), min(start + width, len(passage))
    stop = passage.rfind("\n", low, high + 1) if code and high < len(passage) else -1
    if stop < 0:
        stop = _word_end(passage, low, high)
    shown = dedent(passage[start:stop]).rstrip() if code else passage[start:stop].strip()
    before, after = before or start > 0, after or stop < len(passage)
    return f"{'…' if before else ''}{shown}{'…' if after else ''}"


def _around_words(text: str, question: str, start: int, end: int, width: int) -> Span:
    """The part of a long passage with most words of the question, and LONG / 4 on both sides.

    It is cut at white space. A short passage is returned as it is.
    """
    if end - start <= max(LONG, 20 * width):
        return start, end
    first, last = _densest(_places(text[start:end], question), width)
    low, high = max(start, start + first - LONG // 4), min(end, start + last + LONG // 4)
    if low > start and (space := _SPACE.search(text, low, start + first)):
        low = space.start()
    if high < end and (space := _SPACE.search(text, high, end)):
        high = min(space.start(), high + LONG // 4)
    return low, high


def _is_code(passage: str) -> bool:
    """True if half of at least three lines look like code; a quarter, if half are indented.

    Comments and docstrings are prose. The first characters decide.
    """
    lines = [line.rstrip() for line in passage[:_JUDGED].splitlines() if line.strip()]
    likely = sum(len(line) <= _LONGEST and bool(_CODE.fullmatch(line.strip())) for line in lines)
    indented = 2 * sum(line.startswith(("  ", "\t")) for line in lines) >= len(lines)
    return len(lines) >= 3 and (4 if indented else 2) * likely >= len(lines)


def _compact(text: str, start: int, end: int) -> str:
    """The lines of text[start:end] without empty ones and without their common indentation."""
    line = text.rfind("\n", 0, start) + 1
    begin = start if text[line:start].strip() else line  # with the indentation of the first
    lines = text[begin:end].expandtabs(4).splitlines()
    return dedent("\n".join(line.rstrip() for line in lines if line.strip()))


def best_section(text: str, question: str, start: int, end: int, bounds: Sequence[int]) -> int:
    """The offset of a section of the text: of those that `snippet` shows, the one with most words.

    `bounds`: the offsets where sections begin, rising. Without words, where the passage begins.
    """
    passage = text[start:end]
    places = _places(passage, question)
    shown = _densest(places, WIDTH)
    inside = [bound - start for bound in bounds if shown[0] < bound - start < shown[1]]
    edges = [shown[0], *inside, shown[1]]
    return start + max(pairwise(edges), key=lambda span: _weight(places, span))[0]


def _word_end(text: str, low: int, high: int) -> int:
    """The last offset in [low, high] that is not within a word, or else `high`."""
    for end in range(high, low - 1, -1):
        if not _WITHIN.match(text, end - 1):
            return end
    while low < high < len(text) and unicodedata.category(text[high]).startswith("M"):
        high -= 1  # a mark stays with its letter
    return high


def word_weights(text: str, question: str, spans: Sequence[Span]) -> list[float]:
    """The weight of the words of the question in each passage of a text.

    Each word counts once, by its length and its rarity in the text; of passages with equal words,
    one where they occur more often weighs a little more.
    """
    places = _places(text, question)
    weights = [_weight(places, span) for span in spans]
    return [weight + 1e-6 * min(count, 1000) for weight, count in weights]


def word_counts(text: str, question: str, spans: Sequence[Span]) -> list[float]:
    """As `word_weights`, by parts of words, which takes a tenth of the time, if it finds any."""
    lowered, weights = text.lower(), [0.0] * len(spans)
    for term in _asked(question, "en")[0]:
        counts = [lowered.count(term, *span) for span in spans]
        for i, count in enumerate(counts):
            weights[i] += len(term) / sum(counts) if count else 0.0
    return weights if any(weights) else word_weights(text, question, spans)


def matched_words(title: str, shown: str, question: str) -> list[str]:
    """The words of a title and a snippet that a question asks for, each once, in lower case.

    They are written as in the text. In Korean, and in scripts without spaces, they are the parts of
    words: two letters or three.
    """
    text = f"{title}\n{shown}"
    return sorted({text[p.start : p.end].lower() for p in _places(text, question) if p.weight})


def _weight(places: Sequence["_Place"], span: Span) -> tuple[int, int]:
    """The weight of the different words in a span, and how many places it has."""
    inside = places[
        bisect_left(places, span[0], key=_start) : bisect_left(places, span[1], key=_start)
    ]
    return sum({place.term: place.weight for place in inside}.values()), len(inside)


class _Place(NamedTuple):
    """A word of the question in a text: its offsets and its weight."""

    start: int
    end: int
    term: str
    weight: int


_start = attrgetter("start")


def _places(text: str, question: str) -> list[_Place]:
    """The places of words of the question in a text, in order.

    Words are equal if their stems are, in the language of the text: a question may be too short to
    tell its own. In scripts without spaces every two or three letters are a word. Korean is treated
    like them, because its words end in particles. Function words have no weight, unless the text
    has no others.
    """
    question, (text, place) = normalized(question), aligned(text)
    language = language_of(text)
    stem, (telling, common) = _stemmer(language), _asked(question, language)
    wanted = telling | common
    matches: list[tuple[int, int, str]] = []
    if stem is None and len(text) > LONG and len(wanted) <= _FEW:
        matches = sorted(_looked_up(text, wanted))
    elif stem is None and text.isascii() and wanted:
        matches = list(_among_ascii(text, wanted))
    elif wanted:
        matches = list(_matches(text, wanted, stem))
    counts = Counter(term for _, _, term in matches)
    silent = frozenset() if telling.isdisjoint(counts) else common - telling
    weights = {
        term: 0 if term in silent else 1000 * len(term) // count for term, count in counts.items()
    }
    return [_Place(*place(start, end), term, weights[term]) for start, end, term in matches]


@lru_cache(64)  # the hits of a question need the same
def _asked(question: str, language: str | None) -> tuple[frozenset[str], frozenset[str]]:
    """The terms of a question for texts of a language: those that tell something, and others."""
    stem, functions = _stemmer(language), function_words((language or "en",))
    telling: set[str] = set()
    common: set[str] = set()
    for match in _TERM.finditer(question):
        word, size = match.group(), _PARTS.get(match.lastgroup)
        if size is None:
            folded = _folded(word)
            terms = common if folded in functions else telling
            terms.add(_stem(folded) if stem is None else stem(word))
        else:
            for i in range(max(1, len(word) - size + 1)):
                part = word[i : i + size]
                tells = part not in _COMMON_PARTS and not _HIRAGANA.match(part)
                (telling if tells else common).add(part)
    return frozenset(telling), frozenset(common)


def _matches(
    text: str, wanted: Set[str], stem: Callable[[str], str] | None = None
) -> Iterator[tuple[int, int, str]]:
    """Start, end and term of every occurrence of the terms in a text; `stem`: None for English."""
    begins = {term[:3] for term in wanted} | {term[:1] for term in wanted}  # most words fail here
    for match in _TERM.finditer(text):
        word, size = match.group(), _PARTS.get(match.lastgroup)
        if size is not None:
            for i, letter in enumerate(word, match.start()):
                if letter in begins:
                    for n in range(1, size + 1):
                        if (part := text[i : i + n]) in wanted and len(part) == n:
                            yield i, i + n, part
        elif stem is not None:
            if (term := stem(word)) in wanted:
                yield *match.span(), term
        elif (folded := _folded(word))[:3] in begins and (term := _stem(folded)) in wanted:
            yield *match.span(), term


@lru_cache(32)
def _stemmer(language: str | None) -> Callable[[str], str] | None:
    """The stem of a word, folded, in a language; None for English, and where it is not known."""
    if language is None or language == "en" or language not in ALGORITHMS:
        return None
    cut = Analyzer(Tokenizer.STEM, (language,)).cutter((language,))
    return lambda word: "".join(cut(word).parts)


def _among_ascii(text: str, wanted: Set[str]) -> Iterator[tuple[int, int, str]]:
    """As _matches, of a text in ASCII: in half the time."""
    for match in _beginning(frozenset(wanted)).finditer(text.lower()):
        if (stem := _stem(match.group())) in wanted:
            yield *match.span(), stem


@lru_cache(64)  # several texts are looked at for a question, and each in two ways
def _beginning(wanted: frozenset[str]) -> re.Pattern[str]:
    """Words that begin as the terms do."""
    begins = {re.escape(term[:3]) for term in wanted if term.isascii()}
    return re.compile(rf"\b(?:{'|'.join(sorted(begins))})\w*" if begins else r"(?!)")


def _looked_up(text: str, wanted: Set[str]) -> Iterator[tuple[int, int, str]]:
    """As _matches, in any order: faster for few terms."""
    folded = text.casefold()
    folded = folded if folded.isascii() else folded.translate(_plain_letters())
    added: list[int] = []  # offsets in `folded` of all but the first character of one in the text
    if len(folded) != len(text):
        for match in _GROWING.finditer(text):
            place = match.start() + len(added)
            added += range(place + 1, place + len(match.group().casefold()))
    for term in wanted:
        if not _LETTER.match(term):
            place = text.find(term)
            while place >= 0:
                yield place, place + len(term), term
                place = text.find(term, place + 1)
            continue
        for match in re.finditer(f"{re.escape(term)}{_ENDINGS}?(?!{_LETTER.pattern})", folded):
            begins = not match.start() or not _LETTER.match(folded, match.start() - 1)
            if begins and _stem(match.group()) == term:
                start, end = (place - bisect_left(added, place) for place in match.span())
                yield start, end, term


def _folded(word: str) -> str:
    """A word without case and accents: as the index folds it."""
    folded = word.casefold()
    if folded.isascii():
        return folded
    decomposed = unicodedata.normalize("NFKD", folded)
    return "".join(c for c in decomposed if not unicodedata.combining(c))


@cache
def _plain_letters() -> dict[int, str]:
    """Accented letters that fold to one letter: the text keeps its length."""
    codes = (*range(0xC0, 0x250), *range(0x1E00, 0x1F00))
    plain = {code: _folded(chr(code)) for code in codes}
    return {code: letter for code, letter in plain.items() if len(letter) == 1}


def _stem(word: str) -> str:
    """An English word without its ending, roughly; at least three letters of it."""
    return _ENDING.sub("", word)


def _densest(places: Sequence[_Place], width: int) -> Span:
    """The span of the places within `width` that have the largest total weight."""
    best, best_worth = (0, 0), 0
    inside: Counter[str] = Counter()
    first = worth = 0
    places = [place for place in places if place.weight and place.end - place.start <= width]
    for place in places:
        if not inside[place.term]:
            worth += place.weight
        inside[place.term] += 1
        while place.end - places[first].start > width:
            dropped = places[first]
            inside[dropped.term] -= 1
            if not inside[dropped.term]:
                worth -= dropped.weight
            first += 1
        if worth > best_worth:
            best, best_worth = (places[first].start, place.end), worth
    return best
