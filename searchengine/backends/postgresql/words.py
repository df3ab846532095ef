"""Documents ranked by words on a server: BM25 with the terms and weights of a folder.

The column `words` of a document is a tsvector of its terms, which this writes, so PostgreSQL finds
documents with a term or a phrase by their index. A word of the title is in it twice, and counts so.
For a term that occurs f times, `ts_rank` is (1 + 1/4 + … + 1/f²) · 6/π², so it tells f.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

from searchengine.backends.contract import Scored
from searchengine.backends.lexical import Term, file_name
from searchengine.backends.postgresql.connections import Rows, Statement
from searchengine.corpus.analyzer import Analyzer, Tokenizer, cutter, names, normalized
from searchengine.corpus.documents import Document
from searchengine.indexer.storage.words_file import K1, B

_LONGEST, _MOST, _BYTES = 2046, 255, 1_000_000
"""Limits of a tsvector: bytes of a term, its places, and bytes in all (terms that come later are
left out)."""
_TOTALS = (
    "SELECT coalesce(sum(documents), 0)::int8, coalesce(sum(tokens), 0)::int8 FROM word_totals"
)
_TIMES = "round(1 / (1.6449340668 * (1 - ts_rank('{{1,1,1,1}}', words, {}::tsquery))) - 0.5)"  # f


def vector_of(document: Document, used: Analyzer) -> tuple[str | None, int]:
    """The terms of a document as a tsvector in text, and its length in terms."""
    if used.tokenizer is Tokenizer.NONE:
        return None, 0
    cut = cutter(used.order_of(f"{document.title}\n{document.text}"))
    places, beside = defaultdict[str, list[int]](list), list[str]()
    place = length = 0
    name = file_name(document.key) if document.root else ""
    for column, is_counted in (
        (document.title, 1), (document.title, 0), (document.text, 1), (name, 0)
    ):  # fmt: skip
        place += 1  # no phrase goes on in another column
        for each in map(cut, names(column)):
            for part in each.parts:
                place += 1
                places[part].append(place)
            length += is_counted * len(each.parts)
            beside += [*filter(None, [each.whole]), *each.inner]
    for term in beside:
        place += 2
        places[term].append(place)
    size, written = 0, []
    for term, at in places.items():
        size += (longest := len(term.encode())) + 2 * len(at) + 8
        if longest <= _LONGEST and size < _BYTES:
            written.append(f"{quoted(term)}:{','.join(map(str, at[:_MOST]))}")
    return " ".join(written), length


def quoted(term: str) -> str:
    """A term as tsvector and tsquery write it."""
    return "'{}'".format(term.replace("\\", "\\\\").replace("'", "''"))


def phrase_query(phrase: str, used: Analyzer) -> str:
    """The tsquery of documents that contain a phrase; "" if it has no words, which none do."""
    found = []
    for order in used.orders:
        place, before, written = 0, 0, ""
        for each in map(cutter(order), names(phrase)):
            for at, part in enumerate(each.asked, place + 1):
                written += f" <{at - before}> {quoted(part)}" if written else quoted(part)
                before = at
            place += len(each.parts)
        found += [f"({written})"] if written else []
    return " | ".join(dict.fromkeys(found))


def storable(question: str) -> str:
    """A question, normalized, without the characters that no stored text has."""
    return normalized(question).encode("utf-8", "replace").decode().replace("\0", " ")


class Index:
    """A lexical.Index over the terms. `condition`: of documents, with its parameters."""

    def __init__(
        self,
        run: Callable[..., list[Rows]],
        condition: Statement = ("true", ()),
    ) -> None:
        self._run, self._condition = run, condition
        (((self.documents, self._tokens),),) = run((_TOTALS, ()))

    def counts(self, terms: Sequence[Term], limit: int) -> list[int]:
        """How many documents have each term, counted up to `limit`."""
        sql = (
            "SELECT count(*) FROM (SELECT 1 FROM documents WHERE words @@ %s::tsquery LIMIT %s) "
            "AS counted"
        )
        rows = self._run(*((sql, (_query(term), limit)) for term in terms))
        return [int(count) for ((count,),) in rows]

    def best(self, weights: Mapping[Term, float], k: int) -> Scored:
        """The k best documents with one of the terms, by (−score, id)."""
        average = self._tokens / max(1, self.documents) or 1.0
        gains, values = [], list[object]()
        for term, weight in weights.items():
            times = " + ".join([_TIMES.format("%s")] * len(term.forms))
            if term.unfinished:  # a rank of several terms does not tell their number
                times = (
                    "(SELECT coalesce(sum(cardinality(positions)), 0) FROM unnest(words) "
                    "WHERE starts_with(lexeme, %s))"
                )
            gains.append(f"%s * (1 - norm / (norm + {times}))")
            forms = [form.decode() for form in term.forms]
            values += [weight * (K1 + 1), *(forms if term.unfinished else map(quoted, forms))]
        sql = (
            f"SELECT id, {' + '.join(gains)} AS score FROM (SELECT id, key, "
            f"words, {K1} * ({1 - B} + {B} * tokens / %s::float8) AS norm FROM documents "
            f"WHERE words @@ %s::tsquery AND {self._condition[0]}) AS found "
            'ORDER BY 2 DESC, key COLLATE "C" LIMIT %s'
        )
        any_of = " | ".join(map(_query, weights))
        values += [average, any_of, *self._condition[1], min(k, 1 << 62)]
        ((*rows,),) = self._run((sql, values))
        scored = [(int(i), float(score)) for i, score in rows]
        return sorted(scored, key=lambda each: (-each[1], each[0]))


def _query(term: Term) -> str:
    """The tsquery of documents with a term."""
    return " | ".join(
        quoted(form.decode()) + (":*" if term.unfinished else "") for form in term.forms
    )
