"""Ranking by words files against BM25 written out."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import WordLengths
from cut_documents import Words
from hypothesis import given
from hypothesis import strategies as st
from word_oracle import agree

from searchengine import SearchEngine
from searchengine.ingest.passages import PassageConfig

WORDS = "whale whales sleep sleeping dolphin half a brain of the sea straße e\u0301t\u00e9 \u0301"
VOCABULARY = {
    "stem:en": WORDS.split(),
    "unicode": WORDS.split(),
    "stem:de,ru": [
        *"whale Häuser haus 東京都 京都 高 дома доме นอนหลับ หลับ นอ été".split(),
        "아 고래",
    ],
}


def build(path: Path, tokenizer: str, steps: list[Any], passages: bool) -> SearchEngine:
    """A collection after some steps: documents to add, or a number of documents to delete."""
    cut = PassageConfig(4) if passages else False
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
    if draw(st.booleans()):
        question += f" {draw(st.sampled_from(['w', 'wha', 'sl', 'sleepi', 'é', 'stra', 'zz']))}"
    return tokenizer, steps, question


@given(
    cases(),
    st.booleans(),
    st.integers(1, 12),
    st.sampled_from([None, "n > 0", "n = 7"]),
)
@pytest.mark.filterwarnings("ignore::searchengine.errors.LanguageWarning")
def test_words_files_rank_as_bm25(
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


OFTEN = [(10, "native"), (20_000, "faiss")]
EVERY = [(k, level) for k in (1, 10, 100, 20_000) for level in ("native", "faiss")]


@pytest.mark.parametrize(
    ("k", "level"),
    [each if each in OFTEN else pytest.param(*each, marks=pytest.mark.long) for each in EVERY],
)
def test_windows_are_left_out_without_a_loss(
    large: SearchEngine, monkeypatch: pytest.MonkeyPatch, k: int, level: str
) -> None:
    monkeypatch.setenv("SEARCHENGINE_KERNEL", level)
    with SearchEngine.open(large.collection.path) as engine:
        for words in ([3], [1, 2, 5, 300], [390, 20, 7], [398, 2], range(2, 64)):
            question = " ".join(f"w{word}" for word in words)
            agree(engine, question, k)


def keys_of(engine: SearchEngine, question: str) -> list[str]:
    return [hit.key for hit in engine.search(question, mode="text")]
