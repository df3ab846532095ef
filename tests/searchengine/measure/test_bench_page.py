"""The report of a bench as pictures and as a page."""

import re
import shutil
import subprocess
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from bench_results import exact, plausible, results, row
from conftest import REPOSITORY

pytest.importorskip("matplotlib", reason="the extra `plots` is not installed")

from searchengine.measure.formatting import recall_of, short
from searchengine.measure.recommend import recommend
from searchengine.measure.report import in_html, report, write
from searchengine.measure.results import Results, Row

PICTURES = ["recall-latency", "recall-shortlist"]
EVIL = '<script>alert("1")</script> & | `x` **b** [a](http://evil.example)'


@pytest.fixture(scope="module")
def sample_results() -> Results:
    return plausible()


class Page(HTMLParser):
    """What is in a page: its tags, what is referred to, its words and labels."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: Counter[str] = Counter()
        self.references: list[str] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        for name, value in attrs:
            if name in ("href", "xlink:href", "src", "srcset", "action", "data", "rdf:resource"):
                self.references.append(value or "")
            if name == "aria-label":
                self.words.append(value or "")
            assert not name.startswith("on"), (tag, name)

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def checked(text: str) -> Page:
    """Nothing is loaded or run, and nothing referred to but places of the page itself."""
    read = Page(text)
    assert all(name.startswith("#") for name in read.references)
    assert not read.tags["script"] and not read.tags["link"] and not read.tags["img"]
    assert "@import" not in text
    return read


def test_names_are_escaped(sample_results: Results) -> None:
    chosen = recommend(sample_results).name
    rows = tuple(
        replace(one, name=EVIL if one.name == chosen else one.name) for one in sample_results.rows
    )
    evil = replace(
        sample_results,
        rows=rows,
        subject={**sample_results.subject, "name": EVIL, "encoder": EVIL},
        machine={**sample_results.machine, "processor": EVIL, "versions": {EVIL: EVIL}},
        missing={EVIL: EVIL},
    )
    assert EVIL in "".join(checked(in_html(report(evil))).words)


BARE = {"ndcg": None, "batch_qps": None}


@pytest.mark.parametrize(
    "rows",
    [
        (),
        (exact(),),
        (exact(), row("a", (1.0,), **BARE)),
        (exact(), row("no hope", recall=0.0, recall_low=0.0, recall_high=0.0)),
    ],
)
def test_few_rows(rows: tuple[Row, ...], tmp_path: Path) -> None:
    few = results(*rows, complete=False)
    written = write(few, tmp_path)
    read = checked((tmp_path / "report.html").read_text(encoding="utf-8"))
    assert "nDCG@10" not in " ".join(read.words).split("How it was measured")[0]
    assert Results.read(tmp_path) == few
    assert all(path.is_file() for path in written)


def test_the_folder(sample_results: Results, tmp_path: Path) -> None:
    """The page, its pictures and the results; the numbers of the page are those of the results."""
    written = write(sample_results, tmp_path / "new" / "folder")
    names = ["results.json", "report.html", *(f"{name}.svg" for name in PICTURES)]
    assert [path.name for path in written] == names
    assert all(path.is_file() for path in written)
    words = checked(written[1].read_text(encoding="utf-8")).words
    page = " ".join(" ".join(words).split())
    kept = Results.read(written[0])
    for one in kept.rows:
        shown = page[page.index(f"{one.name} ") :]
        for number in (recall_of(one), short(one.p50_ms.median), short(one.measured.median)):
            assert number in shown, (one.name, number)
    assert f"Use {recommend(kept).name}" in page and f"{written[0]}#recommended" in page


def test_a_browser_shows_it_without_errors(sample_results: Results, tmp_path: Path) -> None:
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        pytest.skip("chromium is not on the PATH (apt-get install chromium)")
    page = write(sample_results, tmp_path)[1]
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"]
    options += [f"--user-data-dir={tmp_path / 'profile'}", "--enable-logging=stderr", "--v=0"]
    command = [chromium, *options, page.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "CONSOLE" not in done.stderr and done.stdout.count("</svg>") == len(PICTURES)


def test_the_docs_say_what_the_reports_recommend() -> None:
    text = (REPOSITORY / "docs" / "performance.md").read_text(encoding="utf-8")
    lines = {}
    for name in ("scifact",):
        found = Results.read(REPOSITORY / "docs" / "reports" / name)
        one, scan = found.named(recommend(found).name), found.exact
        assert one and scan
        cells = [
            f"{found.subject['rows']:,} × {found.subject['dim']}",
            one.name,
            recall_of(one),
            f"{one.p50_ms.median:.2f} · {one.p99_ms.median:.2f}",
            f"{scan.p50_ms.median:.2g}",
            short(one.measured.median),
            short(one.hot_bytes / 2**20),
        ]
        lines[name] = " | ".join(cells)
    assert [name for name, line in lines.items() if line not in text] == [], lines


def test_the_docs_run(
    sample_results: Results,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = (REPOSITORY / "docs" / "tuning.md").read_text(encoding="utf-8")
    *_, program = re.findall(r"```python\n(.*?)```", text[text.index("## Bench") :], re.DOTALL)
    monkeypatch.chdir(tmp_path)
    replace(sample_results, rows=sample_results.rows[:9]).write(tmp_path / "report")
    exec(program, {})
    assert (tmp_path / "report-098" / "report.html").is_file()
    assert "Nothing else holds recall@10 ≥ 0.98" in capsys.readouterr().out
