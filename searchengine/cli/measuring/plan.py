"""searchengine plan."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from searchengine.cli.options import (
    AS_JSON,
    COLLECTION,
    ENCODER,
    RUNNING,
    Count,
    numbers,
    open_engine,
    runs,
    sectioned,
)

if TYPE_CHECKING:
    from searchengine.measure.planning.plan import Plan, Planned


@click.command(
    cls=sectioned(
        {
            "What is demanded": "documents rate target_recall k",
            "What it runs on": "cores on",
            "The trials": f"queries sizes encoder {RUNNING}",
        }
    )
)
@COLLECTION
@click.option("--documents", required=True, type=Count(), help="Number of documents: 1e7.")
@click.option("--rate", required=True, type=float, help="Questions a second.")
@click.option(
    "--target-recall", default=0.95, help="Mean recall of searches by vectors, above 0 and to 1."
)
@click.option("-k", default=10, type=click.IntRange(1), help="Hits of a question.")
@click.option(
    "--cores",
    type=click.IntRange(1),
    help="Processors of a machine, like those of this one [default: as many as it has].",
)
@click.option(
    "--on",
    metavar="URL",
    help="PostgreSQL server of this machine, to plan for PostgreSQL [default: for a folder].",
)
@click.option(
    "--queries",
    type=click.Path(path_type=Path),
    help="File of typical questions: .jsonl or .txt [default: beginnings of documents].",
)
@click.option(
    "--sizes",
    type=numbers(),
    help="Documents of the trials, three or more [default: 2000,8000,32000; with --on "
    "8000,16000,32000].",
)
@ENCODER
@runs
@AS_JSON
def plan(
    collection: Path | str,
    documents: int,
    rate: float,
    target_recall: float,
    k: int,
    cores: int | None,
    on: str | None,
    queries: Path | None,
    sizes: tuple[int, ...] | None,
    encoder: str | None,
    runtime: Any,
    as_json: bool,
) -> None:
    """Plan memory, disk, processors and machines for a number of documents.

    Documents of COLLECTION, which stays as it is, are copied into trials of three sizes, which are
    measured and removed. The two small ones fix how each figure grows; the third tells its error.
    A figure that is more than 30 % off is left out. Nothing is encoded but questions.

    \b
    Examples:
        searchengine plan papers.index --documents 1e6 --rate 50
        searchengine plan papers.index --documents 1e6 --rate 50 \\
            --on "postgresql://me@localhost/search"
    """
    from searchengine.cli.console import note, say, show_json, show_rows, steps
    from searchengine.measure.planning import plan as planning

    demand = planning.Demand(documents, rate, target_recall, k, cores)
    questions = None
    if queries is not None:
        from searchengine.measure.judgements import read_queries

        questions = list(read_queries(queries).values())
    with open_engine(collection, encoder, runtime=runtime) as engine, steps() as report:
        result = planning.plan(
            engine, demand, on, questions=questions, sizes=sizes, progress=report
        )
    if as_json:
        show_json(result.as_dict())
        return
    show_rows(_rows(result.figures), _title(result))
    for figure in result.figures:
        if figure.reason:
            note(f"{figure.name} is not known: {figure.reason}")
    say(f"Measured with {_sizes(result.figures)} passages on {result.processor}; {_far(result)}")
    for sentence in result.notes:
        note(f"Note: {sentence}")


def _title(result: "Plan") -> str:
    demand = result.demand
    return (
        f"{result.place}, {demand.documents:,} documents as {result.passages:,} passages, "
        f"{demand.rate:g} questions a second, recall@{demand.k} {demand.recall:g}"
    )


def _far(result: "Plan") -> str:
    if result.factor <= 1:
        return "the plan lies between them"
    return f"extrapolated {result.factor:.3g} times beyond the largest"


def _sizes(figures: Sequence["Planned"]) -> str:
    return ", ".join(f"{size:,}" for size in figures[0].measured or ())


def _rows(figures: Sequence["Planned"]) -> list[dict[str, str]]:
    return [
        {
            "figure": figure.name.replace("_", " "),
            "value": "not known" if figure.value is None else _value(figure.value, figure.unit),
            "error": "–" if figure.error is None else f"{figure.error:.0%}",
            "grows": figure.shape or "–",
        }
        for figure in figures
    ]


def _value(value: float, unit: str) -> str:
    if unit == "bytes":
        return f"{value / 1e9:.3g} GB" if value >= 1e9 else f"{value / 1e6:.3g} MB"
    return f"{value:,.0f} {unit}" if value >= 100 else f"{value:.3g} {unit}"
