"""Spearman × 100 of all-MiniLM-L6-v2 on the seven STS sets, beside the published figures.

    python benchmarks/sts.py

Published: the MTEB results repository, commit f4cc6c8. Each must come within 0.15.
"""

from pathlib import Path

import click
from record import DATA, record, run_json

PUBLISHED = {
    "sts12": (72.37, ["sts12.tsv"]),
    "sts13": (80.60, ["sts13.tsv"]),
    "sts14": (75.59, ["sts14.tsv"]),
    "sts15": (85.39, ["sts15.tsv"]),
    "sts16": (78.99, ["sts16.tsv"]),
    "stsb_test": (82.03, ["stsb_test.tsv"]),
    "sickr": (77.58, ["sickr_train.tsv", "sickr_dev.tsv", "sickr_test.tsv"]),
}


@click.command()
@DATA
def main(data: Path) -> None:
    """Evaluate the starter encoder as published."""
    rows = {}
    for name, (published, files) in PUBLISHED.items():
        paths = [data / "sts" / file for file in files]
        (row,) = run_json("evaluate", "sts", *paths, "--encoder", "starter", "--prefixes", "384")
        measured = round(100 * row["spearman"], 2)
        rows[name] = {"published": published, "measured": measured}
        click.echo(f"{name:10} published {published:.2f}  measured {measured:.2f}")
    record("sts", rows)


if __name__ == "__main__":
    main()
