"""Pictures of the docs, from recorded figures.

    python benchmarks/picture.py benchmarks/results/<commit>.json

docs/prefixes.svg, from benchmarks/posthoc.py and matryoshka_finetune.py:
what each way to shorten a vector keeps. docs/passkey.svg, from benchmarks/long_documents.py: what
finds a sentence in a long text, by the text's length and the sentence's depth. A picture whose
figures the file lacks is left as it is.
"""

import json
from pathlib import Path
from typing import Any

import click
from record import REPOSITORY

from searchengine.measure.plotting import WIDTH, save, styled
from searchengine.measure.vector_plots import prefix_scores


@click.command()
@click.argument("results", type=click.Path(exists=True, path_type=Path))
def main(results: Path) -> None:
    """Draw what the results hold."""
    found = json.loads(results.read_text())
    pictures = {}
    if {"posthoc", "matryoshka_finetune"} <= set(found):
        pictures["prefixes.svg"] = prefixes(found["posthoc"], found["matryoshka_finetune"])
    if "passkey" in found.get("long documents", {}):
        pictures["passkey.svg"] = passkey(found["long documents"]["passkey"])
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
