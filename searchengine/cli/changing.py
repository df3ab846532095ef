"""searchengine delete, update and reindex."""

import json
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from searchengine.cli.options import (
    AS_JSON,
    COLLECTION,
    WAIT,
    complete_path,
    note_unknown_fields,
    runs,
)
from searchengine.errors import QueryError


@click.command()
@COLLECTION
@click.argument("keys", nargs=-1)
@click.option("--where", help="Metadata filter of the documents to delete.")
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
    from searchengine.backends.opening import name_of
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
    note(f"{counted(count, 'document')} {would_be}deleted from {name_of(collection)}")
    for key in missing:
        note(f"no document {key!r}")


@click.command()
@COLLECTION
@click.argument("key")
@click.argument("values", nargs=-1, required=True, metavar="NAME=VALUE…")
@WAIT
@AS_JSON
def update(
    collection: Path | str, key: str, values: tuple[str, ...], wait: float, as_json: bool
) -> None:
    """Update metadata of the document KEY without encoding it again.

    A VALUE is read as JSON if it is valid JSON, else as text; null removes the
    field.

    \b
    Example:
        searchengine update notes.index whales.txt year=2016 draft=null
    """
    from searchengine.backends.opening import name_of
    from searchengine.cli.console import note, show_json
    from searchengine.engine import SearchEngine

    patch = dict(_field(value) for value in values)
    with SearchEngine.open(collection, wait=wait) as engine:
        engine.update({key: patch})
        with engine.collection.reading() as snapshot:
            store = snapshot.store
            (document,) = store.documents(store.ids_of([key]).values())
    if as_json:
        show_json({"collection": name_of(collection), "key": key, "metadata": document.metadata})
    else:
        note(f"{key} updated in {name_of(collection)}")


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
@click.option(
    "--encoder",
    metavar="PATH",
    shell_complete=complete_path,
    help="Model folder or hub name to change to [default: that of the pending reindex].",
)
@click.option(
    "--compare",
    type=click.Path(path_type=Path),
    help="File of questions (.jsonl or .txt): show what would change for them, and change nothing.",
)
@click.option("-q", "--question", "asked", multiple=True, help="Question to compare; repeatable.")
@click.option("-k", default=10, show_default=True, type=click.IntRange(1), help="Hits to compare.")
@click.option("--discard", is_flag=True, help="Drop a pending reindex and all that it has encoded.")
@click.option(
    "--passages/--no-passages",
    default=None,
    help="Cut long documents into passages, or keep them whole [default: as they are].",
)
@runs
@WAIT
@AS_JSON
def reindex(
    collection: Path | str,
    encoder: str | None,
    compare: Path | None,
    asked: tuple[str, ...],
    k: int,
    discard: bool,
    passages: bool | None,
    runtime: Any,
    wait: float,
    as_json: bool,
) -> None:
    """Change the encoder of a collection by encoding all of its documents again.

    The collection can be read and changed meanwhile; the new encoder is used from one
    commit on. If the command is interrupted, repeat it: no text is encoded twice. With
    questions (--compare, -q) it encodes everything and shows the hits of both encoders,
    but changes nothing: repeat it without them to change the encoder, or with --discard.

    \b
    Example:
        searchengine reindex notes.index --encoder new-model -q "how do whales sleep"
        searchengine reindex notes.index
    """
    from searchengine.cli.console import counted, note, show_json, steps
    from searchengine.engine import SearchEngine

    questions: list[str] = []
    if compare is not None:
        from searchengine.measure.judgements import read_queries

        questions = list(read_queries(compare).values())
    questions += asked
    context = click.get_current_context()
    allowed = {"collection", "discard", "wait", "as_json"}
    if discard and any(
        context.get_parameter_source(name) is ParameterSource.COMMANDLINE
        for name in context.params.keys() - allowed
    ):
        raise QueryError("--discard drops a pending reindex; give it without other options")
    with SearchEngine.open(collection, wait=wait) as engine:
        before = engine.stats()
        if discard:
            dropped = engine.discard_reindex()
        elif questions:
            with steps() as progress:
                previews = engine.preview_reindex(
                    questions, encoder, k, passages=passages, runtime=runtime, progress=progress
                )
        else:
            with steps() as progress:
                engine.reindex(encoder, passages=passages, runtime=runtime, progress=progress)
        after = engine.stats()
    if discard:
        if as_json:
            show_json({"collection": str(collection), "discarded": dropped})
        else:
            note(f"{collection}: {'the pending' if dropped else 'no'} reindex was discarded")
    elif questions:
        _show_previews(collection, previews, as_json)
    elif as_json:
        names = ("encoder", "fingerprint", "dim", "documents", "passages")
        states = [{name: getattr(stats, name) for name in names} for stats in (before, after)]
        show_json({"collection": str(collection), "before": states[0], "after": states[1]})
    else:
        note(
            f"{collection}: {counted(after.documents, 'document')} as "
            f"{counted(after.passages, 'passage')} encoded by {after.encoder}"
        )
        if before.tuning is not None:
            note(
                f"the operating point was tuned before; tune again: searchengine tune {collection}"
            )


def _show_previews(collection: Path | str, previews: Any, as_json: bool) -> None:
    from itertools import zip_longest
    from statistics import mean

    from searchengine.cli.console import note, say, show_json, show_rows

    overlap = mean(preview.overlap for preview in previews)
    if as_json:
        compared = [preview.as_dict() for preview in previews]
        show_json({"collection": str(collection), "overlap": overlap, "questions": compared})
        return
    shown = mean(max(len(preview.before), len(preview.after)) for preview in previews)
    for preview in previews:
        rows = [
            {"rank": rank, "now": now, "then": then}
            for rank, (now, then) in enumerate(zip_longest(preview.before, preview.after), start=1)
        ]
        say(f"{preview.question}: {preview.overlap} of {len(rows)} in both")
        show_rows(rows)
    note(
        f"{overlap:.1f} of {shown:.1f} hits in both on average; nothing was changed. "
        f"Change the encoder: searchengine reindex {collection}. "
        "Drop the new vectors: the same with --discard"
    )
