"""searchengine delete, update, optimize, backup and export."""

import json
from pathlib import Path
from typing import Any

import click

from searchengine.cli.options import AS_JSON, COLLECTION, ENCODER, WAIT
from searchengine.errors import QueryError

_NEW_FOLDER = click.argument("folder", type=click.Path(path_type=Path))


@click.command()
@COLLECTION
@click.argument("keys", nargs=-1)
@click.option("--where", help="All documents that match a filter on metadata.")
@click.option("--dry-run", is_flag=True, help="Only say how many there are.")
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
    """Forget documents by their KEYS, or all that match a filter.

    \b
    Example:
        searchengine delete notes.index whales.txt
        searchengine delete notes.index --where "year < 2010"
    """
    from searchengine.console import note, show_json
    from searchengine.engine import SearchEngine

    with SearchEngine.open(collection, wait=wait) as engine:
        if bool(keys) == (where is not None):
            raise QueryError("delete takes either keys or --where")
        with engine.collection.reading() as snapshot:
            missing = sorted(set(keys) - set(snapshot.store.ids_of(keys)))
        if dry_run:
            with engine.collection.reading() as snapshot:
                count = len(set(keys)) - len(missing)
                if where is not None:
                    count = snapshot.store.count(where)
        else:
            count = engine.delete(list(keys) if keys else None, where=where)
    if as_json:
        show_json({"deleted": 0 if dry_run else count, "found": count, "missing": missing})
        return
    note(f"{count} documents {'would be ' if dry_run else ''}deleted from {collection}")
    for key in missing:
        note(f"no document {key!r}")


@click.command()
@COLLECTION
@click.argument("key")
@click.argument("values", nargs=-1, required=True, metavar="NAME=VALUE…")
@WAIT
def update(collection: Path, key: str, values: tuple[str, ...], wait: float) -> None:
    """Change metadata of the document KEY; nothing is encoded again.

    A VALUE is read as JSON where it is JSON, and as text otherwise; null removes
    the field.

    \b
    Example:
        searchengine update notes.index whales.txt year=2016 draft=null
    """
    from searchengine.console import note
    from searchengine.engine import SearchEngine

    patch = dict(_field(value) for value in values)
    with SearchEngine.open(collection, wait=wait) as engine:
        engine.update({key: patch})
    note(f"{key} updated in {collection}")


def _field(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise QueryError(f"expected NAME=VALUE, got {text!r}")
    try:
        return name, json.loads(value, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return name, value


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not a JSON number")


@click.command()
@COLLECTION
@click.option("--retune", is_flag=True, help="Find the operating point anew as well.")
@click.option(
    "--field", "fields", multiple=True, help="Index this metadata field, for fast filters."
)
@ENCODER
@WAIT
def optimize(
    collection: Path, retune: bool, fields: tuple[str, ...], encoder: str | None, wait: float
) -> None:
    """Write all segments as one, without what was deleted, the rotation fitted anew.

    The collection can be searched meanwhile.

    \b
    Example:
        searchengine optimize notes.index --field year
    """
    from searchengine.console import note, steps
    from searchengine.engine import SearchEngine

    with SearchEngine.open(collection, encoder, wait=wait) as engine:
        before = engine.stats()
        if fields:
            engine.index_fields(*fields)
        with steps() as heard:
            engine.optimize(retune=retune, progress=heard)
        after = engine.stats()
    note(
        f"{collection}: {before.segments} segments became {after.segments}, "
        f"{before.tombstones} deleted rows were dropped, {before.bytes} bytes are now {after.bytes}"
    )


@click.command()
@COLLECTION
@_NEW_FOLDER
def backup(collection: Path, folder: Path) -> None:
    """Copy the last commit to a new FOLDER, while others read and write.

    \b
    Example:
        searchengine backup notes.index /backups/notes.index
    """
    from searchengine.console import note
    from searchengine.engine import SearchEngine

    with SearchEngine.open(collection) as engine:
        engine.backup(folder)
    note(f"{collection} copied to {folder}")


@click.command()
@COLLECTION
@_NEW_FOLDER
def export(collection: Path, folder: Path) -> None:
    """Write documents.jsonl, passages.jsonl and vectors.npy to a new FOLDER.

    \b
    Example:
        searchengine export notes.index notes-export
    """
    from searchengine.console import note
    from searchengine.engine import SearchEngine

    with SearchEngine.open(collection) as engine:
        count = engine.export(folder)
    note(f"{count} documents exported to {folder}")
