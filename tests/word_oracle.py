"""BM25 written out, over the terms of an analyzer: what words files must give."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence

import pytest

from searchengine import SearchEngine
from searchengine.backends import lexical
from searchengine.backends.lexical import function_words, phrases
from searchengine.corpus.analyzer import Analyzer

TITLE = 2.0  # the weight of a title's word (docs/searching.md)


def bm25(texts: Mapping[str, tuple[str, str]], used: Analyzer, question: str) -> dict[str, float]:
    """Key → score, of the documents (title and text) that have a term of the question."""
    counts: dict[str, Counter[bytes]] = {}
    lengths: dict[str, int] = {}
    for key, (title, text) in texts.items():
        order = used.order_of(f"{title}\n{text}")
        counts[key] = Counter()
        for column, weight in ((title, TITLE), (text, 1.0)):
            for cut in used.cuts(column, order):
                for term in filter(None, (*cut.parts, cut.whole, *cut.inner)):
                    counts[key][term.encode()] += weight  # type: ignore[assignment]
        lengths[key] = sum(len(c.parts) for t in (title, text) for c in used.cuts(t, order))
    average = sum(lengths.values()) / max(1, len(texts)) or 1.0

    def often(key: str, term: lexical.Term) -> float:
        return sum(
            times
            for form, times in counts[key].items()
            if (form.startswith(term.forms) if term.unfinished else form in term.forms)
        )

    def occurs(term: lexical.Term) -> bool:
        return any(often(key, term) for key in texts)

    scores: Counter[str] = Counter()
    functions, orders = function_words(used.languages), used.orders
    asked = lexical.asked_terms(lexical.counted_names(question, functions), orders, occurs)
    joined = dict.fromkeys(lexical.joined_words(question, functions), lexical.JOINED)
    asked = {**lexical.asked_terms(joined, orders, lambda _: False), **asked}
    for term, times in asked.items():
        frequencies = {key: often(key, term) for key in texts}
        having = sum(map(bool, frequencies.values()))
        idf = math.log((len(texts) + 1) / (having + 0.5)) if 2 * having < len(texts) else 1e-6
        for key, frequency in frequencies.items():
            if frequency:
                norm = 1.2 * (0.25 + 0.75 * lengths[key] / average)
                scores[key] += math.sqrt(times) * idf * frequency * 2.2 / (frequency + norm)  # type: ignore[assignment]
    return dict(scores)


def agree(engine: SearchEngine, question: str, k: int, where: str | None = None) -> None:
    """A search by words finds what `bm25` does; words in half of the documents may be left out."""
    used = Analyzer.parse(engine.stats().tokenizer)
    documents = {document.key: document for document in engine.documents()}
    expected = bm25({key: (d.title, d.text) for key, d in documents.items()}, used, question)
    if where is not None:
        allowed = {document.key for document in engine.documents(where)}
        expected = {key: score for key, score in expected.items() if key in allowed}
    with engine.collection.reading() as snapshot:
        scored = snapshot.by_words(question, k, where, required=_required(question)).scored
        keys = snapshot.store.keys_of([document for document, _ in scored])
    found = dict(zip(keys, (score for _, score in scored), strict=True))
    assert scored == sorted(scored, key=lambda pair: (-pair[1], pair[0]))
    if not _required(question):
        assert len(found) == min(k, len(expected))
        best = sorted(expected.values(), reverse=True)[:k]
        assert list(found.values()) == pytest.approx(best, abs=1e-4)
    for key, score in found.items():
        assert score == pytest.approx(expected[key], abs=1e-4)


def _required(question: str) -> Sequence[str]:
    return tuple(each.text for each in phrases(question))
