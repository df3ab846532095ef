"""Words: what matches, in what order, whatever the question is; and how parts are fused."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from searchengine import SearchEngine
from searchengine.query.ranking import Fusion

TEXTS = [
    ("Whales", "How whales sleep: half of the brain rests."),
    ("Bread", "The loaf is dense when the dough is under-proofed."),
    ("Sleep", "Sleeping dolphins keep one eye open in the sea."),
    ("", "Vacuum keeps the table small; the café is closed."),
    ("바다", "고래는 바다에서 잠을 잔다. 北京大学在北京市海淀区。"),
]
TOKENIZERS = ("stem:en", "unicode", "stem")


def made(
    path: Path, texts: Sequence[tuple[str, str]] = TEXTS, tokenizer: str = "stem:en"
) -> SearchEngine:
    engine = SearchEngine.create(path, None, dim=2, tokenizer=tokenizer)
    documents = [{"_id": str(i), "title": a, "text": b} for i, (a, b) in enumerate(texts)]
    engine.add(documents, np.ones((len(texts), 2), np.float32))
    return engine


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, SearchEngine]]:
    folder = tmp_path_factory.mktemp("words")
    made_by = {name: made(folder / str(i), tokenizer=name) for i, name in enumerate(TOKENIZERS)}
    yield made_by
    for engine in made_by.values():
        engine.close()


def keys(engine: SearchEngine, question: str, k: int = 10) -> list[str]:
    return [hit.key for hit in engine.search(question, k, mode="text", typo_tolerance=False)]


def test_words_match_without_their_endings(engines: dict[str, SearchEngine]) -> None:
    stems, plain = engines["stem:en"], engines["unicode"]
    assert keys(stems, "whale sleeps") == ["0", "2"]
    assert keys(stems, "CAFE") == keys(stems, "cafe\u0301") == ["3"]
    assert keys(plain, "whale sleeps") == []
    assert keys(plain, "WHALES sleep") == ["0", "2"]
    assert keys(plain, "南京大学在哪里") == keys(plain, "고래는어디서자나") == ["4"]


# Each text is found by its question alone, and first.
NAMES = {
    "def parseHTTPResponse(raw): return raw": ["parseHTTPResponse", "parsehttpresponse", "http"],
    "call snake_case_name twice": ["snake_case_name", "snakeCaseName", "snake-case-name", "snake"],
    "see torch.nn.functional for it": ["torch.nn.functional", "functional"],
    "runs on Python 3.11.4 only": ["3.11.4", "python 3.11.4"],
    "runs on Python 3.11.5 only": ["3.11.5"],
    "due on 2024-01-31 at noon": ["2024-01-31", "2024-01-31 noon"],
    "bolt AB-1005, stainless": ["AB-1005", "ab1005", "bolt ab 1005"],
    "bolt AB-1050, stainless": ["AB-1050", "AB‑1050"],
    "release v1.4.1 of it": ["1.4.1", "v1.4.1"],
    "release 1.4.11 of it": ["1.4.11"],
    "paid on 05/06/2022": ["05/06/2022"],
    "paid on 06/05/2022": ["06/05/2022"],
    "fixes CVE-2023-1234 at last": ["CVE-2023-1234", "cve 2023 1234"],
    "closes #1234 and others": ["#1234"],
    "1234 people came": ["1234 people"],
    "boils at 40°C or more": ["40°C"],
    "written in C++ and others": ["C++"],
    "written in C# and others": ["C#"],
    "send an e-mail to them": ["email", "e-mail", "e mail"],
    "die Do\u00adnau\u200bdampfschifffahrt": ["Donaudampfschifffahrt"],
    "the year ١٩٨٤ was long": ["1984"],
    "die Straße ist lang": ["STRASSE"],
}


@pytest.mark.parametrize("tokenizer", ["stem:en", "unicode"])
def test_names_are_found_by_the_whole_and_by_their_parts(tmp_path: Path, tokenizer: str) -> None:
    texts = [("", text) for text in NAMES]
    with made(tmp_path / "c", texts, tokenizer) as engine:
        for place, questions in enumerate(NAMES.values()):
            for question in questions:
                assert keys(engine, question)[:1] == [str(place)], question


def test_files_are_found_by_their_names(tmp_path: Path) -> None:
    (tmp_path / "texts").mkdir()
    for name in ("whale-facts.md", "owls.txt", "quarterly_report_2023.txt"):
        (tmp_path / "texts" / name).write_text("# Notes\n\nSome words on nothing at all.")
    with SearchEngine.create(tmp_path / "c", "starter", tokenizer="stem:en") as engine:
        engine.mirror(tmp_path / "texts")
        for question, key in (
            ("whale facts", "whale-facts.md"),
            ("owls.txt", "owls.txt"),
            ("quarterly_report_2023", "quarterly_report_2023.txt"),
            ("report 2023", "quarterly_report_2023.txt"),
        ):
            assert keys(engine, question)[:1] == [key]


@pytest.mark.parametrize("tokenizer", TOKENIZERS)
@pytest.mark.parametrize(
    "question",
    [
        *('"whales"', "whales AND (bread", "title:whales", "whales*", "^whales", "-whales +x"),
        *("NEAR(whales brain, 2)", 'whales" OR "', "whales\0loaf'; --", "whales\\"),
        *("whales \ud800", "w" * 100_000 + " whales", "whales " * 100_000),
        "whales " + " ".join(f"word{i}" for i in range(100_000)),
    ],
)
def test_questions_are_text_and_never_syntax(
    engines: dict[str, SearchEngine], question: str, tokenizer: str
) -> None:
    assert "0" in keys(engines[tokenizer], question)


@pytest.mark.parametrize("tokenizer", TOKENIZERS)
@pytest.mark.parametrize("question", ["?!", '"', "*", "—", "_", "\0", "\ud800", "()", "\xad"])
def test_a_question_without_words_finds_nothing(
    engines: dict[str, SearchEngine], question: str, tokenizer: str
) -> None:
    assert keys(engines[tokenizer], question) == []


@given(st.text(min_size=1).filter(str.strip), st.sampled_from(TOKENIZERS))
def test_no_question_is_an_error(
    engines: dict[str, SearchEngine], question: str, tokenizer: str
) -> None:
    engines[tokenizer].search(question, mode="text")


def test_fusion_is_a_weighted_sum() -> None:
    cosines = np.array([0.75, 0.5, 0.25, -0.5, -np.inf])  # the last has no vector
    bm25 = np.array([0.0, 0.0, 20.0, 0.0, 10.0])
    scores = Fusion(20.0, unrelated=0.0, weight=0.6).score(cosines, bm25)
    assert scores == pytest.approx([0.45, 0.3, 0.55, 0, 0.2])
    half = Fusion(40.0, unrelated=0.5, weight=0.5)
    assert half.score(cosines, bm25) == pytest.approx([0.25, 0, 0.25, 0, 0.125])
    assert half.score(1.0, 40.0) == 1.0
