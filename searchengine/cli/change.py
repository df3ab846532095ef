"""Change a collection: searchengine update, delete, reindex and optimize."""

from typing import Any

import click

from searchengine.cli import options as opt
from searchengine.cli.console import counted, show_result, steps
from searchengine.cli.options import command, named, open_engine
from searchengine.errors import QueryError


@command(
    click.argument("key"),
    click.argument("values", nargs=-1, required=True, type=opt.assignment, metavar="NAME=VALUE…"),
    example="update notes.index whales.txt year=2016 draft=null",
)
def update(collection: str, key: str, values: Any, as_json: bool) -> None:
    """Update metadata of the document KEY without encoding it again.

    A VALUE is read as JSON if it is valid JSON, else as text; null removes the field.
    """
    with open_engine(collection) as engine:
        engine.update({key: dict(values)})
        name, metadata = named(collection), engine[key].metadata
    result = {"collection": name, "key": key, "metadata": metadata}
    show_result(result, f"{key} updated in {name}", as_json)


@command(
    click.argument("keys", nargs=-1),
    opt.WHERE,
    example=("delete notes.index whales.txt", 'delete notes.index --where "year < 2010"'),
)
def delete(collection: str, keys: Any, where: str | None, as_json: bool) -> None:
    """Delete documents by key or by filter; `list --where` shows them before."""
    if bool(keys) == (where is not None):
        raise QueryError(
            f"delete takes either keys or --where, got {'both' if keys else 'neither'}; "
            "name the documents by key, or by a filter"
        )
    with open_engine(collection) as engine:
        missing = sorted(key for key in set(keys) if key not in engine)
        deleted = engine.delete(list(keys) if keys else None, where=where)
        done = f"{counted(deleted, 'document')} deleted from {named(collection)}"
    text = "\n".join([done, *(f"no document {key!r}" for key in missing)])
    show_result({"deleted": deleted, "missing": missing}, text, as_json)


@command(
    opt.encoder("Model folder or hub name to change to."),
    opt.flag("--discard", "Drop a pending reindex and what it has encoded."),
    opt.PASSAGES,
    example="reindex notes.index --encoder new-model",
)
def reindex(
    collection: str, discard: bool, passages: int | None, as_json: bool, **options: Any
) -> None:
    """Change the encoder of a collection by encoding all of its documents again.

    The collection can be read and changed meanwhile; the new encoder is used from one commit on. If
    the command is interrupted, repeat it: no text is encoded twice; or drop what it has encoded,
    with --discard.
    """
    from searchengine.engine import discard_reindex

    discarded, name = None, named(collection)
    with open_engine(collection) as engine, steps() as progress:
        if discard:
            opt.alone("--discard", "encoder", "passages", "runtime")
            discarded = discard_reindex(engine)
            text = f"{name}: {'the pending' if discarded else 'no'} reindex was discarded"
        elif options["encoder"] is None:
            raise click.UsageError("name the encoder to change to: --encoder PATH")
        else:
            engine.reindex(passages=opt.passages_of(passages), progress=progress, **options)
        stats = engine.stats()
    if not discard:
        cut = f"{counted(stats.documents, 'document')} as {counted(stats.passages, 'passage')}"
        text = f"{name}: {cut} encoded by {stats.encoder}"
    names = ("encoder", "fingerprint", "dim", "documents", "passages")
    result = {each: getattr(stats, each) for each in names}
    show_result({"collection": name, "discarded": discarded} | result, text, as_json)


@command(example="optimize notes.index")
def optimize(collection: str, as_json: bool) -> None:
    """Rewrite all segments as one, without deleted rows.

    The collection can be searched meanwhile.
    """
    with open_engine(collection) as engine:
        name, before = named(collection), engine.stats()
        with steps() as progress:
            engine.optimize(progress=progress)
        after = engine.stats()
    result = {"collection": name, "segments": after.segments, "dropped": before.tombstones}
    text = f"{name}: {counted(before.segments, 'segment')} became {after.segments}, "
    text += f"{counted(before.tombstones, 'deleted row')} dropped, {after.bytes:,} bytes are left"
    show_result(result | {"bytes": after.bytes}, text, as_json)


COMMANDS = (update, delete, reindex, optimize)
