"""The README's picture: what a shortlist finds of the exact top 10, by prefix, rotated and not.

    python benchmarks/picture.py benchmarks/results/<commit>.json

Draws docs/recall.svg from the figures that benchmarks/retrieval.py recorded.
"""

import json
from pathlib import Path

import click
import matplotlib
from record import REPOSITORY

matplotlib.use("agg")
matplotlib.rcParams["svg.hashsalt"] = "searchengine"  # the same figures give the same file
import matplotlib.pyplot as plt  # noqa: E402

# Okabe and Ito's palette, told apart by colour-blind readers; markers tell them apart in print.
STYLES = {32: ("#D55E00", "v"), 64: ("#0072B2", "o"), 128: ("#009E73", "s"), 256: ("#CC79A7", "D")}


@click.command()
@click.argument("results", type=click.Path(exists=True, path_type=Path))
def main(results: Path) -> None:
    """Draw recall by shortlist size for every prefix length."""
    sets = json.loads(results.read_text())["retrieval"]["scifact"]
    figure, axes = plt.subplots(figsize=(7, 4.2), layout="constrained")
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
                markersize=5,
                markerfacecolor=colour if rotation == "pca" else "white",
                label=f"first {prefix} of 384, {'rotated' if rotation == 'pca' else 'as they are'}",
            )
    axes.set_xscale("log")
    ticks = sorted({point["shortlist"] for point in points})
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.minorticks_off()
    axes.set_xlabel("shortlist (documents re-scored at full width, of 5,183)")
    axes.set_ylabel("share of the exact top 10 found")
    axes.set_title("SciFact test questions, all-MiniLM-L6-v2", loc="left", fontsize=10)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8, loc="lower right")
    path = REPOSITORY / "docs" / "recall.svg"
    figure.savefig(path, metadata={"Date": None})
    click.echo(f"drawn to {path.relative_to(REPOSITORY)}")


if __name__ == "__main__":
    main()
