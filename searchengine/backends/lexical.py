"""Documents ranked by words: BM25 with k1 = 1.2 and b = 0.75, a word of the title counts twice.

Terms of documents are counted here, for the words files. A question becomes terms, with the words
that synonyms add to it, and its phrases in quotation marks:

    phrases('+"heart attack" risk')                     # (Phrase("heart attack", True),)
    added_words("heart attack symptoms", settings)      # {"myocardial": 1.0, …}

Words are compared as the tokenizer of the collection cuts them: a synonym "car" is found in "cars".
"""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from functools import cache, lru_cache
from heapq import nlargest
from itertools import count, islice, pairwise, zip_longest
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np

from searchengine.backends.contract import EXPECTED, Scored, WordScores
from searchengine.corpus.analyzer import Analyzer, Cut, Tokenizer, cutter, names, normalized, runs
from searchengine.corpus.languages import UNSPACED_OR_KOREAN
from searchengine.errors import QueryError
from searchengine.indexer.arrays import Doubles
from searchengine.indexer.search.postings import K1, MOST_TERMS, Counted, weight

TITLE_WEIGHT = 2.0
"""How much more a word of the title counts than one of the text; see docs/searching.md."""
NAMES = 1024
"""Maximum distinct words of a question; the first ones are used."""
FUNCTION_WORD = 1 / 16
"""How often a function word counts, where another word counts once: see `search`."""
COMPOUND = 1 / 4
"""The same of a word with hyphens as a whole, and of the parts of another name beside its whole."""
JOINED, _MOST_JOINED = 1 / 16, 64
"""The same of two neighbouring words as one, and how many words of a question are joined."""
_RUN = f"[^\\W\\d_{UNSPACED_OR_KOREAN}]+"
_COMPOUND, _PAIR = re.compile(f"{_RUN}(?:-{_RUN})+"), re.compile(_RUN)
_NAME = 2  # the column of a Text that has no length
_KNOWN = 1 << 14  # words of questions whose terms are remembered
_LETTERS = 1 << 25
"""Characters of text that are counted at a time; they take some hundred MB in the meantime."""
Orders = tuple[tuple[str, ...], ...]


class Text(NamedTuple):
    """A document as its words are read. name: of its file; it has no length."""

    title: str
    text: str
    name: str = ""


class Term(NamedTuple):
    """A term of a question. Documents have it that have one of its forms.

    Attributes:
        forms: of one word by several languages, in UTF-8.
        unfinished: all terms that begin with the form.
    """

    forms: tuple[bytes, ...]
    unfinished: bool = False


def file_name(key: str) -> str:
    """The name of the file of a document, by its key."""
    return key.partition("#")[0].rpartition("/")[2]


def counted(documents: Iterable[tuple[int, Text]], used: Analyzer) -> Iterator[Counted]:
    """The terms of documents by their first row, some million characters at a time."""
    block: list[tuple[int, Text]] = []
    letters = 0
    for row, text in documents:
        block.append((row, text))
        letters += len(text.text)
        if letters > _LETTERS:
            yield _counted(block, used)
            block, letters = [], 0
    yield _counted(block, used)


def _counted(block: Sequence[tuple[int, Text]], used: Analyzer) -> Counted:
    by_order, number = dict[tuple[str, ...], dict[str, int]](), count()
    numbers, times, sizes = list[int](), list[int](), list[int]()
    for _, text in block:
        order = used.order_of(f"{text.title}\n{text.text}")
        known = by_order.setdefault(order, defaultdict(number.__next__))
        for column in text:
            counts = Counter(names(column))
            numbers += map(known.__getitem__, counts)
            times += counts.values()
            sizes.append(len(counts))
    cuts = [Cut(())] * next(number)
    for order, known in by_order.items():
        for name, at in known.items():
            cuts[at] = cutter(order)(name)
    terms = [(*cut.parts, *filter(None, [cut.whole]), *cut.inner) for cut in cuts]
    # A lone surrogate, which UTF-8 has no bytes for, belongs to no word.
    vocabulary = sorted({term.encode() for each in terms for term in each})
    places = {term: i for i, term in enumerate(vocabulary)}
    flat = np.array([places[term.encode()] for each in terms for term in each], np.int64)
    lengths = np.array([*map(len, terms)], np.int64)
    parts = np.array([len(cut.parts) for cut in cuts], np.int64)
    of_name, often = np.array(numbers, np.int64), np.array(times, np.int64)
    place = np.repeat(np.arange(len(sizes)), sizes)
    document, column_of = np.divmod(place, len(Text._fields))
    in_text = (column_of < _NAME) * often * parts[of_name]
    # Each name becomes its terms.
    repeats = lengths[of_name]
    first = np.repeat(np.cumsum(lengths)[of_name] - np.cumsum(repeats), repeats)
    documents = max(1, len(block))
    keys = flat[first + np.arange(first.size)] * documents + np.repeat(document, repeats)
    weights: Doubles = np.repeat(np.where(column_of == 0, TITLE_WEIGHT, 1.0) * often, repeats)
    by_term = np.argsort(keys, kind="stable")
    keys, weights = keys[by_term], weights[by_term]
    heads = np.flatnonzero(np.diff(keys, prepend=-1))
    if heads.size:
        weights = np.add.reduceat(weights, heads)
    term_of, document_of = np.divmod(keys[heads], documents)
    return Counted(
        rows=np.array([row for row, _ in block], np.int64),
        lengths=np.bincount(document, in_text, minlength=len(block)).astype(np.uint32),
        vocabulary=vocabulary,
        starts=np.searchsorted(term_of, np.arange(len(vocabulary) + 1)),
        documents=document_of,
        frequencies=weights,
    )


def counted_names(question: str, functions: Set[str]) -> dict[str, float]:
    """The words of a question, and how often each counts. Equal but for case, they are one.

    `functions`: function words.
    """
    listed = names(question)
    keys = [*map(str.casefold, listed)]
    last, times = dict(zip(keys, listed, strict=True)), Counter(keys)
    return {
        name: times[key] * (FUNCTION_WORD if key in functions else 1.0)
        for key, name in islice(last.items(), NAMES)
    }


def asked_terms(
    words: Mapping[str, float],
    orders: Orders,
    occurs: Callable[[Term], object],
) -> dict[Term, float]:
    """The terms of words, and how often each counts.

    A word is one term, whatever forms it has by language, and so are words that share a form. A
    name as a whole counts if a document has it; then its parts count less, or the whole of a word
    with hyphens. `orders`: those of the analyzer.
    """
    weights, first = dict[Term, float](), dict[bytes, Term]()
    for word, times in words.items():
        wholes, parts, is_compound = _terms_of(word, orders)
        of_whole = of_part = times
        if wholes and (wholes := [*filter(occurs, wholes)]):
            less = COMPOUND * times
            of_whole, of_part = (less, times) if is_compound else (times, less)
        for terms, often in ((wholes, of_whole), (parts, of_part)):
            for term in terms:
                more = often
                for form in () if term.unfinished else term.forms:
                    if form in first and (other := first[form]) in weights:
                        more += weights.pop(other)
                        term = Term(tuple(dict.fromkeys((*term.forms, *other.forms))))
                weights[term] = more + (weights[term] if term in weights else 0.0)
                for form in () if term.unfinished else term.forms:
                    first[form] = term
    return weights


def joined_words(question: str, functions: Set[str]) -> list[str]:
    """Each two neighbouring words as one: documents may have "filename" for "file name"."""
    listed = map(str.casefold, names(question)[:_MOST_JOINED])
    return [
        a + b
        for a, b in pairwise(listed)
        if a not in functions and b not in functions and _PAIR.fullmatch(a + b)
    ]


@lru_cache(_KNOWN)
def _terms_of(word: str, orders: Orders) -> tuple[Sequence[Term], Sequence[Term], bool]:
    """The terms of a name as a whole, and of its parts; whether it is a word with hyphens."""
    cuts = [cutter(order)(word) for order in orders]
    wholes = _forms([(cut.whole, *cut.inner) for cut in cuts]) if cuts[0].whole else []
    parts = _forms([cut.asked for cut in cuts])
    return (
        [*map(Term, wholes)],
        [Term(forms, len(forms[0].decode()) < cuts[0].size) for forms in parts],
        bool(_COMPOUND.fullmatch(word)),
    )


def _forms(columns: Sequence[tuple[str, ...]]) -> list[tuple[bytes, ...]]:
    """The forms of each part by the languages, each once."""
    rows = zip_longest(*columns, fillvalue="")
    forms = [tuple(dict.fromkeys([form.encode() for form in row if form])) for row in rows]
    return [*filter(None, forms)]


MANY, NOT_TELLING = 10, 1.0
"""Among MANY documents or more, words that half of them have tell nothing. A question of such words
alone expects a score of NOT_TELLING, so that noise does not count as a match."""
_first = itemgetter(0)
Best = Callable[[Mapping[Term, float], int], Scored]
"""The k best documents with one of the terms, by (−score, id), by weights and k. A document gains
the weight of a term, more the more often it has it: K1 + 1 times at most."""
Counts = Callable[[Sequence[Term], int], list[int]]
"""How many documents have each term; one may stop counting at the number."""


def analyzer_of(settings: Mapping[str, Any]) -> Analyzer:
    """How the documents of a collection became terms. Raises QueryError: it has no words."""
    used = Analyzer.parse(settings["tokenizer"])
    if used.tokenizer is Tokenizer.NONE:
        raise QueryError(
            "this collection has no index of words; search with mode='vector', or index into a "
            "new collection with a tokenizer"
        )
    return used


def search(
    documents: int, counts: Counts, best: Best, question: str, k: int, settings: Mapping[str, Any]
) -> WordScores:
    """The k best documents that share a word with the question: (id, BM25), by (−score, id).

    `question` is text and never syntax: a document needs one of its words. Scores are positive, and
    comparable within one result only. A question without words has no results. `documents`:
    how many there are. `settings`: those of the collection, with its analyzer and synonyms.

    A term weighs the square root of its occurrences in the question: nDCG@10 of questions of 150
    words is 0.034 higher than if it counts once. Four function words count as another one.

    The scale grows with the part of the question that no document has.

    The rarest MOST_TERMS terms count. With more, long questions are answered worse: of questions
    with 276 terms, nDCG@10 is 0.594 with 128 of them and 0.544 with all.

    Terms in half of the documents or more count only if there are fewer than k with another one:
    their inverse document frequency is nearly 0, and they take most of the time.
    """
    terms, joined = _question_terms(counts, question, settings)
    half = (documents + 1) // 2
    every = {**joined, **terms}
    counted = sorted(zip(counts([*every], half), every.items(), strict=True), key=_first)
    missing = [each for count, each in counted if not count]
    absent = [math.sqrt(times) for term, times in missing if term in terms]
    known = counted[len(missing) : len(missing) + MOST_TERMS]
    weights = {term: math.sqrt(n) * weight(documents, count) for count, (term, n) in known}
    most = (K1 + 1) * math.fsum(nlargest(EXPECTED, weights.values()))
    if absent and weights:
        # A question in another language has a name or a number in common with documents by chance.
        most *= 1 + weight(documents, 1) * math.fsum(absent) / math.fsum(weights.values())
    rare = dict(islice(weights.items(), sum([count < half for count, _ in known])))
    if weights and not rare and documents >= MANY:
        most = max(most, NOT_TELLING)
    scored = best(rare, k) if rare else []
    if len(scored) < k and len(rare) < len(weights):  # the others follow, whatever k is
        seen, lowest = dict(scored), scored[-1][1] if scored else math.inf
        more = best(weights, k)
        scored += [(i, min(score, lowest)) for i, score in more if i not in seen]
    return WordScores(scored[:k], max(most, scored[0][1] if scored else 0.0) or 1.0)


def _question_terms(
    counts: Counts, question: str, settings: Mapping[str, Any]
) -> tuple[dict[Term, float], dict[Term, float]]:
    """The terms of a question, how often each counts, and the same of those that join two words."""
    used = analyzer_of(settings)
    functions, orders = function_words(used.languages), used.orders
    words = counted_names(question, functions)
    for word, share in added_words(question, settings).items():
        words[word] = share**2  # `search` takes the root
    pairs = dict.fromkeys(joined_words(question, functions), JOINED)
    terms = asked_terms(words, orders, lambda term: counts([term], 1)[0] > 0)
    return terms, asked_terms(pairs, orders, lambda _: False)


MAX_ADDED = 64
"""Maximum words that are added to a question."""

_Terms = tuple[str, ...]
_Groups = Mapping[_Terms, list[tuple[str, list[str]]]]
"""Terms of a synonym → the synonym, with each of its groups."""


def added_words(question: str, settings: Mapping[str, Any]) -> dict[str, float]:
    """The words of synonyms of a question, and how often each counts.

    A synonym of n words counts for m words of the question: each of its words by m / n, at most 1,
    before the square root of `search`. Words in quotation marks have no synonyms.
    """
    if not (text := settings.get("synonyms")):
        return {}
    used = Analyzer.parse(settings["tokenizer"])
    groups, quoted = _groups(text, used), [_terms(p.text, used) for p in phrases(question)]
    terms, counts = _terms(question, used), dict[str, float]()
    start, longest, spelling = 0, max(map(len, groups), default=0), dict[_Terms, str]()
    while start < len(terms):
        rest = terms[start : start + longest]
        size = next((n for n in range(len(rest), 0, -1) if rest[:n] in groups), 0)
        found = f" {' '.join(rest[:size])} "
        if size and not any(found in f" {' '.join(phrase)} " for phrase in quoted):
            for one, group in groups[rest[:size]]:
                others = {o: min(1.0, size / len(_terms(o, used))) for o in group if o != one}
                for word, share in ((w, n) for o, n in others.items() for w in runs(o)):
                    if not set(terms).issuperset(own := _terms(word, used)):
                        word = spelling.setdefault(own, word)
                        counts[word] = max(counts.get(word, 0.0), share)
        start += max(1, size)
    return dict(islice(counts.items(), MAX_ADDED))


def with_added(question: str, settings: Mapping[str, Any]) -> str:
    """A question with the words of its synonyms at the end, to mark them in texts."""
    return " ".join([question, *added_words(question, settings)])


def known_synonyms(settings: Mapping[str, Any]) -> frozenset[str]:
    """The words of all groups, in lower case: typing errors are not looked for in them."""
    return frozenset(map(str.casefold, runs(settings.get("synonyms") or "")))


@lru_cache(maxsize=32)
def _groups(text: str, used: Analyzer) -> _Groups:
    """The groups of a setting, ready to be looked up."""
    groups = defaultdict[_Terms, list[tuple[str, list[str]]]](list)
    for line in text.splitlines():
        group = [synonym for synonym in line.split(", ") if _terms(synonym, used)]
        for one in group:
            groups[_terms(one, used)].append((one, group))
    return dict(groups)


@lru_cache(maxsize=4096)
def _terms(text: str, used: Analyzer) -> _Terms:
    """The terms of a text, in order."""
    return tuple(term for cut in used.cuts(text) for term in cut.asked)


_FORBIDDEN = re.compile("[\ud800-\udfff]|,|=>")


def stored_synonyms(groups: Iterable[Iterable[str]]) -> str:
    """Groups as a setting: a line each, separated by commas. Raises QueryError."""
    listed = _listed(groups, "synonyms must be a list of groups")
    return "\n".join(", ".join(_checked(group)) for group in listed)


def _listed(values: Any, rule: str) -> Iterable[Any]:
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise QueryError(f"{rule}, got {values!r:.80}")
    return values


def _checked(group: Iterable[str]) -> tuple[str, ...]:
    synonyms: dict[str, str] = {}
    for synonym in _listed(group, "a group of synonyms must be a list of texts"):
        text = " ".join(synonym.split()) if isinstance(synonym, str) else ""
        if not runs(text) or _FORBIDDEN.search(text):  # all of a group stand for each other: no =>
            raise QueryError(
                "a synonym must be text of one word or more in UTF-8, without commas and =>, got "
                f"{synonym!r:.80}"
            )
        synonyms.setdefault(text.casefold(), text)
    if len(synonyms) < 2:
        listed = ", ".join(synonyms.values())
        raise QueryError(f"a group must have at least 2 different synonyms, got {listed!r:.80}")
    return tuple(synonyms.values())


# ----------------------------------------------------------------------------------- function words

# The most frequent words of grammar and of questions. In a small collection, and in one of
# statements, "how" and "do" are rare, so BM25 takes them for telling words. They are counted less,
# not left out: "to be or not to be" is made of nothing else.
_WORDS = """
en: a an the this that these those some any each of in on at by for from to into with without about
    between during as than and or but if while so what which who when where why how much many is are
    was were be been being am do does did has have had can could will would should may must i you he
    she it we they us me my your its their there no not s t
de: der die das den dem des ein eine einen einem einer in im an am auf aus bei mit nach von zu zum
    zur für und oder als wie was wer wo wann warum welche welcher welches viele ist sind war hat
    wird werden kann nicht sich es
fr: le la les l un une des du de d au aux ce cette en dans sur par pour avec et ou que qu qui quoi
    quel quelle quels quelles où quand comment pourquoi combien est sont a ont il elle on se s ne
es: el la los las un una al del de a en por para con y o que como se su qué quién cuál cuáles
    cuándo cómo dónde cuánto cuántos cuántas es son era fue fueron ser está hay ha tiene no lo
it: il lo la i gli le l un una di d del della dei delle da dal in nel nella su per con a al alla e o
    che chi cosa quale quali quanto quanti quando come dove perché è sono era ha si non
pt: o a os as um uma ao à do da dos das no na de em por para com e ou que quem qual quais quanto
    quantos quando como onde é são era foi foram ser está tem há se seu sua não
nl: de het een in op aan van met voor door bij uit naar te en of dat die deze wat wie waar wanneer
    waarom hoe welk welke hoeveel is zijn was waren wordt werd heeft hebben kan er niet
ru: в во на с к о об от из за по для у и а но или не что как кто кого где когда куда почему сколько
    чем какой какая какое какие каком каким какую каких который это он был была было были является
tr: ne neyi nedir neden hangi hangisi kim kimdir kaç nasıl nerede zaman bir bu şu o ve veya ile için
    gibi olarak olan de da ki en daha mi mı in ın nin nın oldu vardır tarafından
sv: en ett den det de i på av för med till från om och eller att som är var har blev kan vad vem
    vilken vilket vilka när hur varför många mycket finns inte sig
pl: w we na z ze do od o za dla przez i oraz a że jak czy co kto kogo czym czego jest są był była
    były być ma się który która które jaki jaka jakie jakim kiedy gdzie dlaczego ile to nie
ar: في من إلى على عن مع بين منذ بعد قبل و أو أن ما ماذا متى أين كيف كم لماذا هل أي هو هي الذي التي
    هذا هذه كان كانت تم لم لا به
vi: là của và với cho các những một cái này đó được bị đã đang sẽ có thể ở trong từ đến vào do bởi
    theo như gì nào ai sao đâu bao nhiêu khi thế mà tại không nó
da: en et den det de i på af for med til fra om og eller at som er var har blev kan hvad hvem
    hvilken hvilket hvilke hvor hvornår hvordan hvorfor mange meget findes ikke sig
"""
_FUNCTION_WORDS = {
    code: frozenset(words.split())
    for code, words in re.findall(r"^(\w+): ([^:]+)$", _WORDS, re.MULTILINE)
}
"""Language, by its code of ISO 639 → word forms in lower case."""


@cache
def function_words(languages: tuple[str, ...]) -> frozenset[str]:
    """The most frequent function words of languages, in lower case; of none, the English ones."""
    listed = (_FUNCTION_WORDS.get(language, ()) for language in languages or ("en",))
    return frozenset().union(*listed)


PHRASES = 16
"""Maximum phrases of a question; of further ones only the words count."""

_MARKS = str.maketrans(dict.fromkeys('"“„”', " "))
# A letter or a mark of one, next to which a word ends or begins; in scripts without spaces none.
_LETTER = f"(?:[^\\W_{UNSPACED_OR_KOREAN}]|[\u0300-\u036f\u0591-\u05bd\u064b-\u065f\u0900-\u0dff])"
_PHRASE = re.compile(
    rf'((?<!\S)\+)?(?:[“„]|(?<!{_LETTER})")(.*?)([”“]|"(?!{_LETTER})|\Z)', re.DOTALL
)


class Phrase(NamedTuple):
    """A text between quotation marks; `required`: with a plus sign before it."""

    text: str
    required: bool = False


@lru_cache(256)
def phrases(question: str) -> tuple[Phrase, ...]:
    """The distinct texts between pairs of quotation marks that have words, at most PHRASES.

    A straight mark opens a phrase where no word ends, and closes one where none begins: those of
    7" and 12" are inches. A mark without a second one has no meaning.
    """
    required: dict[str, bool] = {}
    for plus, between, end in _PHRASE.findall(normalized(question)):
        text = " ".join(between.split())
        if end and runs(text):
            required[text] = required.get(text, False) or bool(plus)
    return tuple(Phrase(*pair) for pair in required.items())[:PHRASES]


def unquoted(question: str) -> str:
    """The question, normalized, with spaces in place of the marks around phrases."""
    return normalized(question).replace('+"', '"').translate(_MARKS).strip()
