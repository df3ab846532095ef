"""The report of a bench: its sentence, its table, its page and its plots."""

import re
import shutil
import subprocess
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from bench_results import ROWS, SCAN, graph, results
from conftest import REPOSITORY

pytest.importorskip("matplotlib", reason="the extra `plots` is not installed")

from searchengine.errors import QueryError
from searchengine.measure.formatting import fraction, short, with_ends
from searchengine.measure.plots import recall_latency, recall_shortlist
from searchengine.measure.report import command, sentence, write
from searchengine.measure.results import Results, Row, point_at

PICTURES = ["recall-latency", "recall-shortlist"]
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


def test_the_folder(tmp_path: Path) -> None:
    """The page, its pictures and the results; the numbers of the page are those of the results."""
    written = write(results(), tmp_path / "new" / "folder")
    names = ["results.json", "report.html", *(f"{name}.svg" for name in PICTURES)]
    assert [path.name for path in written] == names
    page = " ".join(" ".join(Page(written[1].read_text(encoding="utf-8")).words).split())
    kept = Results.read(written[0])
    assert kept == results()
    for one in kept.rows:
        shown = page[page.index(f"{one.name} ") :]
        for number in (fraction(one.recall), short(one.ms), short(one.p99_ms)):
            assert number in shown, (one.name, number)
    assert f"Use {kept.recommended}" in page and f"{written[0]}#recommended" in page
    again = write(results(), tmp_path / "again")
    assert [path.read_bytes() for path in written[2:]] == [path.read_bytes() for path in again[2:]]


@pytest.mark.parametrize("rows", [(), (SCAN,), (SCAN, graph(20, 0.2, 0.0))])
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


def test_a_browser_shows_it_without_errors(tmp_path: Path) -> None:
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        pytest.skip("chromium is not on the PATH (apt-get install chromium)")
    page = write(results(), tmp_path)[1]
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"]
    options += [f"--user-data-dir={tmp_path / 'profile'}", "--enable-logging=stderr", "--v=0"]
    done = subprocess.run(
        [chromium, *options, page.as_uri()], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "CONSOLE" not in done.stderr and done.stdout.count("<img") == len(PICTURES)


def test_the_plots_show_every_point() -> None:
    (axes,) = recall_latency(results()).axes
    marks = {(x, y) for line in axes.get_lines() for x, y in zip(*line.get_data(), strict=True)}
    assert {(row.recall, row.ms) for row in ROWS} <= marks
    assert {(point["recall"], point["ms"]) for point in results().curve} <= marks
    assert axes.get_title("left") == "hnsw int8 64 → 50: 0.300 ms"
    flat, walked = recall_shortlist(results()).axes
    assert [list(line.get_xdata()) for line in walked.get_lines()] == [[], [20, 50]]
    assert [list(line.get_xdata()) for line in flat.get_lines()] == [[100], []]
    assert len(recall_shortlist(replace(results(), curve=())).axes) == 2


def test_the_recommended_point_comes_first_and_the_mode_of_ndcg_is_named() -> None:
    lines = results().table()
    assert [line[""] for line in lines] == ["recommended", "now", "", ""]
    assert [line["point"] for line in lines[:3]] == [ROWS[3].name, ROWS[1].name, "exact"]
    assert lines[1]["nDCG@10, hybrid"] == "0.650" and lines[0]["search, ms"] == "0.300"
    unjudged = results().subject | {"judged": 0}
    assert "nDCG@10, hybrid" not in results(subject=unjudged).table()[0]
    assert lines[0]["recall@10"] == "0.972 (0.962–0.982)"


@pytest.mark.parametrize(
    ("fields", "said", "applied"),
    [
        (
            {},
            "Use hnsw int8 64 → 50: a search takes 0.300 ms (now 2.00), encoding a question 4.00",
            True,
        ),
        (
            {"recommended": ROWS[1].name},
            "Leave it as it is: a search takes 2.00 ms, encoding a question 4.00 ms.",
            False,
        ),
        ({"recommended": None, "why": "too few"}, "No point is recommended: too few", False),
    ],
)
def test_the_sentence_and_the_command(fields: dict[str, Any], said: str, applied: bool) -> None:
    found = results(**fields)
    assert sentence(found).startswith(said)
    assert bool(command(found, Path("a b"))) is applied and not command(found, None)
    if applied:
        expected = "searchengine tune data/sentences.index --apply 'a b/results.json#recommended'"
        assert command(found, Path("a b")) == expected


def test_a_point_is_found_by_its_name(tmp_path: Path) -> None:
    path = results().write(tmp_path)
    for name, row in {"": ROWS[3], "recommended": ROWS[3], "hnsw int8 64 -> 20": ROWS[2]}.items():
        found, subject = point_at(f"{path}#{name}" if name else str(tmp_path))
        assert found == row and subject["dim"] == 384
    with pytest.raises(QueryError, match="no point 'none'; its points are recommended, exact"):
        point_at(f"{path}#none")
    results(recommended=None, why="too few").write(tmp_path)
    with pytest.raises(QueryError, match="recommends nothing: too few"):
        point_at(str(path))


def test_the_docs_say_what_the_report_recommends() -> None:
    found = Results.read(REPOSITORY / "docs" / "reports" / "scifact")
    one, scan = found.point("recommended"), found.point("exact")
    cells = [
        f"{found.subject['rows']:,} × {found.subject['dim']}",
        one.name,
        with_ends(one.recall, one.recall_low, one.recall_high),
        f"{one.ms:.2f} · {one.p99_ms:.2f}",
        f"{scan.ms:.2g}",
        short(scan.ms / one.ms),
        short(one.memory / 2**20),
    ]
    text = (REPOSITORY / "docs" / "results.md").read_text(encoding="utf-8")
    assert " | ".join(cells) in text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (short(0.01234), "0.0123"),
        (short(1.2), "1.20"),
        (short(999.6), "1,000"),
        (short(0), "0"),
        (fraction(0.99951), "0.9995"),
        (fraction(0.9999999), "0.99999"),
        (fraction(1.0), "1.000"),
        (with_ends(1.0, 1.0, 1.0), "1.000"),
        (with_ends(0.95, 0.9, 1.0), "0.950 (0.900–1.000)"),
    ],
)
def test_numbers_as_text(text: str, expected: str) -> None:
    assert text == expected


def test_the_docs_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (REPOSITORY / "docs" / "measuring.md").read_text(encoding="utf-8")
    program = re.findall(r"```python\n(.*?)```", text[text.index("### Bench") :], re.DOTALL)[0]
    monkeypatch.chdir(tmp_path)
    results().write(tmp_path / "report")
    applied: list[Any] = []

    class Engine:
        def __enter__(self) -> "Engine":
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def apply(self, config: Any) -> None:
            applied.append(config)

    monkeypatch.setattr("searchengine.SearchEngine.open", lambda _: Engine())
    exec(program, {})
    assert applied == [ROWS[3].config]
