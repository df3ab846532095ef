"""Ranking by words files against FTS5, whose scores and order they must have."""

import itertools
import math
import os
import signal
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import WordLengths
from cut_documents import Words
from hypothesis import given, settings
from hypothesis import strategies as st

from searchengine import SearchEngine
from searchengine.backends.folder import lexical
from searchengine.backends.folder.documents import terms, text_index
from searchengine.backends.folder.documents.questions import Word, phrases
from searchengine.corpus.analyzer import Analyzer, Tokenizer
from searchengine.corpus.function_words import function_words
from searchengine.indexer.search.bm25 import weight
from searchengine.ingest.passages import PassageConfig

WORDS = "whale whales sleep sleeping dolphin half a brain of the sea straße e\u0301t\u00e9 \u0301"
VOCABULARY = {
    "porter": WORDS.split(),
    "unicode": WORDS.split(),
    "stem:de,ru": [
        *"whale Häuser haus 東京都 京都 高 дома доме นอนหลับ หลับ นอ été".split(),
        "아 고래",
    ],
    "trigram": [
        "鯨は海で",
        "海の中",
        "眠るか",
        "고래는",
        "고래가",
        "잠을자",
        "abc",
        "bca",
        "abcab",
    ],
}


def both(engine: SearchEngine, question: str, k: int, where: str | None) -> list[list[Any]]:
    """The results of the words files and of FTS5."""
    with engine.collection.reading() as snapshot:
        assert snapshot.words is not None
        required = tuple(each.text for each in phrases(question))
        condition = snapshot.store.condition(where, required)
        read = snapshot.store.read
        by_fts5 = lexical.search(read, question, k, *condition)
        ours = snapshot.by_words(question, k, where, required=required)
        return [ours, by_fts5]


def agree(engine: SearchEngine, question: str, k: int, where: str | None = None) -> None:
    """Equal but for rounding, and for which of several equals comes last."""
    ours, expected = both(engine, question, k, where)
    assert [s for _, s in ours] == pytest.approx([s for _, s in expected], rel=1e-12)
    last = expected[-1][1] * (1 + 1e-12) if len(expected) == k else -1.0
    by_score = [
        sorted((float(f"{score:.10g}"), i) for i, score in scored if score > last)
        for scored in (ours, expected)
    ]
    assert by_score[0] == by_score[1]
    assert ours == sorted(ours, key=lambda pair: (-pair[1], pair[0]))


def build(path: Path, tokenizer: str, steps: list[Any], passages: bool) -> SearchEngine:
    """A collection after some steps: documents to add, or a number of documents to delete."""
    cut = PassageConfig(tokens=4, overlap=0) if passages else False
    encoder = Words() if passages else WordLengths()
    engine = SearchEngine.create(path, encoder, tokenizer=tokenizer, passages=cut)
    for step in steps:
        if isinstance(step, int):
            engine.delete(list(engine.keys())[:: step + 1])
        else:
            documents = [
                {"_id": str(key), "title": title, "text": text or "x", "n": key % 3}
                for key, title, text in step
            ]
            engine.add(list({each["_id"]: each for each in documents}.values()))
    return engine


@st.composite
def cases(draw: st.DrawFn) -> tuple[str, list[Any], str]:
    tokenizer = draw(st.sampled_from(sorted(VOCABULARY)))
    words = st.sampled_from(VOCABULARY[tokenizer])
    text = st.lists(words, max_size=9).map(" ".join)
    document = st.tuples(st.integers(0, 30), text, text)
    added = st.lists(document, min_size=1, max_size=8)
    steps = draw(st.lists(added | st.integers(0, 3), min_size=1, max_size=4))
    question = draw(text)
    if draw(st.booleans()):
        question += f' "{draw(words)}" {draw(words)}'
    if tokenizer != "trigram" and draw(st.booleans()):
        question += f" {draw(st.sampled_from(['w', 'wha', 'sl', 'sleepi', 'é', 'stra', 'zz']))}"
    return tokenizer, steps, question


@given(
    cases(),
    st.booleans(),
    st.integers(1, 12),
    st.sampled_from([None, "n > 0", "n = 7"]),
)
@pytest.mark.filterwarnings("ignore::searchengine.errors.LanguageWarning")
def test_words_files_rank_as_fts5(
    tmp_path_factory: pytest.TempPathFactory,
    case: tuple[str, list[Any], str],
    passages: bool,
    k: int,
    where: str | None,
) -> None:
    """Whatever was added, changed and deleted, in however many segments."""
    tokenizer, steps, question = case
    path = tmp_path_factory.mktemp("words") / "c"
    with build(path, tokenizer, steps, passages) as engine:
        agree(engine, question, k, where)
        engine.optimize()
        agree(engine, question, k, where)


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SearchEngine]:
    """More than two windows of documents, in two segments, some deleted; one is very long."""
    rng = np.random.default_rng(0)
    chances = 1 / np.arange(1, 400)
    path = tmp_path_factory.mktemp("large") / "c"
    lengths = rng.integers(1, 20, 12_000)
    lengths[11] = 5_000
    texts = [
        " ".join(f"w{word}" for word in rng.choice(399, length, p=chances / chances.sum()))
        for length in lengths
    ]
    vectors = rng.standard_normal((len(texts), 4)).astype(np.float32)
    with SearchEngine.create(path, None, dim=4) as engine:
        for part in (slice(0, 11_000), slice(11_000, None)):
            documents = [{"_id": str(i), "text": texts[i]} for i in range(len(texts))[part]]
            engine.add(documents, vectors=vectors[part])
        engine.delete([str(i) for i in range(0, 12_000, 7)])
        assert len(engine.collection.segments) == 2
        yield engine


@pytest.mark.parametrize("k", [1, 10, 100, 20_000])
@pytest.mark.parametrize("level", ["native", "faiss"])
def test_windows_are_left_out_without_a_loss(
    large: SearchEngine, monkeypatch: pytest.MonkeyPatch, k: int, level: str
) -> None:
    monkeypatch.setenv("SEARCHENGINE_KERNEL", level)
    with SearchEngine.open(large.collection.path) as engine:
        for words in ([3], [1, 2, 5, 300], [390, 20, 7], [398, 2], range(2, 90)):
            question = " ".join(f"w{word}" for word in words)
            agree(engine, question, k)


letters = st.text(alphabet="鯨海 北aB", max_size=6)
pieces = ["鯨", "鯨海", "海北", "北鯨海", "北鯨海鯨", "a", "ab", "bA", "B"]


def occurrences(document: tuple[str, str], piece: str) -> float:
    """How often a piece occurs in title and text; in the title twice."""
    return sum(
        times * sum(column.lower().startswith(piece, i) for i in range(len(column)))
        for times, column in zip((text_index.TITLE_WEIGHT, 1.0), document, strict=True)
    )


@settings(max_examples=settings.default.max_examples // 2)  # type: ignore[union-attr]
@given(
    st.lists(st.tuples(letters, letters), min_size=1, max_size=8),
    st.integers(0, 8),
    st.lists(st.sampled_from(pieces), min_size=1, max_size=3),
)
def test_short_words_are_found_wherever_they_stand(
    tmp_path_factory: pytest.TempPathFactory,
    texts: list[tuple[str, str]],
    first: int,
    question: list[str],
) -> None:
    """Words of one and two letters by trigrams, against BM25 written out."""
    path = tmp_path_factory.mktemp("short") / "c"
    documents = [{"_id": str(i), "title": a, "text": b} for i, (a, b) in enumerate(texts)]
    with SearchEngine.create(path, None, dim=2, tokenizer="trigram") as engine:
        for part in (documents[:first], documents[first:]):
            if part:
                engine.add(part, np.ones((len(part), 2), np.float32))
        engine.delete(["1"])
        left = {i: text for i, text in enumerate(texts) if i != 1}
        hits = engine.search(" ".join(question), 20, mode="text")
    wanted = defaultdict[str, float](float)
    for word in (piece.lower() for piece in question):
        times = 1.0 if word not in function_words(("en",)) else lexical.FUNCTION_WORD
        if len(word) > 2:
            for i in range(len(word) - 2):
                wanted[word[i : i + 3]] += times
        elif word[0] > "z" or all(len(w) < 3 for w in question):
            wanted[word] += times
    lengths = {i: sum(max(0, len(each) - 2) for each in text) for i, text in left.items()}
    average = sum(lengths.values()) / max(1, len(left)) or 1.0
    expected: dict[str, float] = {}
    for piece, times in wanted.items():
        having = [i for i, text in left.items() if occurrences(text, piece)]
        for i in having:
            often = occurrences(left[i], piece)
            norm = 1.2 * (0.25 + 0.75 * lengths[i] / average)
            score = weight(len(left), len(having)) * often * 2.2 / (often + norm)
            expected[str(i)] = expected.get(str(i), 0.0) + math.sqrt(times) * score
    # Words in half of the documents, which have next to no weight, may be left out.
    assert {hit.key: hit.score for hit in hits} == pytest.approx(expected, rel=1e-9, abs=5e-5)


def test_texts_are_counted_some_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    documents = [(i, "whale", f"sea {'sleep ' * (i % 4)}brain{i % 7}") for i in range(1100)]
    with build(tmp_path / "whole", "porter", [documents], False) as engine:
        (whole,) = [segment.words for segment in engine.collection.segments.values()]
    monkeypatch.setattr(terms, "_LETTERS", 5000)
    with build(tmp_path / "parts", "porter", [documents], False) as engine:
        (parts,) = [segment.words for segment in engine.collection.segments.values()]
        agree(engine, "sleeping brain3 sea", 50)
        assert whole is not None and parts is not None
        assert parts.path.read_bytes() == whole.path.read_bytes()
        names = {each.name for each in parts.path.parent.iterdir()}
        assert {name for name in names if name.startswith("words")} == {parts.path.name}


def keys_of(engine: SearchEngine, question: str) -> list[str]:
    return [hit.key for hit in engine.search(question, mode="text")]


def test_fts5_ranks_where_a_document_is_in_no_words_file(tmp_path: Path) -> None:
    """One without a vector has no row. Words files rank again when it is gone."""
    vectors = np.eye(2, dtype=np.float32)
    with SearchEngine.create(tmp_path / "c", None, dim=2) as engine:
        assert engine.stats().words == "words files" and keys_of(engine, "whale") == []
        engine.add([{"_id": "a", "text": "whale"}, {"_id": "b", "text": "a whale"}], vectors)
        assert engine.stats().words == "words files" and keys_of(engine, "whale") == ["a", "b"]
        engine.add([{"_id": "c", "text": "the whale sleeps"}], [None])
        assert engine.stats().words == "FTS5" and keys_of(engine, "whale") == ["a", "b", "c"]
        engine.delete(["c"])
        assert engine.stats().words == "words files" and keys_of(engine, "whale") == ["a", "b"]


def test_words_that_another_thread_drops_are_known_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(terms, "_CACHED", 0)
    table = terms.Terms(Analyzer(Tokenizer.PORTER))
    whales, owls, bees = (Word(each) for each in ("whales", "owls", "bees"))
    table.look_up([whales])
    cut = table._cut

    def meanwhile(words: Any) -> Any:
        monkeypatch.setattr(table, "_cut", cut)
        assert table.look_up([bees]) == [(b"bee",)]
        return cut(words)

    monkeypatch.setattr(table, "_cut", meanwhile)
    assert table.look_up([whales, owls]) == [(b"whale",), (b"owl",)]
    assert len(table._cache) == 2


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_forked_children_search_while_threads_cut_words(tmp_path: Path) -> None:
    """A fork waits for FTS5's table in memory: a child would wait for its lock for ever."""
    with SearchEngine.create(tmp_path / "c", WordLengths()) as engine:
        engine.add([{"_id": "a", "text": "whale song"}])
        ended = threading.Event()

        def ask() -> None:
            for i in itertools.count():
                if ended.is_set():
                    return
                engine.search(f"whale{i} song{i} whale", mode="text")

        thread = threading.Thread(target=ask)
        thread.start()
        try:
            for i in range(10):
                child = os.fork()
                if not child:
                    own = SearchEngine.open(tmp_path / "c", WordLengths())
                    found = own.search(f"song x{i}", mode="text")
                    os._exit(0 if [hit.key for hit in found] == ["a"] else 1)
                for _ in range(500):
                    done, status = os.waitpid(child, os.WNOHANG)
                    if done:
                        break
                    time.sleep(0.02)
                else:
                    os.kill(child, signal.SIGKILL)
                    os.waitpid(child, 0)
                    pytest.fail("the child hangs")
                assert status == 0
        finally:
            ended.set()
            thread.join()
