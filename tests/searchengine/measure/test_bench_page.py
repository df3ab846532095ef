"""The report of a bench: its sentence, its table, its page and its plots."""

from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from bench_results import ROWS, SCAN, results

pytest.importorskip("matplotlib", reason="the extra `plots` is not installed")

from searchengine.errors import QueryError
from searchengine.measure.page import write
from searchengine.measure.results import point_at

EVIL = '<script>alert("1")</script> & | `x` **b** [a](http://evil.example)'


class Page(HTMLParser):
    """What is in a page: its words and labels; it loads, runs and refers to nothing."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.words: list[str] = []
        self.feed(text)
        self.close()
        assert "@import" not in text

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag not in ("script", "link")
        for name, value in attrs:
            if name in ("href", "xlink:href", "src", "srcset", "action", "data", "rdf:resource"):
                assert (value or "").startswith("data:image/svg+xml;base64,")
            if name in ("aria-label", "alt"):
                self.words.append(value or "")
            assert not name.startswith("on"), (tag, name)

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def test_names_are_escaped(tmp_path: Path) -> None:
    evil = results(SCAN, *(replace(row, name=EVIL) for row in ROWS[1:2]))
    about, machine = {**evil.subject, "name": EVIL}, {**evil.machine, "processor": EVIL}
    write(replace(evil, subject=about, machine=machine, why=EVIL), tmp_path)
    assert EVIL in "".join(Page((tmp_path / "report.html").read_text(encoding="utf-8")).words)


def test_a_point_is_found_by_its_name(tmp_path: Path) -> None:
    path = results().write(tmp_path)
    for name, row in {"": ROWS[3], "recommended": ROWS[3], "hnsw int8 64 -> 20": ROWS[2]}.items():
        assert point_at(f"{path}#{name}" if name else str(tmp_path)) == row
    with pytest.raises(QueryError, match="no point 'none'; its points are recommended, exact"):
        point_at(f"{path}#none")
    results(recommended=None, why="too few").write(tmp_path)
    with pytest.raises(QueryError, match="recommends nothing: too few"):
        point_at(str(path))
