"""The README's picture: what a shortlist finds of the exact top 10, by prefix, rotated and not.

    python benchmarks/picture.py benchmarks/results/<commit>.json

Draws docs/recall.svg from the figures that benchmarks/retrieval.py recorded.
"""

import json
from pathlib import Path

import click
from record import REPOSITORY

from searchengine.plots.style import COLOURS, MARKERS, new_figure, save, styled

STYLES = dict(zip((32, 64, 128, 256), zip(COLOURS, MARKERS, strict=True), strict=False))


@click.command()
@click.argument("results", type=click.Path(exists=True, path_type=Path))
@styled
def main(results: Path) -> None:
    """Draw recall by shortlist size for every prefix length."""
    sets = json.loads(results.read_text())["retrieval"]["scifact"]
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
    path = save(figure, REPOSITORY / "docs" / "recall.svg")
    click.echo(f"drawn to {path.relative_to(REPOSITORY)}")


if __name__ == "__main__":
    main()
