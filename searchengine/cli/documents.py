"""The documents of a collection: searchengine get, list, update and delete."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from searchengine.cli.console import (
    counted,
    note,
    say,
    show_json,
    show_json_items,
    show_result,
    steps,
)
from searchengine.cli.options import AS_JSON, COLLECTION, WAIT, WHERE, Assignment, open_engine
from searchengine.errors import QueryError

if TYPE_CHECKING:
    from searchengine.corpus.documents import Document

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
    with open_engine(collection) as engine:
        by_key = {key: engine.get(key) for key in keys}
    documents = [document for key in keys if (document := by_key[key]) is not None]
    if as_json:
        show_json([document.as_record() for document in documents])
    else:
        for document in documents:
            say(_heading(document), bold=True)
            if document.metadata:
                say(json.dumps(dict(document.metadata), ensure_ascii=False))
            say(document.text)
    for key in keys:
        if by_key[key] is None:
            note(f"no document {key!r}")
    if len(documents) < len(keys):
        ctx.exit(1)


@click.command("list")
@COLLECTION
@WHERE
@click.option("--offset", type=click.IntRange(0), default=0, help="Number of documents to skip.")
@click.option("--limit", type=click.IntRange(0), help="Maximum number of documents [default: all].")
@AS_JSON
def list_documents(
    collection: Path | str,
    where: str | None,
    offset: int,
    limit: int | None,
    as_json: bool,
) -> None:
    """List documents in the order in which they were first added.

    \b
    Example:
        searchengine list notes.index --where "year >= 2015" --limit 10
    """
    with open_engine(collection) as engine:
        documents = engine.documents(where, offset=offset, limit=limit)
        if as_json:
            show_json_items(document.as_record() for document in documents)
            return
        for document in documents:
            say(f"{_heading(document)}  {_beginning(document.text)}".rstrip())


@click.command()
@COLLECTION
@click.option(
    "--above",
    type=click.FloatRange(0, 1, min_open=True),
    default=0.95,
    help="Minimum cosine to the first document of a group.",
)
@WHERE
@AS_JSON
def duplicates(collection: Path | str, above: float, where: str | None, as_json: bool) -> None:
    """Print groups of documents that are nearly the same.

    The first of each group is the one that was added first. Deleting the others leaves no two
    documents that are nearer than the cosine of --above.

    \b
    Example:
        searchengine duplicates notes.index --above 0.97
    """
    with open_engine(collection) as engine, steps() as step:
        groups = engine.duplicates(
            above, where=where, progress=lambda done, total: step("compare", done, total)
        )
    if as_json:
        show_json({"groups": [group.as_dict() for group in groups]})
        return
    for group in groups:
        for key, cosine in zip(group.keys, group.cosines, strict=True):
            say(f"{cosine:.3f}  {key}")
        say("")
    more = sum(len(group.keys) - 1 for group in groups)
    note(f"{counted(len(groups), 'group')}, {counted(more, 'document')} nearly the same as another")


@click.command()
@COLLECTION
@click.argument("key")
@click.argument(
    "values", nargs=-1, required=True, type=Assignment("year=2016"), metavar="NAME=VALUE…"
)
@WAIT
@AS_JSON
def update(
    collection: Path | str,
    key: str,
    values: tuple[tuple[str, Any], ...],
    wait: float,
    as_json: bool,
) -> None:
    """Update metadata of the document KEY without encoding it again.

    A VALUE is read as JSON if it is valid JSON, else as text; null removes the
    field.

    \b
    Example:
        searchengine update notes.index whales.txt year=2016 draft=null
    """
    with open_engine(collection, wait=wait) as engine:
        engine.update({key: dict(values)})
        name, metadata = engine.collection.path, engine[key].metadata
    show_result(
        {"collection": str(name), "key": key, "metadata": metadata},
        f"{key} updated in {name}",
        as_json,
    )


@click.command()
@COLLECTION
@click.argument("keys", nargs=-1)
@WHERE
@click.option("--dry-run", is_flag=True, help="Count the documents without deleting them.")
@WAIT
@AS_JSON
def delete(
    collection: Path | str,
    keys: tuple[str, ...],
    where: str | None,
    dry_run: bool,
    wait: float,
    as_json: bool,
) -> None:
    """Delete documents by key or by filter.

    \b
    Example:
        searchengine delete notes.index whales.txt
        searchengine delete notes.index --where "year < 2010"
    """
    if bool(keys) == (where is not None):
        raise QueryError(
            f"delete takes either keys or --where, got {'both' if keys else 'neither'}; "
            "name the documents by key, or by a filter"
        )
    with open_engine(collection, wait=wait) as engine:
        missing = sorted(key for key in set(keys) if key not in engine)
        if not dry_run:
            matched = engine.delete(list(keys) if keys else None, where=where)
        elif where is not None:
            matched = engine.count(where)
        else:
            matched = len(set(keys)) - len(missing)
        name = engine.collection.path
    if as_json:
        show_json({"deleted": 0 if dry_run else matched, "matched": matched, "missing": missing})
        return
    note(f"{counted(matched, 'document')} {'would be ' if dry_run else ''}deleted from {name}")
    for key in missing:
        note(f"no document {key!r}")


def _heading(document: "Document") -> str:
    return f"{document.key}  {document.title}".rstrip()


def _beginning(text: str) -> str:
    """The first words of a text, on one line."""
    start = " ".join(text[: 4 * _SHOWN].split())
    return f"{start[:_SHOWN]}…" if len(start) > _SHOWN or len(text) > 4 * _SHOWN else start
