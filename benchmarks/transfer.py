"""Accuracy × 100 on the seven transfer tasks, by prefix length: starter and starter-768.

    python benchmarks/transfer.py

A logistic regression on frozen vectors (docs/evaluation.md). Some forty minutes on two cores, most
of them for the 67,000 phrases of SST2 and the folds at full width.
"""

import time
from pathlib import Path
from typing import Any

import click
from record import DATA, record, run_json

ENCODERS = {"starter": "384,256,128,64", "starter-768": "768,512,256,128,64"}


@click.command()
@DATA
@click.option("--encoder", help="Another encoder, with the prefix lengths it names itself.")
@click.option("--tasks", help="Some tasks alone: MR,TREC.")
def main(data: Path, encoder: str | None, tasks: str | None) -> None:
    """Evaluate, show and record."""
    chosen = [*(("--tasks", tasks) if tasks else ())]
    figures: dict[str, Any] = {}
    for name in [encoder] if encoder else ENCODERS:
        start = time.monotonic()
        lengths = [*(("--prefixes", ENCODERS[name]) if name in ENCODERS else ())]
        rows = run_json(
            *("evaluate", "transfer", data / "clf", "--encoder", name), *chosen, *lengths
        )
        found: dict[str, Any] = {}
        for row in rows:
            figure = {key: row[key] and round(100 * row[key], 2) for key in ("accuracy", "f1")}
            found.setdefault(row["task"], {})[row["dim"]] = figure | {"c": row["c"]}
        figures[Path(name).name] = found | {"seconds": round(time.monotonic() - start, 1)}
        for task, row in found.items():
            shown = "  ".join(f"{dim}: {figure['accuracy']:.2f}" for dim, figure in row.items())
            click.echo(f"{name:12} {task:8} {shown}")
    record("transfer", figures)


if __name__ == "__main__":
    main()
