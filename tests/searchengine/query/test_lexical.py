"""Words: what matches, in what order, and that the index follows the documents."""

import math
import sqlite3
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from searchengine.backends.contract import WordScores
from searchengine.backends.folder import lexical
from searchengine.backends.folder.documents import text_index
from searchengine.backends.folder.lexical import Scored
from searchengine.corpus.analyzer import Analyzer, Tokenizer
from searchengine.query.fusion import Fusion

TEXTS = [
    ("Whales", "How whales sleep: half of the brain rests."),
    ("Bread", "The loaf is dense when the dough is under-proofed."),
    ("Sleep", "Sleeping dolphins keep one eye open in the sea."),
    ("", "Vacuum keeps the table small; the café is closed."),
    ("바다", "고래는 바다에서 잠을 잔다. 北京大学在北京市海淀区。"),
]


_OPEN: list[sqlite3.Connection] = []


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    yield
    while _OPEN:
        _OPEN.pop().close()


def database(
    texts: Sequence[tuple[str, str]] = TEXTS, tokenizer: Tokenizer = Tokenizer.PORTER
) -> sqlite3.Connection:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    _OPEN.append(connection)
    connection.execute(
        "CREATE TABLE documents (id INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE, "
        "title TEXT NOT NULL, text TEXT NOT NULL, metadata TEXT NOT NULL)"
    )
    rows = [(i, f"k{i}", title, text, f'{{"n": {i}}}') for i, (title, text) in enumerate(texts)]
    connection.executemany("INSERT INTO documents VALUES (?, ?, ?, ?, ?)", rows)
    text_index.create(connection, Analyzer(tokenizer))
    return connection


def found(connection: sqlite3.Connection, question: str, k: int = 10, *where: Any) -> Scored:
    def read(sql: str, parameters: Sequence[Any]) -> list[tuple[Any, ...]]:
        return connection.execute(sql, parameters).fetchall()

    return lexical.search(read, question, k, *where)


def ids(scored: Scored) -> list[int]:
    return [name for name, _ in scored]


def bm25(texts: Sequence[tuple[str, str]], terms: Sequence[str]) -> dict[int, float]:
    """Okapi BM25 as FTS5 has it, written out for lower-case words and the title's weight."""
    bags = [(title.split(), text.split()) for title, text in texts]
    lengths = [len(title) + len(text) for title, text in bags]
    mean, scores = max(sum(lengths), 1) / len(bags), dict.fromkeys(range(len(bags)), 0.0)
    for word in terms:
        having = sum(word in title or word in text for title, text in bags)
        idf = max(math.log((len(bags) - having + 0.5) / (having + 0.5)), 1e-6) if having else 0
        for i, (title, text) in enumerate(bags):
            often = text_index.TITLE_WEIGHT * title.count(word) + text.count(word)
            scores[i] += idf * often * 2.2 / (often + 1.2 * (0.25 + 0.75 * lengths[i] / mean))
    return scores


def test_words_match_without_their_endings() -> None:
    connection = database()
    assert ids(found(connection, "whale sleeps")) == [0, 2]
    assert ids(found(connection, "CAFE")) == ids(found(connection, "cafe\u0301")) == [3]
    plain = database(tokenizer=Tokenizer.UNICODE)
    assert ids(found(plain, "whale sleeps")) == []
    assert ids(found(plain, "WHALES sleep")) == [0, 2]


word = st.sampled_from(["ash", "birch", "cedar", "elm", "fir", "oak", "pine", "yew"])
line = st.lists(word, max_size=8).map(" ".join)


@given(
    st.lists(st.tuples(line, line), min_size=1, max_size=12),
    st.lists(word, min_size=1, max_size=4, unique=True),
    st.integers(1, 12),
)
def test_scores_are_bm25(texts: list[tuple[str, str]], terms: list[str], k: int) -> None:
    connection = database(texts, Tokenizer.UNICODE)
    expected = bm25(texts, terms)
    result = found(connection, " ".join(terms), k)
    assert result == sorted(result, key=lambda pair: (-pair[1], pair[0]))
    for name, score in result:
        # Terms in half of the documents may be left out: they weigh 2.2e-6 at most.
        assert score == pytest.approx(expected[name], abs=1e-5)
    matching = sum(score > 0 for score in expected.values())
    assert len(result) == min(k, matching)
    if result:
        rest = [score for name, score in expected.items() if name not in ids(result)]
        assert max(rest, default=0) <= result[-1][1] + 1e-5


@pytest.mark.parametrize("tokenizer", ["porter", "unicode", "trigram", "stem"])
@pytest.mark.parametrize(
    "question",
    [
        *('"whales"', "whales AND (bread", "title:whales", "whales*", "^whales", "-whales +x"),
        *(
            "NEAR(whales brain, 2)",
            'whales" OR "',
            "whales\0loaf'; --",
            "{title}: whales",
            "whales\\",
        ),
        *("whales \ud800", "w" * 100_000 + " whales", "whales " * 100_000),
        "whales " + " ".join(f"word{i}" for i in range(100_000)),
    ],
)
def test_questions_are_text_and_never_syntax(question: str, tokenizer: str) -> None:
    assert 0 in ids(found(database(tokenizer=Tokenizer(tokenizer)), question))


@pytest.mark.parametrize("tokenizer", ["porter", "unicode", "trigram", "stem"])
@pytest.mark.parametrize("question", ["", " \n", "?!", '"', "*", "—", "_", "\0", "\ud800", "()"])
def test_a_question_without_words_finds_nothing(question: str, tokenizer: str) -> None:
    assert found(database(tokenizer=Tokenizer(tokenizer)), question) == []


@given(st.text(), st.sampled_from(["porter", "unicode", "trigram", "stem"]))
def test_no_question_is_an_error(question: str, tokenizer: str) -> None:
    found(database(tokenizer=Tokenizer(tokenizer)), question)


def test_trigrams_find_parts_of_words_and_runs_without_spaces() -> None:
    connection = database(tokenizer=Tokenizer.TRIGRAM)
    assert ids(found(connection, "ACUU")) == [3]  # vacuum
    assert ids(found(connection, "고래는어디서자나")) == [4]  # not there as one run
    assert ids(found(connection, "南京大学在哪里")) == [4]
    assert ids(found(connection, "dolphin 北京 고래")) == [4, 2]  # two letters: what they begin
    assert ids(found(connection, "in dolphin")) == [2]  # a short Latin word is left out


def merge_all(connection: sqlite3.Connection) -> None:
    done = text_index.merge(connection, -1)
    while not done:
        done = text_index.merge(connection, 1)


def kind(connection: sqlite3.Connection) -> Tokenizer:
    read = lambda sql, values: connection.execute(sql, values).fetchall()  # noqa: E731
    return text_index.analyzer(read).tokenizer


def test_a_transaction_takes_the_index_back() -> None:
    connection = database()
    connection.execute("BEGIN")
    text_index.create(connection, Analyzer(Tokenizer.TRIGRAM))
    connection.execute("DELETE FROM documents")
    connection.execute("ROLLBACK")
    assert kind(connection) is Tokenizer.PORTER
    assert ids(found(connection, "whales")) == [0]
    assert text_index.check(connection) is None


change = st.one_of(
    st.tuples(st.just("put"), st.integers(0, 5), line, line),
    st.tuples(st.just("update"), st.integers(0, 5), line, line),
    st.tuples(st.just("move"), st.integers(0, 5), st.integers(6, 9)),
    st.tuples(st.just("delete"), st.integers(0, 9)),
    st.tuples(st.just("optimize")),
)
_UPSERT = (
    "INSERT INTO documents VALUES (:id, 'k' || :id, :title, :text, '{}') "
    "ON CONFLICT (id) DO UPDATE SET title = excluded.title, text = excluded.text"
)


@given(st.lists(change, max_size=12), st.sampled_from(["porter", "unicode", "trigram", "stem"]))
def test_the_index_follows_the_documents(changes: list[tuple[Any, ...]], tokenizer: str) -> None:
    connection = database([("ash", "elm oak")], Tokenizer(tokenizer))
    for name, *values in changes:
        document = dict(zip(("id", "title", "text"), values, strict=False))
        if name == "put":
            connection.execute(_UPSERT, document)
        elif name == "update":
            sql = "UPDATE documents SET title = :title, text = :text WHERE id = :id"
            connection.execute(sql, document)
        elif name == "move":
            sql = "UPDATE OR IGNORE documents SET id = :to, key = 'k' || :to WHERE id = :id"
            connection.execute(sql, dict(zip(("id", "to"), values, strict=True)))
        elif name == "delete":
            connection.execute("DELETE FROM documents WHERE id = ?", values)
        else:
            merge_all(connection)
    assert text_index.check(connection) is None
    bags = {
        i: Counter(f"{title} {text}".split())
        for i, title, text in connection.execute("SELECT id, title, text FROM documents")
    }
    for term in ("ash", "birch", "oak"):
        assert set(ids(found(connection, term))) == {i for i, bag in bags.items() if bag[term]}


def test_check_finds_what_is_wrong(tmp_path: Any) -> None:
    connection = database()
    connection.execute("DROP TRIGGER text_index_update")
    assert text_index.check(connection) == (
        "the triggers that keep the text index are missing: text_index_update"
    )
    connection = database()
    connection.execute("INSERT INTO text_index (rowid, title, text) VALUES (3, 'more', 'words')")
    assert "does not match the documents" in (text_index.check(connection) or "")
    connection = database()
    connection.execute("DROP TRIGGER text_index_delete")
    connection.execute("DELETE FROM documents WHERE id = 2")
    connection.execute(text_index.trigger("text_index_delete", Analyzer(Tokenizer.PORTER)))
    assert "does not match the documents" in (text_index.check(connection) or "")
    connection.execute("INSERT INTO text_index (text_index) VALUES ('rebuild')")
    assert text_index.check(connection) is None
    assert not connection.in_transaction


def test_fusion_is_a_weighted_sum() -> None:
    cosines = np.array([0.75, 0.5, 0.25, -0.5, -np.inf])  # the last has no vector
    bm25 = np.array([0.0, 0.0, 20.0, 0.0, 10.0])
    scores = Fusion(20.0, unrelated=0.0, weight=0.6).score(cosines, bm25)
    assert scores == pytest.approx([0.45, 0.3, 0.55, 0, 0.2])
    half = Fusion(40.0, unrelated=0.5, weight=0.5)
    assert half.score(cosines, bm25) == pytest.approx([0.25, 0, 0.25, 0, 0.125])
    assert half.score(1.0, 40.0) == half.score(1.0, 60.0) == 1.0  # a phrase adds to BM25


@given(st.floats(-1, 1), st.floats(0, 40), st.floats(0, 0.9), st.floats(0, 1))
def test_fusion_gives_zero_to_one_and_rises_with_both_parts(
    cosine: float, bm25: float, unrelated: float, weight: float
) -> None:
    fusion = Fusion(WordScores([(0, 40.0)], 90.0).scale, unrelated, weight)
    assert 0 <= fusion.score(cosine, bm25) <= 1
    assert fusion.score(cosine, bm25) <= fusion.score(1.0, bm25)
    assert fusion.score(cosine, bm25) <= fusion.score(cosine, bm25 + 1)
