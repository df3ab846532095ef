"""The report of a bench as pictures and as a page."""

import json
import re
import shutil
import subprocess
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from bench_results import K, exact, plausible, results, row
from conftest import REPOSITORY

pytest.importorskip("matplotlib", reason="the extra `plots` is not installed")

from searchengine.measure.formatting import recall_of, short
from searchengine.measure.recommend import recommend
from searchengine.measure.report import Report, facts, in_html, report, write
from searchengine.measure.results import Kind, Results, Row

PICTURES = ["recall-latency", "recall-shortlist", "latency", "speedups"]
EVIL = '<script>alert("1")</script> & | `x` **b** [a](http://evil.example)'
VOID = {"meta", "wbr"}


@pytest.fixture(scope="module")
def sample_results() -> Results:
    return plausible()


@pytest.fixture(scope="module")
def sample_report(sample_results: Results) -> Report:
    return report(sample_results)


@pytest.fixture(scope="module")
def text(sample_report: Report) -> str:
    return in_html(sample_report)


class Page(HTMLParser):
    """What is in a page: tags opened and closed, ids, what is referred to, words."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: Counter[str] = Counter()
        self.ids: list[str] = []
        self.references: list[str] = []
        self.labels: list[str] = []
        self.words: list[str] = []
        self.scopes: Counter[str | None] = Counter()
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_startendtag(tag, attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        for name, value in attrs:
            if name == "id":
                self.ids.append(value or "")
            if name in ("href", "xlink:href", "src", "srcset", "action", "data", "rdf:resource"):
                self.references.append(value or "")
            if name == "aria-label":
                self.labels.append(value or "")
            assert not name.startswith("on"), (tag, name)
            self.references += re.findall(r"url\(([^)]*)\)", value or "")
        if tag == "th":
            self.scopes[dict(attrs).get("scope")] += 1

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open[-1] == tag, (tag, self.open[-3:], self.getpos())
        self.open.pop()

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def checked(text: str) -> Page:
    """Every tag closed, ids unlike each other, nothing referred to but ids of the page."""
    read = Page(text)
    assert read.open == []
    assert [name for name, count in Counter(read.ids).items() if count > 1] == []
    assert {name[0] for name in read.references} <= {"#"}
    assert {name[1:] for name in read.references} <= set(read.ids)
    assert not read.tags["script"] and not read.tags["link"] and not read.tags["img"]
    assert "@import" not in text and "<!DOCTYPE svg" not in text and "<?xml" not in text
    return read


def test_the_page_is_whole(sample_results: Results, text: str) -> None:
    read = checked(text)
    assert '<html lang="en">' in text and text.count("<svg") == len(PICTURES)
    assert set(PICTURES) <= set(read.ids)
    assert read.tags["figcaption"] == len(PICTURES) and read.tags["h1"] == 1
    assert read.scopes[None] == 0 and read.scopes["row"] == 2 + 2 * len(sample_results.rows)
    words = " ".join(read.words)
    for one in sample_results.rows:
        assert one.name in words
    for phrase in ("Use hnsw int8 192 → 200", "★ recommended", "0.984", "(0.978–0.989)", "9000"):
        assert phrase in words
    assert "cold latency the system keeps the rows in memory" in " ".join(words.split())
    assert "(encoding, reading the documents) takes 1.42 (1.38–1.51) ms" in words


def test_style_of_a_picture_stays_in_it(text: str) -> None:
    rules = re.findall(r"<style>(.*?)</style>", text, re.DOTALL)
    assert len(rules) == 1 + len(PICTURES)
    assert [rule.split()[0] for rule in rules[1:]] == [f"#{name}" for name in PICTURES]


def test_now_of_bare_vectors_is_the_default_of_a_new_collection(sample_results: Results) -> None:
    chosen = sample_results.rows[1]
    named = replace(sample_results, now=chosen.name)
    assert ("now", chosen.name) in facts(named)[0][1]
    bare = replace(named, subject={**named.subject, "path": None})
    assert ("default of a new collection", chosen.name) in facts(bare)[0][1]
    assert f"{chosen.name}</th>" not in in_html(report(bare)) and "★" in in_html(report(bare))


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
    evil_report = report(evil)
    read = checked(in_html(evil_report))
    assert EVIL in "".join(read.words)
    assert any(EVIL in label for label in read.labels)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"missing": {}, "overhead_ms": None},
        {"complete": False},
    ],
)
def test_less_than_all_was_measured(sample_results: Results, fields: dict[str, object]) -> None:
    some = replace(sample_results, rows=sample_results.rows[:3], **fields)  # type: ignore[arg-type]
    read = checked(in_html(report(some)))
    assert ("interrupted" in " ".join(read.words)) == (not some.complete)


BARE = {"ndcg": None, "cold_ms": None, "cold_reads": None, "batch_qps": None}


@pytest.mark.parametrize(
    "rows",
    [
        (),
        (exact(),),
        (exact(), row("a", (1.0,), **BARE)),
        (exact(), row("no hope", recall=0.0, recall_low=0.0, recall_high=0.0)),
        (exact(), row("not counted", theoretical=None, multiply_adds=None)),
        (exact(), row("a", percentiles_ms=(1.0,) * 101)),
    ],
)
def test_few_rows(rows: tuple[Row, ...], tmp_path: Path) -> None:
    few = results(*rows, complete=False)
    written = write(few, tmp_path)
    read = checked((tmp_path / "report.html").read_text(encoding="utf-8"))
    assert "nDCG@10" not in " ".join(read.words).split("How it was measured")[0]
    assert Results.read(tmp_path) == few
    assert all(path.is_file() for path in written)


def test_the_folder(sample_results: Results, text: str, tmp_path: Path) -> None:
    written = write(sample_results, tmp_path / "new" / "folder")
    names = ["results.json", "report.html", *(f"{name}.svg" for name in PICTURES)]
    assert [path.name for path in written] == names
    assert all(path.is_file() for path in written)
    page = written[1].read_text(encoding="utf-8")
    path = tmp_path / "new" / "folder" / "results.json"
    words = ("searchengine", "tune", "data/sentences.index", "--apply")
    applied = " ".join(f"<span>{word}</span>" for word in words)
    applied += f" <span>&#x27;{path}#recommended&#x27;</span>"
    assert applied in page and page.replace(applied, "").count("<pre>") == 1
    assert text.count("<pre>") == 0  # nothing was written, so there is nothing to name
    assert json.loads(written[0].read_text(encoding="utf-8"))["subject"]["rows"] == 200_000


def test_the_best_of_a_column_is_marked(sample_results: Results, sample_report: Report) -> None:
    first, *_ = sample_report.tables
    marked = {
        (head, line.name)
        for _, lines in first.groups
        for line in lines
        for head, (_, best) in zip(first.heads[1:], line.cells, strict=True)
        if best
    }
    own = [one for one in sample_results.rows if one.kind is not Kind.EXACT]
    own = [one for one in own if one.recall_low >= 0.95]  # those that meet the target
    quickest = min(own, key=lambda one: one.p50_ms.median).name
    finds = max(own, key=lambda one: one.recall).name
    assert {name for head, name in marked if head == "p50, ms"} == {quickest}
    assert {name for head, name in marked if head.startswith("recall")} == {finds}


FRAME = """<!doctype html><title>frame</title><body style="margin:0">
<iframe src="report.html" width="WIDTH" height="4000" style="border:0"></iframe>
<pre id="said"></pre>
<script>onload = () => {
  const page = frames[0].document, box = each => each.getBoundingClientRect();
  document.getElementById("said").textContent = JSON.stringify({
    wide: page.documentElement.scrollWidth, body: page.body.scrollWidth,
    table: page.querySelector("table.short").scrollWidth,
    pictures: [...page.querySelectorAll("svg")].map(each => [box(each).width, box(each).height]),
    beyond: [...page.querySelectorAll("p, h1, h2, dl, figcaption")]
      .filter(each => box(each).right > WIDTH).map(each => each.textContent)});
}</script>"""


@pytest.mark.parametrize("width", [390, 1200])
def test_in_a_browser(sample_results: Results, text: str, width: int, tmp_path: Path) -> None:
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        pytest.skip("chromium is not on the PATH (apt-get install chromium)")
    (tmp_path / "report.html").write_text(text, encoding="utf-8")
    (tmp_path / "frame.html").write_text(FRAME.replace("WIDTH", str(width)), encoding="utf-8")
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--allow-file-access-from-files"]
    options += [f"--user-data-dir={tmp_path / 'profile'}", "--enable-logging=stderr", "--v=0"]
    options += ["--hide-scrollbars", "--force-color-profile=srgb"]
    options += [
        f"--screenshot={tmp_path / 'page.png'}",
        f"--window-size={width},2000",
        "--dump-dom",
    ]
    done = subprocess.run(
        [chromium, *options, (tmp_path / "frame.html").as_uri()],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "CONSOLE" not in done.stderr
    output = re.search(r'<pre id="said">(\{.*?\})</pre>', done.stdout)
    assert output is not None, done.stdout[-2000:]
    seen = json.loads(output[1].replace("&gt;", ">").replace("&amp;", "&"))
    assert seen["wide"] == seen["body"] == width
    assert seen["beyond"] == [] and seen["table"] <= width - 32  # all columns of the answer
    assert len(seen["pictures"]) == len(PICTURES)
    # On a telephone they scroll within their cards: smaller ones cannot be read.
    assert all(540 < wide < 700 and high > 150 for wide, high in seen["pictures"])
    assert (tmp_path / "page.png").stat().st_size > 10_000
    assert f"recall@{K}" in text


def test_the_docs_say_what_the_reports_recommend() -> None:
    text = (REPOSITORY / "docs" / "performance.md").read_text(encoding="utf-8")
    lines = {}
    for name in ("scifact", "papers", "synthetic"):
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
