"""searchengine delete and update."""

import json
from pathlib import Path
from typing import Any

import click

from searchengine.cli.options import AS_JSON, COLLECTION, WAIT, note_unknown_fields
from searchengine.errors import QueryError


@click.command()
@COLLECTION
@click.argument("keys", nargs=-1)
@click.option("--where", help="Metadata filter of the documents to delete.")
@click.option("--dry-run", is_flag=True, help="Count the documents without deleting them.")
@WAIT
@AS_JSON
def delete(
    collection: Path,
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
    from searchengine.cli.console import counted, note, show_json
    from searchengine.engine import SearchEngine

    if bool(keys) == (where is not None):
        raise QueryError(
            f"delete takes either keys or --where, got {'both' if keys else 'neither'}; "
            "name the documents by key, or by a filter"
        )
    with SearchEngine.open(collection, wait=wait) as engine:
        with engine.collection.reading() as snapshot:
            missing = sorted(set(keys) - set(snapshot.store.ids_of(keys)))
        if dry_run:
            with engine.collection.reading() as snapshot:
                count = len(set(keys)) - len(missing)
                if where is not None:
                    count = snapshot.store.count(where)
        else:
            count = engine.delete(list(keys) if keys else None, where=where)
        if not count:
            note_unknown_fields(engine, where)
    if as_json:
        deleted = 0 if dry_run else count
        # "found" is the former name of "matched".
        show_json({"deleted": deleted, "matched": count, "found": count, "missing": missing})
        return
    would_be = "would be " if dry_run else ""
    note(f"{counted(count, 'document')} {would_be}deleted from {collection}")
    for key in missing:
        note(f"no document {key!r}")


@click.command()
@COLLECTION
@click.argument("key")
@click.argument("values", nargs=-1, required=True, metavar="NAME=VALUE…")
@WAIT
@AS_JSON
def update(collection: Path, key: str, values: tuple[str, ...], wait: float, as_json: bool) -> None:
    """Update metadata of the document KEY without encoding it again.

    A VALUE is read as JSON if it is valid JSON, else as text; null removes the
    field.

    \b
    Example:
        searchengine update notes.index whales.txt year=2016 draft=null
    """
    from searchengine.cli.console import note, show_json
    from searchengine.engine import SearchEngine

    patch = dict(_field(value) for value in values)
    with SearchEngine.open(collection, wait=wait) as engine:
        engine.update({key: patch})
        with engine.collection.reading() as snapshot:
            store = snapshot.store
            (document,) = store.documents(store.ids_of([key]).values())
    if as_json:
        show_json({"collection": str(collection), "key": key, "metadata": document.metadata})
    else:
        note(f"{key} updated in {collection}")


def _field(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise QueryError(f"expected NAME=VALUE, such as year=2016, got {text!r}")
    try:
        return name, json.loads(value, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return name, value


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not a JSON number")
