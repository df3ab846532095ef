"""Documents ranked by words: BM25 with k1 = 1.2 and b = 0.75, a word of the title counts twice.

Terms of documents are counted here, for the words files; and a question becomes terms.
"""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from functools import lru_cache
from heapq import nlargest
from itertools import count, islice, pairwise, zip_longest
from operator import itemgetter
from typing import NamedTuple, Protocol

import numpy as np

from searchengine.backends.contract import EXPECTED, Scored, WordScores
from searchengine.corpus.analyzer import Analyzer, Cut, cutter, names
from searchengine.corpus.language_traits import UNSPACED_OR_KOREAN, function_words
from searchengine.indexer.arrays import Doubles
from searchengine.indexer.search.bm25 import weight
from searchengine.indexer.storage.words_file import K1, Counted

TITLE_WEIGHT = 2.0
"""How much more a word of the title counts than one of the text; see docs/searching.md."""
NAMES = 1024
"""Maximum distinct words of a question; the first ones are used."""
FUNCTION_WORD = 1 / 16
"""How often a function word counts, where another word counts once: see `lexical.search`."""
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


TERMS = 128
"""Maximum terms to search for; the rarest ones are used. With more, long questions are answered
worse: of questions with 276 terms, nDCG@10 is 0.594 with 128 of them and 0.544 with all."""
MANY, NOT_TELLING = 10, 1.0
"""Among MANY documents or more, words that half of them have tell nothing. A question of such words
alone expects a score of NOT_TELLING, so that noise does not count as a match."""
_first = itemgetter(0)
MISSING = (
    "this collection has no index of words; search with mode='vector', or index into a "
    "new collection with a tokenizer"
)

Best = Callable[[Mapping[Term, float], int], Scored]
"""The k best documents with one of the terms, by (−score, id), by weights and k. A document gains
the weight of a term, more the more often it has it: K1 + 1 times at most."""


class Index(Protocol):
    """Counts the documents of a collection.

    Attributes:
        documents: how many there are.
    """

    documents: int

    def counts(self, terms: Sequence[Term], limit: int) -> list[int]:
        """How many documents have each term; an index may stop counting at `limit`."""


def search(
    index: Index,
    best: Best,
    question: str,
    analyzer: Analyzer,
    k: int,
    synonyms: Mapping[str, float],
) -> WordScores:
    """The k best documents that share a word with the question: (id, BM25), by (−score, id).

    `question` is text and never syntax: a document needs one of its words. Scores are positive, and
    comparable within one result only. A question without words has no results. `analyzer`: by
    which documents became terms. `synonyms`: other words to search for, see `synonyms`.

    A term weighs the square root of its occurrences in the question: nDCG@10 of questions of 150
    words is 0.034 higher than if it counts once. Four function words count as another one.

    The scale grows with the part of the question that no document has.

    Terms in half of the documents or more count only if there are fewer than k with another one:
    their inverse document frequency is nearly 0, and they take most of the time.
    """
    terms, joined = _terms(index, question, analyzer, synonyms)
    documents = index.documents
    half = (documents + 1) // 2
    every = {**joined, **terms}
    counted = sorted(zip(index.counts([*every], half), every.items(), strict=True), key=_first)
    missing = [each for count, each in counted if not count]
    absent = [math.sqrt(times) for term, times in missing if term in terms]
    known = counted[len(missing) : len(missing) + TERMS]
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


def _terms(
    index: Index, question: str, analyzer: Analyzer, synonyms: Mapping[str, float]
) -> tuple[dict[Term, float], dict[Term, float]]:
    """The terms of a question, how often each counts, and the same of those that join two words."""
    functions, orders = function_words(analyzer.languages), analyzer.orders
    words = counted_names(question, functions)
    words |= {word: share**2 for word, share in synonyms.items()}  # `search` takes the root
    pairs = dict.fromkeys(joined_words(question, functions), JOINED)
    terms = asked_terms(words, orders, lambda term: index.counts([term], 1)[0] > 0)
    return terms, asked_terms(pairs, orders, lambda _: False)
