"""Documents ranked by words on a server: BM25 with the terms and weights of a folder.

postings        a row for each term of each document: how often it occurs (in the title twice),
                and the length of the document
word_totals     numbers of documents and tokens; their sum counts. Each commit adds a row, so
                that writers do not wait for each other, and now and then one adds them up
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from searchengine.backends.contract import Scored, WordScores
from searchengine.backends.folder import lexical
from searchengine.backends.folder.documents.questions import Word, stems
from searchengine.backends.folder.documents.synonyms import Added
from searchengine.backends.folder.documents.terms import count_terms, terms_of
from searchengine.corpus.analyzer import Analyzer, Tokenizer
from searchengine.indexer.search.bm25 import weight
from searchengine.indexer.storage.words_file import K1, B

if TYPE_CHECKING:
    from searchengine.backends.contract import Entry
    from searchengine.backends.postgresql.pool import Statement, Transaction

_ALL = 1 << 62
_MAX_TOTALS = 500  # rows of word_totals until a writer adds them up
_TOTALS = (
    "SELECT coalesce(sum(documents), 0)::int8, coalesce(sum(tokens), 0)::int8 FROM word_totals"
)
Posting = tuple[bytes, int, float, int]
"""A term, the place of the document among those given, frequency, length of the document."""


def postings_of(entries: Sequence["Entry"], used: Analyzer) -> tuple[list[Posting], list[int]]:
    """The postings of documents, and their lengths in tokens."""
    texts = [(entry.document.title, entry.document.text) for entry in entries]
    lengths, counted = count_terms(texts, used)
    return [(term, i, count, lengths[i]) for term, i, count in counted], lengths


def search(
    index: "Index",
    used: Analyzer,
    question: str,
    k: int,
    synonyms: Mapping[str, Added],
) -> WordScores:
    """The k best documents that share a word with the question, as lexical.search."""

    def occurs(word: Word) -> bool:
        (terms,) = terms_of(used).look_up([word])
        return any(index.counts([(term, word.unfinished) for term in terms], 1))

    query = lexical.counted_words(question, used, _shares(synonyms, index, used, question, occurs))
    if used.tokenizer is Tokenizer.STEM:
        candidates = stems(query, used, question, occurs)
    else:
        candidates = {Word(word): times for word, times in query.items()}
    words = lexical.merged(candidates, used)
    cut = terms_of(used).look_up(list(words))
    terms = {
        (term, word.unfinished): times
        for (word, times), of_word in zip(words.items(), cut, strict=True)
        for term in of_word
    }
    index.prepare(list(terms))
    return lexical.ranked(index, terms, k)


def _shares(
    synonyms: Mapping[str, Added],
    index: "Index",
    used: Analyzer,
    question: str,
    occurs: Callable[[Word], bool],
) -> dict[str, float]:
    """How often each synonym counts: see `lexical.shares`."""
    if not synonyms:
        return {}
    terms: dict[str, list[lexical.Key]] = {}
    for word in {*synonyms, *(word for _, of in synonyms.values() for word in of)}:
        parts = {Word(word): 1.0}
        if used.tokenizer is Tokenizer.STEM:
            parts = stems({word: 1.0}, used, question, occurs)
        cut = terms_of(used).look_up(list(parts))
        terms[word] = [(t, p.unfinished) for p, of in zip(parts, cut, strict=True) for t in of]
    index.prepare([term for cut in terms.values() for term in cut])
    half = (index.documents + 1) // 2
    return lexical.shares(
        synonyms, index.documents, lambda word: min(index.counts(terms[word], half), default=0)
    )


def fault(
    transaction: "Transaction", used: Analyzer, entries: Sequence["Entry"], ids: Mapping[str, int]
) -> str | None:
    """What is wrong with the postings of stored entries (key → id); without entries, the totals."""
    if not entries:
        sql = "SELECT count(*), coalesce(sum(tokens), 0)::int8 FROM documents"
        (expected,), (totals,) = transaction.run((sql, ()), (_TOTALS, ()))
        if expected == totals:
            return None
        return f"word_totals has {totals[0]} documents and {totals[1]} tokens, not {expected}"
    postings, _ = postings_of(entries, used)
    keys = [entry.document.key for entry in entries]
    wanted = {(ids[keys[i]], term, float(count), size) for term, i, count, size in postings}
    sql = "SELECT document, term, frequency, length FROM postings WHERE document = ANY(%s)"
    (rows,) = transaction.run((sql, (list(ids.values()),)))
    if not (other := wanted ^ {(i, bytes(term), float(f), size) for i, term, f, size in rows}):
        return None
    document = min(other)[0]
    key = next(key for key, number in ids.items() if number == document)
    return f"postings has other terms for the document {key!r:.80} than its text"


class Index:
    """A lexical.Index over the postings."""

    def __init__(
        self,
        transaction: "Transaction",
        factor: str = "1",
        condition: str = "true",
        parameters: Sequence[Any] = (),
    ) -> None:
        """`factor`: multiplies a score. `condition`: of documents. `parameters`: of both."""
        self._transaction = transaction
        self._factor, self._condition, self._parameters = factor, condition, parameters
        self._totals: tuple[int, int] | None = None
        self._known: dict[lexical.Key, int] = {}

    def prepare(self, terms: Sequence[lexical.Key]) -> None:
        """Read the totals and the counts of terms at once."""
        missing = [term for term in terms if term not in self._known]
        (totals,), *counts = self._transaction.run(
            (_TOTALS, ()), *(_count(term) for term in missing)
        )
        self._totals = totals
        self._known |= {t: int(rows[0][0]) for t, rows in zip(missing, counts, strict=True)}

    @property
    def documents(self) -> int:
        """Number of documents in the collection."""
        return self._sums()[0]

    def counts(self, terms: Sequence[lexical.Key], limit: int) -> list[int]:
        """How many documents have each term, counted up to `limit`."""
        missing = [term for term in terms if self._known.get(term, -1) < 0]
        if missing:
            statements = [_count(term, limit) for term in missing]
            rows = self._transaction.run(*statements)
            found = {term: int(counted[0][0]) for term, counted in zip(missing, rows, strict=True)}
            if limit == 1:
                return [found.get(term, self._known.get(term, 0)) for term in terms]
            self._known |= found
        return [min(limit, self._known[term]) for term in terms]

    def best(self, terms: Mapping[lexical.Key, float], k: int) -> Scored:
        """The k best documents with one of the terms, by (−score, id)."""
        documents, tokens = self._sums()
        average = tokens / max(1, documents) or 1.0
        counts = self.counts(list(terms), (documents + 1) // 2)
        weights = [n * weight(documents, c) for n, c in zip(terms.values(), counts, strict=True)]
        parts, parameters = [], []
        whole = [(t, w) for (t, begun), w in zip(terms, weights, strict=True) if not begun]
        if whole:
            parts.append(
                "SELECT document, weight, frequency, length FROM unnest(%s::bytea[], %s::float8[]) "
                "AS asked (term, weight) JOIN postings USING (term)"
            )
            parameters += [[t for t, _ in whole], [w for _, w in whole]]
        for ((term, begun), _), value in zip(terms.items(), weights, strict=True):
            if begun:
                parts.append(
                    "SELECT document, %s::float8, sum(frequency), min(length) FROM postings "
                    "WHERE term >= %s AND term < %s GROUP BY document"
                )
                parameters += [value, term, term + b"\xff"]
        gain = f"weight * frequency * {K1 + 1} / (frequency + {K1} * ({1 - B} + {B} * length / %s))"
        scored = (
            f"SELECT document AS id, sum({gain}) AS score FROM ({' UNION ALL '.join(parts)}) "
            "AS found (document, weight, frequency, length) GROUP BY document"
        )
        plain = (self._factor, self._condition) == ("1", "true")
        # Rounded to float4, so that equal documents are equal whatever the order of the sum.
        rounded = f"(score * {self._factor})::float4"
        join = "" if plain else "JOIN documents USING (id) "
        sql = (
            f"SELECT id, {rounded} FROM ({scored}) AS scored {join}WHERE {self._condition} "
            "ORDER BY 2 DESC, 1 LIMIT %s"
        )
        factors = self._factor.count("%s")
        values = (
            *self._parameters[:factors], average, *parameters, *self._parameters[factors:],
            min(k, _ALL),
        )  # fmt: skip
        rows = self._transaction.run((sql, values))[0]
        return [(int(i), float(score)) for i, score in rows]

    def _sums(self) -> tuple[int, int]:
        if self._totals is None:
            ((self._totals,),) = self._transaction.run((_TOTALS, ()))
        assert self._totals is not None
        return self._totals


def _count(term: lexical.Key, limit: int | None = None) -> "Statement":
    """Counts the documents with a term, up to `limit`."""
    text, begun = term
    where, bounds = "term = %s", [text]
    if begun:
        where, bounds = "term >= %s AND term < %s", [text, text + b"\xff"]
    if limit is None:  # the nodes of a cluster return their counts
        counted = "DISTINCT document" if begun else "*"
        return f"SELECT count({counted}) FROM postings WHERE {where}", bounds
    having = f"SELECT DISTINCT document FROM postings WHERE {where} LIMIT {int(limit)}"
    return f"SELECT count(*) FROM ({having}) AS counted", bounds


def count(
    transaction: "Transaction", lengths: Sequence[int], added: int, replaced: Sequence[int]
) -> None:
    """Count documents of these lengths in, `added` of them new; remove the postings of the others.

    Before the lengths of the replaced ones are changed.
    """
    if replaced:
        transaction.later("DELETE FROM postings WHERE document = ANY(%s)", (list(replaced),))
        transaction.later(
            "INSERT INTO word_totals SELECT 0, -coalesce(sum(tokens), 0) FROM documents "
            "WHERE id = ANY(%s)",
            (list(replaced),),
        )
    transaction.later("INSERT INTO word_totals VALUES (%s, %s)", (added, sum(lengths)))
    transaction.later(
        "WITH gone AS (DELETE FROM word_totals WHERE (SELECT count(*) FROM word_totals) > %s "
        "RETURNING documents, tokens) INSERT INTO word_totals "
        "SELECT sum(documents), sum(tokens) FROM gone HAVING count(*) > 0",
        (_MAX_TOTALS,),
    )
