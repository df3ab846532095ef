"""searchengine search and similar."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from searchengine.cli.options import (
    AS_JSON,
    COLLECTION,
    ENCODER,
    LAYERS,
    SHORTLIST,
    FieldName,
    note_compiling,
    note_unknown_fields,
    runs,
)
from searchengine.query.mode import Mode

_OPTIONS = (
    click.option("-k", default=10, show_default=True, help="Number of hits."),
    click.option("--where", help="Metadata filter: year >= 2015 and lang in ('en', 'ko')"),
    SHORTLIST,
    click.option("--exact", is_flag=True, help="Search exactly, with a certificate; slower."),
    click.option(
        "--diversity",
        type=click.FloatRange(0, 1),
        default=0,
        show_default=True,
        help="Weight of diversity, 0 (score alone) to 1 (least similar hits).",
    ),
    click.option("--group-by", type=FieldName(), help="Show one hit per value of FIELD."),
    AS_JSON,
)


def _options(command: Callable[..., None]) -> Callable[..., None]:
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


@click.command()
@COLLECTION
@click.argument("question")
@click.option(
    "--mode",
    type=click.Choice([mode.value for mode in Mode]),
    default=Mode.VECTOR.value,
    show_default=True,
    help="Ranking by vectors, by words, or by both.",
)
@_options
@ENCODER
@LAYERS
@runs
def search(
    collection: Path,
    question: str,
    k: int,
    encoder: str | None,
    runtime: Any,
    as_json: bool,
    **options: Any,
) -> None:
    """Print the documents nearest to QUESTION, best first.

    \b
    Example:
        searchengine search notes.index "when do whales sleep" -k 3
    """
    from searchengine.engine import SearchEngine

    with SearchEngine.open(collection, encoder, runtime=runtime) as engine:
        if options["mode"] != Mode.TEXT:
            note_compiling(engine)
        hits = engine.search(question, k, **options)
        _show(hits, as_json, options)
        _explain_absence(engine, hits, options)


@click.command()
@COLLECTION
@click.argument("key")
@_options
def similar(collection: Path, key: str, k: int, as_json: bool, **options: Any) -> None:
    """Print the documents nearest to the document KEY, best first.

    \b
    Example:
        searchengine similar notes.index whales.txt -k 3
    """
    from searchengine.engine import SearchEngine

    with SearchEngine.open(collection) as engine:
        hits = engine.similar(key, k, **options)
        _show(hits, as_json, options)
        _explain_absence(engine, hits, options)


def _explain_absence(engine: Any, hits: Any, options: dict[str, Any]) -> None:
    """Print a note if there are no hits, or if a field of the options may be misspelt."""
    from searchengine.cli.console import note

    if not hits:
        note("no hits")
        note_unknown_fields(engine, options["where"])
    elif options["group_by"] is not None:
        note_unknown_fields(engine, options["group_by"])


def _show(hits: Any, as_json: bool, options: dict[str, Any]) -> None:
    from searchengine.cli.console import note, say, show_json

    if as_json:
        show_json([hit.as_dict() for hit in hits])
    else:
        for hit in hits:
            say(str(hit))
    if options["exact"] and hits.proven:
        matching = " that match" if options["where"] else ""
        percent = 0 if hits.read is None else 100 * hits.read
        note(
            f"exact: these are the true {len(hits)} nearest{matching}; "
            f"{percent:.2f} % of the rows were read at full width"
        )
