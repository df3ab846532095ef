"""The last word of a question as the beginning of words."""

from pathlib import Path
from typing import Any

import pytest
from command_line import run_json
from conftest import WordLengths

from searchengine import SearchEngine
from searchengine.backends.folder.documents import questions
from searchengine.errors import QueryError

TEXTS = {
    "whales": "whales sleep in the sea",
    "sleeping": "the owl is sleeping",
    "generalization": "a generalization about owls",
    "sleeve": "a sleeve of wool",
    "café": "the Café sleeps",
    "鯨": "海の鯨",
    "other": "nothing here",
    "more": "nor here",
}
ASKED = [
    ("unicode", "whal", ["whales"]),
    ("unicode", "WHAL", ["whales"]),
    ("unicode", "whal ", []),
    ("unicode", "whal?", []),
    ("unicode", "whal sea", ["whales"]),  # only the last word
    ("unicode", "sea whal sea", ["whales"]),
    ("unicode", "slee", ["café", "sleeping", "sleeve", "whales"]),
    ("unicode", "sleepin", ["sleeping"]),
    ("unicode", "caf", ["café"]),
    ("unicode", "cafe\u0301", ["café"]),
    ("unicode", "nothing slee", ["café", "other", "sleeping", "sleeve", "whales"]),
    ("unicode", "zebra qu", []),
    ("unicode", "", None),
    ("unicode", "🙂", []),
    ("unicode", "whal🙂", []),
    ("unicode", 'sle"', []),
    ("unicode", '"the" sle', ["café", "sleeping", "sleeve", "whales"]),
    ("unicode", '"whales sle', ["café", "sleeping", "sleeve", "whales"]),
    ("unicode", "whal*", []),
    ("unicode", "zebra OR whal", ["whales"]),
    ("porter", "slee", ["café", "sleeping", "sleeve", "whales"]),
    ("porter", "sleepi", ["café", "sleeping", "whales"]),  # its terms are without endings
    ("porter", "sleepin", ["café", "sleeping", "whales"]),
    ("porter", "generaliz", ["generalization"]),
    ("porter", "sleepiness and more", []),
    ("porter", "sleezzzzz", []),  # more letters than an ending has
    ("porter", "who", []),  # not "w": three letters are left
    ("porter", "sleepin ", []),
    ("trigram", "slee", ["café", "sleeping", "sleeve", "whales"]),
    ("trigram", "sea wh", ["whales"]),
    ("trigram", "Sea WH", ["whales"]),
    ("trigram", "sea wh ", ["whales"]),
    ("trigram", "nor sl", ["café", "more", "sleeping", "sleeve", "whales"]),
    ("trigram", "nor sl ", ["more"]),
    ("trigram", "鯨", ["鯨"]),
]


def made(path: Path, tokenizer: str) -> SearchEngine:
    engine = SearchEngine.create(path / "c", WordLengths(), tokenizer=tokenizer)
    documents = [{"_id": key, "text": text} for key, text in TEXTS.items()]
    engine.add([*documents[:4], {"_id": "gone", "text": "whaling slee 鯨"}])
    engine.add(documents[4:])
    engine.delete(["gone"])
    return engine


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> dict[str, SearchEngine]:
    return {
        tokenizer: made(tmp_path_factory.mktemp(tokenizer), tokenizer)
        for tokenizer in ("porter", "unicode", "trigram")
    }


@pytest.mark.parametrize(("tokenizer", "question", "expected"), ASKED)
def test_words_that_begin_with_the_last_one_are_found(
    engines: dict[str, SearchEngine], tokenizer: str, question: str, expected: list[str] | None
) -> None:
    engine = engines[tokenizer]
    options: dict[str, Any] = {"mode": "text", "as_you_type": True, "typo_tolerance": False}
    if expected is None:
        with pytest.raises(QueryError, match="the query is empty"):
            engine.search(question, **options)
        return
    assert sorted(hit.key for hit in engine.search(question, **options)) == expected
    with engine.collection.reading() as snapshot:
        before = snapshot._words
        snapshot._words = (None,)  # FTS5 ranks
        try:
            by_fts5 = engine.search(question, **options)
        finally:
            snapshot._words = before
    assert sorted(hit.key for hit in by_fts5) == expected


def test_it_is_off_by_default(engines: dict[str, SearchEngine]) -> None:
    assert not engines["unicode"].search("whal", mode="text")
    assert not engines["unicode"].search("whal", mode="text", as_you_type=False)


def test_both_ways_use_it_and_vectors_do_not(engines: dict[str, SearchEngine]) -> None:
    engine = engines["unicode"]
    for typed in (True, False):
        hits = {hit.key: hit for hit in engine.search("whal", as_you_type=typed)}
        assert hits.keys() == TEXTS.keys()
        assert bool(hits["whales"].scores["text"]) == typed and not hits["café"].scores["text"]
    plain = engine.search("whal", mode="vector")
    assert engine.search("whal", mode="vector", as_you_type=True) == plain
    assert not engine.search("slee", mode="text", as_you_type=True, where="_id = 'none'")
    batch = engine.search_batch(["whal", "caf"], mode="text", as_you_type=True)
    assert [[hit.key for hit in hits] for hits in batch] == [["whales"], ["café"]]


def test_wrong_use_is_named(engines: dict[str, SearchEngine]) -> None:
    with pytest.raises(QueryError, match="as_you_type must be True or False, got 1"):
        engines["unicode"].search("whal", as_you_type=1)  # type: ignore[arg-type]
    with pytest.raises(QueryError, match="as_you_type needs a question; leave as_you_type out"):
        engines["unicode"].similar("café", as_you_type=True)


def test_of_ten_thousand_words_the_last_is_not_looked_up(engines: dict[str, SearchEngine]) -> None:
    engine, options = engines["unicode"], {"mode": "text", "as_you_type": True}
    words = " ".join(f"x{i}" for i in range(10_000))
    assert not engine.search(f"{words} whal", **options)  # type: ignore[arg-type]
    few = " ".join(f"x{i}" for i in range(questions.WORDS - 1))
    assert engine.search(f"{few} whal", **options)  # type: ignore[arg-type]


def test_command_line(tmp_path: Path) -> None:
    made(tmp_path, "unicode").close()
    search = ("search", tmp_path / "c", "whal", "--mode", "text")
    assert run_json(*search)["hits"] == []
    (hit,) = run_json(*search, "--as-you-type")["hits"]
    assert hit["key"] == "whales"
