"""The report of a bench: its sentence, its table, its page and its plots."""

from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from bench_results import ROWS, SCAN, graph, results

pytest.importorskip("matplotlib", reason="the extra `plots` is not installed")

from searchengine.errors import QueryError
from searchengine.measure.page import write
from searchengine.measure.results import Results, Row, point_at

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


@pytest.mark.parametrize("rows", [(SCAN,), (SCAN, graph(20, 0.2, 0.0))])
def test_few_rows(rows: tuple[Row, ...], tmp_path: Path) -> None:
    few = replace(results(SCAN), rows=rows, complete=False, recommended=None, curve=())
    written = write(few, tmp_path)
    words = " ".join(Page(written[1].read_text(encoding="utf-8")).words)
    assert few.why in words and "interrupted" in words and Results.read(tmp_path) == few


def test_names_are_escaped(tmp_path: Path) -> None:
    evil = results(SCAN, *(replace(row, name=EVIL) for row in ROWS[1:2]))
    about, machine = {**evil.subject, "name": EVIL}, {**evil.machine, "processor": EVIL}
    write(replace(evil, subject=about, machine=machine, why=EVIL), tmp_path)
    assert EVIL in "".join(Page((tmp_path / "report.html").read_text(encoding="utf-8")).words)


def test_the_recommended_point_comes_first_and_the_mode_of_ndcg_is_named() -> None:
    lines = results().table()
    assert [line[""] for line in lines] == ["recommended", "now", "", ""]
    assert [line["point"] for line in lines[:3]] == [ROWS[3].name, ROWS[1].name, "exact"]
    assert lines[1]["nDCG@10, hybrid"] == "0.650" and lines[0]["search, ms"] == "0.300"
    unjudged = results().subject | {"judged": 0}
    assert "nDCG@10, hybrid" not in results(subject=unjudged).table()[0]
    assert lines[0]["recall@10"] == "0.972 (0.962–0.982)"


def test_a_point_is_found_by_its_name(tmp_path: Path) -> None:
    path = results().write(tmp_path)
    for name, row in {"": ROWS[3], "recommended": ROWS[3], "hnsw int8 64 -> 20": ROWS[2]}.items():
        assert point_at(f"{path}#{name}" if name else str(tmp_path)) == row
    with pytest.raises(QueryError, match="no point 'none'; its points are recommended, exact"):
        point_at(f"{path}#none")
    results(recommended=None, why="too few").write(tmp_path)
    with pytest.raises(QueryError, match="recommends nothing: too few"):
        point_at(str(path))
