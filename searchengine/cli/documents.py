"""searchengine get, list and count."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from searchengine.cli.options import AS_JSON, COLLECTION, note_unknown_fields

if TYPE_CHECKING:
    from searchengine.corpus.documents import Document

_WHERE = click.option("--where", help="Metadata filter: year >= 2015 and lang in ('en', 'ko')")
_SHOWN = 80  # characters of a text in a line of `list`


@click.command()
@COLLECTION
@click.argument("keys", nargs=-1, required=True)
@AS_JSON
@click.pass_context
def get(ctx: click.Context, collection: Path | str, keys: tuple[str, ...], as_json: bool) -> None:
    """Print documents by key.

    The exit status is 1 if a key is unknown.

    \b
    Example:
        searchengine get notes.index whales.txt
    """
    from searchengine.cli.console import note, say, show_json
    from searchengine.engine import SearchEngine

    with SearchEngine.open(collection) as engine:
        documents = [engine.get(key) for key in keys]
    found = [document for document in documents if document is not None]
    if as_json:
        show_json([document.as_record() for document in found])
    else:
        for document in found:
            say(_heading(document), bold=True)
            if document.metadata:
                say(json.dumps(dict(document.metadata), ensure_ascii=False))
            say(document.text)
    missing = [key for key, result in zip(keys, documents, strict=True) if result is None]
    for key in missing:
        note(f"no document {key!r}")
    if missing:
        ctx.exit(1)


@click.command("list")
@COLLECTION
@_WHERE
@click.option("--offset", type=click.IntRange(0), default=0, help="Number of documents to skip.")
@click.option("--limit", type=click.IntRange(0), help="Maximum number of documents [default: all].")
@click.option(
    "--jsonl", "as_lines", is_flag=True, help="Print one JSON document per line, as `index` reads."
)
@AS_JSON
def list_documents(
    collection: Path | str,
    where: str | None,
    offset: int,
    limit: int | None,
    as_lines: bool,
    as_json: bool,
) -> None:
    """List documents in the order in which they were first added.

    \b
    Example:
        searchengine list notes.index --where "year >= 2015" --limit 10
    """
    from searchengine.cli.console import say, show_json_items, show_json_line
    from searchengine.engine import SearchEngine

    if as_json and as_lines:
        raise click.UsageError("--json prints one array, --jsonl lines; leave one of them out")
    with SearchEngine.open(collection) as engine:
        documents = engine.documents(where, offset=offset, limit=limit)
        if as_json:
            show_json_items(document.as_record() for document in documents)
            return
        none = True
        for document in documents:
            none = False
            if as_lines:
                show_json_line(document.as_record())
            else:
                say(f"{_heading(document)}  {_beginning(document.text)}".rstrip())
        if none:
            note_unknown_fields(engine, where)


@click.command()
@COLLECTION
@_WHERE
@AS_JSON
def count(collection: Path | str, where: str | None, as_json: bool) -> None:
    """Count the documents, or those that match a filter.

    \b
    Example:
        searchengine count notes.index --where "year >= 2015"
    """
    from searchengine.cli.console import say, show_json
    from searchengine.engine import SearchEngine

    with SearchEngine.open(collection) as engine:
        documents = engine.count(where)
        if not documents:
            note_unknown_fields(engine, where)
    if as_json:
        show_json({"collection": str(collection), "documents": documents})
    else:
        say(str(documents))


def _heading(document: "Document") -> str:
    return f"{document.key}  {document.title}".rstrip()


def _beginning(text: str) -> str:
    """The first words of a text, on one line."""
    start = " ".join(text[: 4 * _SHOWN].split())
    return f"{start[:_SHOWN]}…" if len(start) > _SHOWN or len(text) > 4 * _SHOWN else start
