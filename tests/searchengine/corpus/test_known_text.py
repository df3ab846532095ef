"""Files of known text: what the readers find of it, with its page and heading."""

import random
from pathlib import Path

import pytest
from conftest import WordLengths
from document_files import (
    KINDS,
    LANGUAGES,
    Book,
    book,
    share_in_order,
    tokens,
    write,
)

from searchengine import SearchEngine
from searchengine.corpus.documents import Document
from searchengine.corpus.files import Unread, read_corpus
from searchengine.corpus.formats.kinds import heading_at, headings_of


def folder_of(path: Path, count: int) -> dict[str, Book]:
    """Write files of all formats and languages; path → text."""
    rng, books = random.Random(7), {}
    for number in range(count):
        language = LANGUAGES[number % 3]
        kind = KINDS[number // 3 % len(KINDS)]
        name = f"{kind}/{language}-{number}.{kind}"
        file = path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        books[name] = book(rng, language, number)
        write(file, books[name], rng)
    return books


def misplaced(kind: str, text: Book, documents: list[Document]) -> int:
    """The sections whose first sentence is not found, or has another page or heading."""
    wrong = 0
    for number, section in enumerate(text.sections, start=1):
        sentence = "".join(section.sentences[0].split())
        for document in documents:
            places = [i for i, letter in enumerate(document.text) if not letter.isspace()]
            at = "".join(document.text.split()).find(sentence)
            if at >= 0:
                break
        else:
            wrong += 1
            continue
        if kind == "pdf":
            wrong += document.metadata["page"] != number
        heading = heading_at(headings_of(document.metadata), places[at])
        wrong += heading != text.path(section, 2 if kind == "pdf" else 6)
    return wrong


@pytest.mark.parametrize("count", [30, pytest.param(1000, marks=pytest.mark.long)])
def test_known_text_is_read_in_order_with_its_place(tmp_path: Path, count: int) -> None:
    books = folder_of(tmp_path, count)
    unread = Unread()
    read: dict[str, list[Document]] = {}
    for document in read_corpus(tmp_path, unread=unread):
        read.setdefault(document.file, []).append(document)
    assert set(read) == set(books) and not unread.failed.count and not unread.kinds
    shares: dict[str, float] = {}
    wrong: dict[str, int] = {}
    for name, text in books.items():
        kind = name.split("/")[0]
        found = [t for d in read[name] for t in tokens(d.text, text.language)]
        shares[name] = share_in_order(text.tokens, found)
        wrong[name] = misplaced(kind, text, read[name])
    assert min(shares.values()) >= 0.99, [n for n, s in shares.items() if s < 0.99]
    assert not any(wrong.values()), [name for name, n in wrong.items() if n]
    assert all(d.title == books[n].title for n in books if "html/" in n for d in read[n])


@pytest.mark.parametrize("count", [15, pytest.param(1000, marks=pytest.mark.long)])
def test_a_hit_names_its_page_and_heading(tmp_path: Path, count: int) -> None:
    """Every section is asked for by a word that no other text has."""
    books = folder_of(tmp_path / "files", count)
    asked, wrong = 0, []
    with SearchEngine.create(tmp_path / "c", WordLengths(), tokenizer="unicode") as engine:
        engine.add(read_corpus(tmp_path / "files", unread=Unread()))
        for name, text in books.items():
            kind = name.split("/")[0]
            for number, section in enumerate(text.sections, start=1):
                # The number, or in Japanese all of a title: no other text has this word.
                question = section.title.split()[-1]
                (hit,) = engine.search(question, 1, mode="text")
                asked += 1
                expected = [name, text.path(section)]
                if kind == "pdf":
                    expected = [f"{name}#page={number}", text.path(section, 2)]
                found = [hit.key.removesuffix("#text/c0.xhtml"), hit.heading]
                if found != expected:
                    wrong.append((question, found, expected))
    assert asked >= 3 * len(books)
    assert wrong == []
