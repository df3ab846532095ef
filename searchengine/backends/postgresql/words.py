"""Documents ranked by words on a server: BM25 with the terms and weights of a folder.

postings        a row for each term of each document: how often it occurs (in the title twice),
                and the length of the document
word_totals     numbers of documents and tokens; their sum counts. Each commit adds a row, so
                that writers do not wait for each other, and now and then one adds them up
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from searchengine.backends.contract import Scored
from searchengine.backends.terms import Term, Text, counted, file_name
from searchengine.corpus.analyzer import Analyzer, Tokenizer
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
    """The postings of documents, and their lengths in words."""
    if used.tokenizer is Tokenizer.NONE:
        return [], [0] * len(entries)
    postings: list[Posting] = []
    lengths: list[int] = []
    documents = (entry.document for entry in entries)
    named = ((d, file_name(d.key) if d.root else "") for d in documents)
    texts = ((i, Text(d.title, d.text, name)) for i, (d, name) in enumerate(named))
    for chunk in counted(texts, used):
        lengths += chunk.lengths.tolist()
        term_of, places, times = chunk.take(0, len(chunk.vocabulary))
        for term, row, count in zip(term_of, chunk.rows[places], times, strict=True):
            postings.append((chunk.vocabulary[term], int(row), float(count), lengths[row]))
    return postings, lengths


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
        self._known: dict[Term, int] = {}

    @property
    def documents(self) -> int:
        """Number of documents in the collection."""
        return self._sums()[0]

    def counts(self, terms: Sequence[Term], limit: int) -> list[int]:
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

    def best(self, weights: Mapping[Term, float], k: int) -> Scored:
        """The k best documents with one of the terms, by (−score, id)."""
        documents, tokens = self._sums()
        average = tokens / max(1, documents) or 1.0
        parts, parameters = [], []
        whole = [(term.forms[0], value) for term, value in weights.items() if _is_one(term)]
        if whole:
            parts.append(
                "SELECT document, weight, frequency, length FROM unnest(%s::bytea[], %s::float8[]) "
                "AS asked (term, weight) JOIN postings USING (term)"
            )
            parameters += [[t for t, _ in whole], [w for _, w in whole]]
        for term, value in weights.items():
            if not _is_one(term):
                having, bounds = _having(term)
                parts.append(
                    "SELECT document, %s::float8, sum(frequency), min(length) FROM postings "
                    f"WHERE {having} GROUP BY document"
                )
                parameters += [value, *bounds]
        gain = f"weight * frequency * {K1 + 1} / (frequency + {K1} * ({1 - B} + {B} * length / %s))"
        scored = (
            f"SELECT document AS id, sum({gain}) AS score FROM ({' UNION ALL '.join(parts)}) "
            "AS found (document, weight, frequency, length) GROUP BY document"
        )
        plain = (self._factor, self._condition) == ("1", "true")
        # Rounded to float4, so that equal documents are equal whatever the order of the sum.
        rounded = f"(score * {self._factor})::float4"
        factors = self._factor.count("%s")
        values = *self._parameters[:factors], average, *parameters, *self._parameters[factors:]

        def rows(count: int, join: str, tie: str) -> list[tuple[Any, ...]]:
            sql = (
                f"SELECT id, {rounded} FROM ({scored}) AS scored {join}WHERE {self._condition} "
                f"ORDER BY 2 DESC, {tie} LIMIT %s"
            )
            return self._transaction.run((sql, (*values, min(count, _ALL))))[0]

        join = "JOIN documents USING (id) "
        best = rows(k + 1, "" if plain else join, "1")
        if len(best) > k > 0 and best[k][1] == best[k - 1][1]:  # keys tell which are among them
            best = sorted(rows(k, join, 'key COLLATE "C"'), key=lambda row: (-row[1], row[0]))
        return [(int(i), float(score)) for i, score in best[:k]]

    def _sums(self) -> tuple[int, int]:
        if self._totals is None:
            ((self._totals,),) = self._transaction.run((_TOTALS, ()))
        assert self._totals is not None
        return self._totals


def _is_one(term: Term) -> bool:
    return len(term.forms) == 1 and not term.unfinished


def _having(term: Term) -> tuple[str, list[Any]]:
    """The condition of postings for a term, and its parameters."""
    if not term.unfinished:
        return "term = ANY(%s)", [list(term.forms)]
    (beginning,) = term.forms
    return "term >= %s AND term < %s", [beginning, beginning + b"\xff"]


def _count(term: Term, limit: int | None = None) -> "Statement":
    """Counts the documents with a term, up to `limit`."""
    where, bounds = _having(term)
    if limit is None:  # the nodes of a cluster return their counts
        counted = "*" if _is_one(term) else "DISTINCT document"
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
