"""Collections whose words are stems: ranking, phrases, and what happens when stems change."""

import math
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import Stemmer
from conftest import WordLengths
from hypothesis import given, settings
from hypothesis import strategies as st

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
WORDS = "Meer Häuser Hauses Schiffen 東京 京 山と книга домов 고래 바다에서 海 zz schläft".split()


def collection(path: Path, tokenizer: str | None = "stem:de,ru") -> SearchEngine:
    engine = SearchEngine.create(path, WordLengths(), tokenizer=tokenizer)
    engine.add([{"_id": str(i), "title": a, "text": b} for i, (a, b) in enumerate(TEXTS)])
    return engine


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> SearchEngine:
    return collection(tmp_path_factory.mktemp("stems") / "c")


def oracle(question: list[str]) -> dict[str, float]:
    """BM25 written out: stems by Snowball's own stemmer, pairs of characters."""
    german, russian = Stemmer.Stemmer("german"), Stemmer.Stemmer("russian")

    def terms(text: str, asked: bool = False) -> list[str]:
        result = []
        for word in "".join(c if c.isalnum() else " " for c in text.lower()).split():
            if word[0] > "\u3000":
                last = len(word) - 1 if asked and len(word) > 1 else len(word)
                result += [word[i : i + 2] for i in range(last)]
            elif word[0] > "\u0400":
                result.append(russian.stemWord(word))
            else:
                result.append(german.stemWord(word).translate(str.maketrans("äöü", "aou")))
        return result

    bags = [(terms(title), terms(text)) for title, text in TEXTS]
    lengths = [len(title) + len(text) for title, text in bags]
    scores: Counter[str] = Counter()
    for term, times in Counter(t for word in question for t in terms(word, asked=True)).items():

        def often(words: list[str], term: str = term) -> int:
            single = len(term) == 1 and term > "\u3000"  # the beginning of pairs
            return sum(word.startswith(term) if single else word == term for word in words)

        counts = [2 * often(title) + often(text) for title, text in bags]
        having = sum(map(bool, counts))
        if not having:
            continue
        idf = math.log((len(bags) + 1) / (having + 0.5)) if 2 * having < len(bags) else 1e-6
        for i, count in enumerate(counts):
            norm = 1.2 * (0.25 + 0.75 * lengths[i] / np.mean(lengths))
            scores[str(i)] += math.sqrt(times) * idf * count * 2.2 / (count + norm)
    return {key: score for key, score in scores.items() if score > 1e-5}


@settings(max_examples=settings.default.max_examples // 2)  # type: ignore[union-attr]
@given(st.lists(st.sampled_from(WORDS), min_size=1, max_size=6))
def test_scores_are_bm25_over_stems(engine: SearchEngine, question: list[str]) -> None:
    with engine.collection.reading() as snapshot:
        scored = snapshot.by_words(" ".join(question), 20)
        keys = snapshot.store.keys_of([document for document, _ in scored])
    scores = dict(zip(keys, (score for _, score in scored), strict=True))
    kept = {key: score for key, score in scores.items() if score > 1e-5}
    assert kept == pytest.approx(oracle(question))


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


def test_languages_are_chosen_by_the_documents(tmp_path: Path) -> None:
    with collection(tmp_path / "c", "stem") as engine:
        name, _, languages = engine.stats().tokenizer.partition(":")
        assert name == "stem" and {"de", "ru"} <= set(languages.split(","))
        engine.optimize()  # asked for: it stays, whatever the documents are
        assert engine.stats().tokenizer == f"{name}:{languages}"


def test_optimize_brings_stems_to_a_collection_that_has_grown(tmp_path: Path) -> None:
    """Until then each segment is searched by the stems that it was written with."""
    path = tmp_path / "c"
    with SearchEngine.create(path, WordLengths()) as engine:
        engine.add([{"_id": "en", "text": "Ships of the sea, and the houses of the town there."}])
        assert engine.stats().tokenizer == "stem:en"
        texts = [f"Die Häuser der Stadt {i} stehen nicht weit von dem Meer." for i in range(20)]
        engine.add([{"_id": str(i), "text": text} for i, text in enumerate(texts)])
        assert [hit.key for hit in engine.search("ship", mode="text")] == ["en"]
        assert not engine.search("haus", mode="text", typo_tolerance=False)
        engine.optimize()
        assert engine.stats().tokenizer == "stem:de"
        assert len(engine.search("haus", k=30, mode="text")) == 20
        engine.verify()


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
