"""Pictures of the docs, from recorded figures.

    python benchmarks/picture.py benchmarks/results/<commit>.json

docs/prefixes.svg, from benchmarks/posthoc.py and matryoshka_finetune.py:
what each way to shorten a vector keeps. A picture whose figures the file lacks is left as it is.
"""

import json
from pathlib import Path
from typing import Any

import click
from record import REPOSITORY

from searchengine.report.plots.style import save
from searchengine.report.plots.vectors import prefix_scores


@click.command()
@click.argument("results", type=click.Path(exists=True, path_type=Path))
def main(results: Path) -> None:
    """Draw what the results hold."""
    found = json.loads(results.read_text())
    pictures = {}
    if {"posthoc", "matryoshka_finetune"} <= set(found):
        pictures["prefixes.svg"] = prefixes(found["posthoc"], found["matryoshka_finetune"])
    for name, figure in pictures.items():
        path = save(figure, REPOSITORY / "docs" / name)
        click.echo(f"drawn to {path.relative_to(REPOSITORY)}")


def prefixes(posthoc: dict[str, Any], trained: dict[str, Any]) -> Any:
    """Spearman by width: post-hoc maps and Matryoshka training, all of the same encoder."""
    full = posthoc["full width"]
    lines = {
        name: {768: full / 100} | {int(w): s / 100 for w, s in row.items() if w.isdigit()}
        for name, row in posthoc.items()
        if isinstance(row, dict)
    }
    for name in ("umap", "centred pca"):  # far below, and nearly the same as PCA
        lines.pop(name, None)
    lines["Matryoshka training"] = {int(w): s / 100 for w, s in trained["trained"].items()}
    return prefix_scores(lines, "Spearman on STS-B dev", "What each way to shorten a vector keeps")


if __name__ == "__main__":
    main()
