"""Time from a request of the search page to painted hits: headless Chromium on loopback.

    python benchmarks/page_speed.py --work FOLDER

The server and the collection are those of serving.py, and so are the questions. One is asked at a
time, as typing would ask it after the pause that waits for the next letter; that pause is left out.
The page takes the times itself: the server's part, the way there and back with reading the JSON,
building the elements, and painting, which ends with a task after the next frame (60 a second).
"""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import click
import numpy as np
from playwright.sync_api import sync_playwright
from questions import real
from record import DATA, record
from serving import build, serving

SETTLE = 80  # milliseconds after the paint, for the map
ASK = """question => new Promise(done => {
  new PerformanceObserver((list, observer) => {
    if (!list.getEntries().some(entry => entry.name === "painted")) return;
    observer.disconnect();
    setTimeout(done, %d);
  }).observe({ entryTypes: ["measure"] });
  document.querySelector("#query").value = question;
  document.querySelector("#search").requestSubmit();
})"""
TIMES = """performance.getEntriesByName("painted").map(({ duration, detail }) =>
  [detail.server, detail.received - detail.server, detail.shown - detail.received,
   duration - detail.shown, duration])"""
PARTS = ("server", "way and JSON", "elements", "painting", "all")


@click.command()
@DATA
@click.option("--work", required=True, type=click.Path(file_okay=False, path_type=Path))
@click.option("--documents", default=200_000, show_default=True)
@click.option("--questions", default=400, show_default=True)
@click.option("--warm", default=50, show_default=True, help="Questions before, not counted.")
def main(data: Path, work: Path, documents: int, questions: int, warm: int) -> None:
    """Build the collection where that is still to do, ask, and write the percentiles."""
    path = work / f"served-{documents}.index"
    if not path.exists():
        build(path, data, documents)
    asked = real(data)[: questions + warm]
    with serving(path) as server:
        took = times(f"http://127.0.0.1:{server.port}", asked)[warm:]
    figures: dict[str, Any] = {"questions": len(took), "load": os.getloadavg()[0]}
    for name, part in zip(PARTS, took.T, strict=True):
        values = np.percentile(part, (50, 95, 99)).round(1).tolist()
        figures[name] = dict(zip(("p50_ms", "p95_ms", "p99_ms"), values, strict=True))
    click.echo(json.dumps(figures, indent=2))
    record("page", figures)


def times(url: str, questions: list[str]) -> np.ndarray[Any, Any]:
    """Milliseconds (questions, PARTS) of each question, asked on the page at `url`."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        page = browser.new_page(viewport={"width": 1200, "height": 900})
        page.goto(url)
        page.wait_for_selector("#map svg")
        for question in questions:
            page.evaluate(ASK % SETTLE, question)
        took = np.array(page.evaluate(TIMES))
        browser.close()
    return took


if __name__ == "__main__":
    main()
