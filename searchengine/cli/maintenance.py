"""searchengine delete, update, optimize, backup and export."""

import json
from pathlib import Path
from typing import Any

import click

from searchengine.cli.fields import INDEXED, tell_unknown
from searchengine.cli.options import AS_JSON, COLLECTION, ENCODER, WAIT, runs
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
    from searchengine.cli.console import counted, note, show_json
    from searchengine.engine import SearchEngine

    if bool(keys) == (where is not None):
        raise QueryError(
            f"delete takes either keys or --where, got {'both' if keys else 'neither'}; "
            "name documents by their keys, or give a filter"
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
            tell_unknown(engine, where)
    if as_json:
        show_json({"deleted": 0 if dry_run else count, "found": count, "missing": missing})
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
    """Change metadata of the document KEY; nothing is encoded again.

    A VALUE is read as JSON where it is JSON, and as text otherwise; null removes
    the field.

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


@click.command()
@COLLECTION
@click.option("--retune", is_flag=True, help="Find the operating point anew as well.")
@INDEXED
@ENCODER
@runs
@WAIT
@AS_JSON
def optimize(
    collection: Path,
    retune: bool,
    fields: tuple[str, ...],
    encoder: str | None,
    runtime: Any,
    wait: float,
    as_json: bool,
) -> None:
    """Write all segments as one, without what was deleted, the rotation fitted anew.

    The collection can be searched meanwhile.

    \b
    Example:
        searchengine optimize notes.index --field year
    """
    from indexer.errors import TuneError
    from searchengine.cli.console import counted, note, show_json, steps
    from searchengine.engine import SearchEngine

    with SearchEngine.open(collection, encoder, wait=wait, runtime=runtime) as engine:
        before = engine.stats()
        if fields:
            engine.index_fields(*fields)
        try:
            with steps() as heard:
                engine.optimize(retune=retune, progress=heard)
        except (QueryError, TuneError) as error:  # of tuning, which comes last
            raise type(error)(
                f"{collection} was optimized and keeps its operating point: {error}"
            ) from error
        after = engine.stats()
    if as_json:
        seen = {"before": before, "after": after}
        names = ("segments", "tombstones", "bytes")
        sizes = {when: {n: getattr(some, n) for n in names} for when, some in seen.items()}
        show_json({"collection": str(collection), **sizes})
        return
    note(
        f"{collection}: {counted(before.segments, 'segment')} became {after.segments}, "
        f"{counted(before.tombstones, 'deleted row')} dropped, "
        f"{before.bytes:,} bytes are now {after.bytes:,}"
    )


@click.command()
@COLLECTION
@_NEW_FOLDER
@AS_JSON
def backup(collection: Path, folder: Path, as_json: bool) -> None:
    """Copy the last commit to a new FOLDER, while others read and write.

    \b
    Example:
        searchengine backup notes.index /backups/notes.index
    """
    from searchengine.cli.console import counted, note, show_json
    from searchengine.engine import SearchEngine

    with SearchEngine.open(collection) as engine:
        engine.backup(folder)
        copied = engine.stats()
    if as_json:
        seen = {"documents": copied.documents, "commit": copied.commit}
        show_json({"collection": str(collection), "folder": str(folder), **seen})
    else:
        note(f"{counted(copied.documents, 'document')} of {collection} copied to {folder}")


@click.command()
@COLLECTION
@_NEW_FOLDER
@AS_JSON
def export(collection: Path, folder: Path, as_json: bool) -> None:
    """Write documents.jsonl, passages.jsonl and vectors.npy to a new FOLDER.

    \b
    Example:
        searchengine export notes.index notes-export
    """
    from searchengine.cli.console import counted, note, show_json
    from searchengine.engine import SearchEngine

    with SearchEngine.open(collection) as engine:
        count = engine.export(folder)
    if as_json:
        there = {"folder": str(folder), "documents": count}
        show_json({"collection": str(collection), **there})
    else:
        note(f"{counted(count, 'document')} exported to {folder}")
