"""Collections whose words are stems: ranking, phrases, and what happens when stems change."""

from pathlib import Path

import pytest
import Stemmer
from conftest import WordLengths

from searchengine import SearchEngine
from searchengine.errors import CollectionError

TEXTS = [
    ("Häuser am Meer", "Das Haus steht am Meer, und das Meer rauscht."),
    ("", "Die Schiffe der Stadt 東京都 fahren nach 京都."),
    ("Книги", "Большая книга о домах и морях, которую любят читать все дети нашей страны."),
    ("", "수도의 고래는 바다에서 잠을 잔다"),
    ("", "Ein Schiff, ein Meer, ein Wal. Wale schlafen."),
    ("", "高い山 と 海"),
    ("", "вода, книгами, книг"),
    ("", "nichts davon"),
]


def collection(path: Path, tokenizer: str | None = "stem:de,ru") -> SearchEngine:
    engine = SearchEngine.create(path, WordLengths(), tokenizer=tokenizer)
    engine.add([{"_id": str(i), "title": a, "text": b} for i, (a, b) in enumerate(TEXTS)])
    return engine


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> SearchEngine:
    return collection(tmp_path_factory.mktemp("stems") / "c")


@pytest.mark.parametrize(
    ("phrase", "keys"),
    [
        ("häuser am", ["0"]),
        ("Schiff der", ["1"]),  # stems count
        ("東京", ["1"]),
        ("東京都 fahren", ["1"]),
        ("東京都 fahre", ["1"]),
        ("東京 fahren", []),
        ("京", ["1"]),
        ("고래는 바다", ["3"]),
        ("래는 바", ["3"]),
        ("книгами книг", ["6"]),
    ],
)
def test_phrases(engine: SearchEngine, phrase: str, keys: list[str]) -> None:
    hits = engine.search(f'+"{phrase}"', mode="text")
    assert [hit.key for hit in hits] == keys


def test_words_of_another_snowball_are_searched_and_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "c"
    collection(path).close()
    monkeypatch.setattr(Stemmer, "version", lambda: "4.0.0")
    with SearchEngine.open(path) as engine:
        assert engine.search("Meer", mode="text")  # answers meanwhile
        engine.delete(["0"])
        engine.optimize()
        (words,) = [segment.words for segment in engine.collection.segments.values()]
        assert words is not None and "Snowball 4.0.0" in words.notes["terms"]
        assert {hit.key for hit in engine.search("Meere", mode="text")} == {"4"}
        engine.verify()


def test_other_tokenizers_are_refused_in_one_sentence(tmp_path: Path) -> None:
    for name in ("stems", "stem:Deutsch", "porter:de", "stem:de,xx"):
        with pytest.raises(CollectionError, match=r"tokenizer must be one of .* stem:de,ru; got"):
            SearchEngine.create(tmp_path / "c", WordLengths(), tokenizer=name)
    assert not (tmp_path / "c").exists()
