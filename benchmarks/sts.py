"""Spearman × 100 of all-MiniLM-L6-v2 on the seven STS sets, beside the published figures.

    python benchmarks/sts.py

Published: the MTEB results repository, commit f4cc6c8. Each must come within 0.15. Also the shorter
prefixes, which this model was not trained for. Some five minutes on two cores.
"""

from pathlib import Path
from typing import Any

import click
from record import DATA, record, run_json

PUBLISHED = {
    "sts12": 72.37,
    "sts13": 80.60,
    "sts14": 75.59,
    "sts15": 85.39,
    "sts16": 78.99,
    "stsb_test": 82.03,
    "sickr": 77.58,
}
SICK = ("sickr_train", "sickr_dev", "sickr_test")
WITHIN = 0.15


@click.command()
@DATA
@click.option("--encoder", default="starter", show_default=True, help="Published figures: starter.")
@click.option("--prefixes", default="384,256,128,64", show_default=True, help="Full width first.")
def main(data: Path, encoder: str, prefixes: str) -> None:
    """Evaluate an encoder on the seven tasks; the starter must come out as published."""
    folder = data / "sts"
    files = [f"{folder / name}.tsv" for name in PUBLISHED if name != "sickr"]
    files += [f"sickr={folder / name}.tsv" for name in SICK]
    spearman = by_task(evaluate(*files, "--encoder", encoder, "--prefixes", prefixes))
    full = int(prefixes.split(",")[0])
    figures: dict[str, Any] = {"encoder": encoder}
    for name, row in spearman.items():
        published = PUBLISHED.get(name) if encoder == "starter" else None
        figures[name] = {"published": published, "measured": row[full], "prefixes": row}
        click.echo(f"{name:10} published {published or '–'}  measured {row}")
    record("sts" if encoder == "starter" else f"sts {Path(encoder).name}", figures)
    if encoder == "starter" and full == 384:
        far = [n for n, value in PUBLISHED.items() if abs(spearman[n][384] - value) > WITHIN]
        if far:
            raise SystemExit(f"more than {WITHIN} from the published figure: {', '.join(far)}")


def evaluate(*arguments: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = run_json("evaluate", "sts", *arguments)
    return rows


def by_task(rows: list[dict[str, Any]]) -> dict[str, dict[int, float]]:
    """Spearman × 100 by task and prefix length."""
    found: dict[str, dict[int, float]] = {}
    for row in rows:
        found.setdefault(row["task"], {})[row["dim"]] = round(100 * row["spearman"], 2)
    return found


if __name__ == "__main__":
    main()
