"""What notebooks show of hits and documents. Everything in it is escaped."""

from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from conftest import WordLengths

from searchengine import SearchEngine

NASTY = "<script>alert(1)</script> & \"quotes\" 'too' \u202e"
ALLOWED = {"table", "thead", "tbody", "tr", "th", "td", "p"}


class Reader(HTMLParser):
    """The cells of the tables, and the other texts; fails at a tag that has not been closed."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.texts: list[str] = []
        self.open: list[str] = []
        self.feed(html)
        assert not self.open

    def handle_starttag(self, tag: str, attributes: Any) -> None:
        assert tag in ALLOWED and {name for name, _ in attributes} <= {"scope", "dir", "style"}
        self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        elif tag in ("th", "td"):
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1] in ("th", "td"):
            self.rows[-1][-1] += data
        else:
            self.texts.append(data)


def read(shown: Any) -> Reader:
    return Reader(shown._repr_html_())


def test_hits_and_documents(tmp_path: Path) -> None:
    with SearchEngine.create(tmp_path / "c", WordLengths()) as engine:
        assert read(engine.search("x")).texts[0].startswith("0 hits")
        engine.add(
            [
                {"_id": NASTY, "title": NASTY, "text": NASTY, NASTY: NASTY, "year": 1},
                {"_id": "b", "text": "a bee", "year": 2},
            ]
        )
        hits = engine.search("a bee", mode="vector", exact=True, facets=["year"])
        shown = read(hits)
        assert shown.texts[0].startswith("2 hits, ") and shown.texts[0].endswith(" ms")
        assert shown.rows[0] == ["score", "key", "title", "snippet", "metadata"]
        assert shown.rows[1] == ["1.000", "b", "", "a bee", "year: 2"]
        score, key, title, snippet, metadata = shown.rows[2]
        assert float(score) == pytest.approx(hits[1].score, abs=1e-3)
        assert (key, title, snippet) == (NASTY, NASTY, NASTY)
        assert metadata == f"{NASTY}: {NASTY}, year: 1"
        assert shown.rows[3] == ["year", "1: 1, 2: 1"] or shown.rows[3] == ["year", "2: 1, 1: 1"]
        assert read(engine[NASTY]).rows == [
            ["key", NASTY], ["title", NASTY], ["text", NASTY], [NASTY, NASTY], ["year", "1"]
        ]  # fmt: skip
