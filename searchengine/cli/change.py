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
    opt.WAIT,
    example="update notes.index whales.txt year=2016 draft=null",
)
def update(collection: str, key: str, values: Any, as_json: bool, **options: Any) -> None:
    """Update metadata of the document KEY without encoding it again.

    A VALUE is read as JSON if it is valid JSON, else as text; null removes the field.
    """
    with open_engine(collection, options) as engine:
        engine.update({key: dict(values)})
        name, metadata = named(collection), engine[key].metadata
    result = {"collection": name, "key": key, "metadata": metadata}
    show_result(result, f"{key} updated in {name}", as_json)


@command(
    click.argument("keys", nargs=-1),
    opt.WHERE,
    opt.DRY_RUN,
    opt.WAIT,
    example=("delete notes.index whales.txt", 'delete notes.index --where "year < 2010"'),
)
def delete(
    collection: str, keys: Any, where: str | None, dry_run: bool, as_json: bool, **options: Any
) -> None:
    """Delete documents by key or by filter."""
    if bool(keys) == (where is not None):
        raise QueryError(
            f"delete takes either keys or --where, got {'both' if keys else 'neither'}; "
            "name the documents by key, or by a filter"
        )
    with open_engine(collection, options) as engine:
        missing = sorted(key for key in set(keys) if key not in engine)
        if not dry_run:
            matched = engine.delete(list(keys) if keys else None, where=where)
        else:
            matched = len(set(keys)) - len(missing) if keys else engine.count(where)
        would = "would be " if dry_run else ""
        done = f"{counted(matched, 'document')} {would}deleted from {named(collection)}"
    result = {"deleted": 0 if dry_run else matched, "matched": matched, "missing": missing}
    text = "\n".join([done, *(f"no document {key!r}" for key in missing)])
    show_result(result, text, as_json)


@command(
    opt.encoder("Model folder or hub name to change to [default: the pending reindex's]."),
    opt.flag("--discard", "Drop a pending reindex and what it has encoded."),
    opt.PASSAGES,
    opt.WAIT,
    example="reindex notes.index --encoder new-model",
)
def reindex(
    collection: str, discard: bool, passages: int | None, wait: float, as_json: bool, **options: Any
) -> None:
    """Change the encoder of a collection by encoding all of its documents again.

    The collection can be read and changed meanwhile; the new encoder is used from one commit on. If
    the command is interrupted, repeat it: no text is encoded twice; or drop what it has encoded,
    with --discard.
    """
    names = ("encoder", "fingerprint", "dim", "documents", "passages")
    result = dict[str, Any].fromkeys(("before", "after", "discarded"))
    with open_engine(collection, {"wait": wait}) as engine:
        name, before = named(collection), engine.stats()
        if discard:
            opt.alone("--discard", "encoder", "passages", "runtime")
            result["discarded"] = engine.discard_reindex()
            which = "the pending" if result["discarded"] else "no"
            text = f"{name}: {which} reindex was discarded"
        else:
            with steps() as progress:
                engine.reindex(passages=opt.passages_of(passages), progress=progress, **options)
            after = engine.stats()
            result |= {"before": _parts(before, names), "after": _parts(after, names)}
            cut = f"{counted(after.documents, 'document')} as {counted(after.passages, 'passage')}"
            text = f"{name}: {cut} encoded by {after.encoder}"
    show_result({"collection": name, **result}, text, as_json)


@command(opt.INDEXED, opt.WAIT, example="optimize notes.index --field year")
def optimize(collection: str, fields: tuple[str, ...], as_json: bool, **options: Any) -> None:
    """Rewrite all segments as one, without deleted rows.

    The collection can be searched meanwhile.
    """
    names = ("segments", "tombstones", "bytes")
    with open_engine(collection, options) as engine:
        name, before = named(collection), engine.stats()
        if fields:
            engine.index_fields(*fields)
        with steps() as progress:
            engine.optimize(progress=progress)
        after = engine.stats()
    result = {"before": _parts(before, names), "after": _parts(after, names)}
    dropped = f"{counted(before.tombstones, 'deleted row')} dropped"
    text = f"{name}: {counted(before.segments, 'segment')} became {after.segments}, {dropped}, "
    text += f"{before.bytes:,} bytes are now {after.bytes:,}"
    show_result({"collection": name, **result}, text, as_json)


def _parts(stats: Any, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: getattr(stats, name) for name in names}


COMMANDS = (update, delete, reindex, optimize)
