"""docs/passkey.svg, from the figures that benchmarks/long_documents.py recorded.

    python benchmarks/picture.py benchmarks/results/<commit>.json

What finds a sentence in a long text, by the text's length and the sentence's depth.
"""

import json
from pathlib import Path
from typing import Any

import click
from record import REPOSITORY

from searchengine.measure.plotting import WIDTH, save, styled


@click.command()
@click.argument("results", type=click.Path(exists=True, path_type=Path))
def main(results: Path) -> None:
    """Draw the picture."""
    found = json.loads(results.read_text())
    path = save(passkey(found["long documents"]["passkey"]), REPOSITORY / "docs" / "passkey.svg")
    click.echo(f"drawn to {path.relative_to(REPOSITORY)}")


@styled
def passkey(arms: dict[str, Any]) -> Any:
    """nDCG@10 as one heat map for each arm: tokens of the text by depth of the sentence."""
    from matplotlib.figure import Figure

    columns = 3
    figure = Figure(figsize=(WIDTH, 2.2 * -(-len(arms) // columns) + 0.6), layout="constrained")
    panels = figure.subplots(-(-len(arms) // columns), columns, squeeze=False, sharey=True)
    for panel in panels.flat[len(arms) :]:
        panel.set_visible(False)
    for panel, (name, cells) in zip(panels.flat, arms.items(), strict=False):
        lengths, depths = list(cells), list(next(iter(cells.values())))
        scores = [[cells[tokens][depth]["ndcg@10"] for tokens in lengths] for depth in depths]
        shown = panel.imshow(scores, vmin=0, vmax=1, cmap="viridis", aspect="auto")
        panel.grid(visible=False)
        panel.set_title(name, fontsize=9.5)
        panel.set_xticks(range(len(lengths)), [f"{int(tokens):,}" for tokens in lengths])
        panel.set_yticks(range(len(depths)), [f"{100 * float(depth):.0f} %" for depth in depths])
        for row, values in enumerate(scores):
            for column, value in enumerate(values):
                colour = "white" if value < 0.6 else "black"
                panel.text(column, row, f"{value:.2f}", ha="center", va="center", color=colour)
    for panel in panels[:, 0]:
        panel.set_ylabel("depth")
    figure.supxlabel("tokens of the text", fontsize=9.5)
    figure.colorbar(shown, ax=panels, label="nDCG@10", shrink=0.8)
    return figure


if __name__ == "__main__":
    main()
