"""Keep a collection: searchengine info, verify, repair, optimize, backup, export, copy, reindex."""

import json
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any
from warnings import catch_warnings

import click
from click.core import ParameterSource

from searchengine.cli.console import (
    counted,
    note,
    say,
    show_json,
    show_result,
    steps,
)
from searchengine.cli.options import (
    AS_JSON,
    COLLECTION,
    ENCODER,
    INDEXED,
    PASSAGES,
    PATH,
    WAIT,
    Address,
    named,
    open_engine,
    passages_of,
    runs,
)
from searchengine.errors import QueryError, SearchEngineError

_NEW_FOLDER = click.argument("folder", type=click.Path(path_type=Path))


@click.command()
@COLLECTION
@AS_JSON
def info(collection: Path | str, as_json: bool) -> None:
    """Show what a collection contains and how it is searched.

    \b
    Example:
        searchengine info my.index
    """
    from searchengine.indexer.native.library import description

    with open_engine(collection) as engine:
        stats = engine.stats()
        run_by = {"runtime": engine.runs_on(), "kernel": description()}
        with catch_warnings(action="ignore"):  # no document has the field
            lost = engine.count("exists(unreadable)")
        if lost:
            beside = counted(lost, "document")
            run_by["unreadable"] = f"parts of files: list --where 'exists(unreadable)' ({beside})"
        prompts: dict[str, str] = {}
        with suppress(SearchEngineError):  # which `runtime` tells
            named = getattr(engine.encoder, "prompts", {})  # which only a model folder names
            prompts = {name: prompt for name, prompt in named.items() if prompt}
    if as_json:
        show_json(asdict(stats) | run_by | {"prompts": prompts})
        return
    if prompts:
        run_by["prompts"] = json.dumps(prompts, ensure_ascii=False)[1:-1]
    for name, value in (stats.described() | run_by).items():
        say(f"{name:12} {value}")


@click.command()
@COLLECTION
@AS_JSON
def verify(collection: Path, as_json: bool) -> None:
    """Check every file of a collection against its checksum.

    On a server (URL): the checksum of every text, and vectors.

    \b
    Example:
        searchengine verify my.index
    """
    with open_engine(collection) as engine:
        engine.verify()
    if as_json:
        show_json({"collection": named(collection), "whole": True})
    else:
        say(f"{named(collection)} is whole")


@click.command()
@COLLECTION
@click.option("--dry-run", is_flag=True, help="Report the damage without changing anything.")
@ENCODER
@runs
@WAIT
@AS_JSON
@click.pass_context
def repair(
    ctx: click.Context,
    collection: Path | str,
    dry_run: bool,
    encoder: str | None,
    runtime: Any,
    wait: float,
    as_json: bool,
) -> None:
    """Repair a damaged collection from the texts it stores.

    Segments with damaged or missing vectors are encoded again; all else is built again. A
    documents.db that SQLite finds damaged is left as it is: docs/operating.md tells
    how to recover it. The exit status is 0 if the collection is whole afterwards, else 1.

    \b
    Example:
        searchengine repair notes.index --dry-run
        searchengine repair notes.index
    """
    from searchengine.backends.contract import folders_only
    from searchengine.backends.opening import name_of
    from searchengine.engine import SearchEngine

    if isinstance(collection, str):
        raise folders_only(
            name_of(collection),
            "searchengine verify URL checks the tables; restore the database from a backup, or "
            "copy the documents to it again: searchengine copy FOLDER URL",
        )
    with steps() as report:
        result = SearchEngine.repair(
            collection, encoder, dry_run=dry_run, wait=wait, runtime=runtime, progress=report
        )
    if as_json:
        show_json(asdict(result))
    else:
        checked = (
            f"{counted(result.documents, 'document')}, {counted(result.passages, 'passage')}, "
            f"{counted(result.segments, 'segment')}"
        )
        lines = [("checked", checked)]
        name = "damage" if dry_run else "repaired"
        lines += [(name, sentence) for sentence in result.damage]
        lines += [("lost", sentence) for sentence in result.lost]
        if dry_run and result.encoded:
            lines.append(("to do", f"encode {counted(result.encoded, 'document')} again"))
        for name, sentence in lines:
            say(f"{name:8}  {sentence}")
        say(f"{named(collection)} is whole" if result.whole else f"not whole: {result.complaint}")
    if not result.whole:
        ctx.exit(1)


@click.command()
@COLLECTION
@INDEXED
@WAIT
@AS_JSON
def optimize(collection: Path, fields: tuple[str, ...], wait: float, as_json: bool) -> None:
    """Rewrite all segments as one, without deleted rows.

    The collection can be searched meanwhile.

    \b
    Example:
        searchengine optimize notes.index --field year
    """
    with open_engine(collection, wait=wait) as engine:
        before = engine.stats()
        if fields:
            engine.index_fields(*fields)
        with steps() as progress:
            engine.optimize(progress=progress)
        after = engine.stats()
    show_result(
        {"collection": named(collection)}
        | _before_and_after(before, after, ("segments", "tombstones", "bytes")),
        f"{named(collection)}: {counted(before.segments, 'segment')} became {after.segments}, "
        f"{counted(before.tombstones, 'deleted row')} dropped, "
        f"{before.bytes:,} bytes are now {after.bytes:,}",
        as_json,
    )


def _before_and_after(before: Any, after: Any, names: tuple[str, ...]) -> dict[str, Any]:
    before, after = ({name: getattr(stats, name) for name in names} for stats in (before, after))
    return {"before": before, "after": after}


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

    with open_engine(collection) as engine:
        engine.backup(folder)
        copied = engine.stats()
    names = {"collection": named(collection), "folder": str(folder)}
    show_result(
        names | {"documents": copied.documents, "commit": copied.commit},
        f"{counted(copied.documents, 'document')} of {named(collection)} copied to {folder}",
        as_json,
    )


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

    with open_engine(collection) as engine:
        count = engine.export(folder)
    show_result(
        {"collection": named(collection), "folder": str(folder), "documents": count},
        f"{counted(count, 'document')} exported to {folder}",
        as_json,
    )


@click.command()
@click.argument("source", type=Address())
@click.argument("target", type=Address())
@click.option("--prune", is_flag=True, help="Delete documents of TARGET that SOURCE does not have.")
@AS_JSON
def copy(source: Path | str, target: Path | str, prune: bool, as_json: bool) -> None:
    """Copy the collection SOURCE to TARGET, a folder or a URL.

    A URL is postgresql://USER@HOST/DATABASE#NAME.

    Nothing is encoded again. Both sides are compared at the end. After an
    interruption, or when SOURCE has changed, the same command copies the rest;
    with --prune it also deletes what SOURCE no longer has.

    \b
    Examples:
        searchengine copy papers.index "postgresql://me@localhost/search#papers"
        searchengine copy "postgresql://me@localhost/search#papers" papers.index
    """
    from searchengine.backends.opening import name_of
    from searchengine.engine import SearchEngine

    with steps() as report:
        copied = SearchEngine.copy(source, target, report, prune=prune)
    names = {"source": name_of(source), "target": name_of(target)}
    removed = f", {counted(copied.removed, 'document')} deleted there" if copied.removed else ""
    show_result(
        names | asdict(copied),
        f"{counted(copied.written, 'document')} of {counted(copied.documents, 'document')} "
        f"copied to {names['target']}{removed}; both sides are equal (checksum "
        f"{copied.checksum[:12]}, vectors within {copied.farthest:.5f})",
        as_json,
    )


@click.command()
@COLLECTION
@click.option(
    "--encoder",
    metavar="PATH",
    type=PATH,
    help="Model folder or hub name to change to [default: the pending reindex's].",
)
@click.option("--discard", is_flag=True, help="Drop a pending reindex and all that it has encoded.")
@PASSAGES
@runs
@WAIT
@AS_JSON
def reindex(
    collection: Path | str,
    encoder: str | None,
    discard: bool,
    passages: int | None,
    runtime: Any,
    wait: float,
    as_json: bool,
) -> None:
    """Change the encoder of a collection by encoding all of its documents again.

    The collection can be read and changed meanwhile; the new encoder is used from one
    commit on. If the command is interrupted, repeat it: no text is encoded twice; or
    drop what it has encoded, with --discard.

    \b
    Example:
        searchengine reindex notes.index --encoder new-model
    """

    if discard:
        _check_alone(click.get_current_context())
    names = ("encoder", "fingerprint", "dim", "documents", "passages")
    name, result = named(collection), dict[str, Any].fromkeys(("before", "after", "discarded"))
    with open_engine(collection, wait=wait) as engine:
        before = engine.stats()
        if discard:
            result["discarded"] = engine.discard_reindex()
            which = "the pending" if result["discarded"] else "no"
            sentence = f"{name}: {which} reindex was discarded"
        else:
            with steps() as progress:
                engine.reindex(
                    encoder, passages=passages_of(passages), runtime=runtime, progress=progress
                )
            after = engine.stats()
            result |= _before_and_after(before, after, names)
            documents, cut = (
                counted(after.documents, "document"),
                counted(after.passages, "passage"),
            )
            sentence = f"{name}: {documents} as {cut} encoded by {after.encoder}"
    show_result({"collection": name, **result}, sentence, as_json)
    if as_json or discard:
        return
    if before.tuning is not None:
        note(f"the operating point was tuned before; tune again: searchengine tune {name}")
    if before.query_map is not None and after.query_map is None:
        note(
            "the map of questions was learnt from the former vectors, and dropped; learn it again: "
            f"searchengine learn {name}"
        )


def _check_alone(ctx: click.Context) -> None:
    """Refuse --discard together with other options."""
    for name in ctx.params.keys() - {"collection", "discard", "wait", "as_json"}:
        if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise QueryError("--discard drops a pending reindex; give it without other options")
