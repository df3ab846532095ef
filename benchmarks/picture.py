"""Pictures of the docs, from recorded figures.

    python benchmarks/picture.py benchmarks/results/<commit>.json

docs/recall.svg, from benchmarks/retrieval.py: what a shortlist finds of the exact top 10, by
prefix, rotated and not. docs/prefixes.svg, from benchmarks/posthoc.py and matryoshka_finetune.py:
what each way to shorten a vector keeps. A picture whose figures the file lacks is left as it is.
"""

import json
from pathlib import Path
from typing import Any

import click
from record import REPOSITORY

from searchengine.plots.style import COLOURS, MARKERS, new_figure, save, styled
from searchengine.plots.vectors import prefix_scores

STYLES = dict(zip((32, 64, 128, 256), zip(COLOURS, MARKERS, strict=True), strict=False))


@click.command()
@click.argument("results", type=click.Path(exists=True, path_type=Path))
def main(results: Path) -> None:
    """Draw what the results hold."""
    found = json.loads(results.read_text())
    drawn = {}
    if "retrieval" in found:
        drawn["recall.svg"] = recall(found["retrieval"]["scifact"])
    if {"posthoc", "matryoshka_finetune"} <= set(found):
        drawn["prefixes.svg"] = prefixes(found["posthoc"], found["matryoshka_finetune"])
    for name, figure in drawn.items():
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


@styled
def recall(sets: dict[str, Any]) -> Any:
    """Recall by shortlist size for every prefix length."""
    figure, (axes,) = new_figure(4.2)
    for rotation, line in (("pca", "-"), ("identity", ":")):
        points = sets[f"rotation {rotation}"]["bench"][1:]
        for prefix, (colour, marker) in STYLES.items():
            chosen = [point for point in points if point["prefix"] == prefix]
            axes.plot(
                [point["shortlist"] for point in chosen],
                [point["recall@10"] for point in chosen],
                line,
                color=colour,
                marker=marker,
                markerfacecolor=colour if rotation == "pca" else "white",
                label=f"first {prefix} of 384, {'rotated' if rotation == 'pca' else 'as they are'}",
            )
    axes.set_xscale("log")
    ticks = sorted({point["shortlist"] for point in points})
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.minorticks_off()
    axes.set_xlabel("shortlist (documents re-scored at full width, of 5,183)")
    axes.set_ylabel("share of the exact top 10 found")
    axes.set_title("What a shortlist finds: SciFact test questions, all-MiniLM-L6-v2")
    axes.legend(loc="lower right")
    return figure


if __name__ == "__main__":
    main()
