"""Documents ranked by words: BM25 with k1 = 1.2 and b = 0.75, a word of the title counts twice."""

import math
from collections.abc import Callable, Mapping, Sequence
from heapq import nlargest
from itertools import islice
from operator import itemgetter
from typing import Protocol

from searchengine.backends.contract import EXPECTED, Scored, WordScores
from searchengine.backends.terms import (
    JOINED,
    Term,
    asked_terms,
    counted_names,
    joined_words,
)
from searchengine.corpus.analyzer import Analyzer
from searchengine.corpus.language_traits import function_words
from searchengine.indexer.search.bm25 import weight
from searchengine.indexer.storage.words_file import K1

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
