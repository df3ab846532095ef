"""Keep a collection: searchengine info, verify, repair, backup, copy and export."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from searchengine.cli import options as opt
from searchengine.cli.console import counted, say, show_json, show_result, steps
from searchengine.cli.options import command, named, open_engine
from searchengine.errors import SearchEngineError

_NEW_FOLDER = click.argument("folder", type=opt.FILE)


@command(example="info my.index")
def info(collection: str, as_json: bool) -> None:
    """Show what a collection contains and how it is searched."""
    from searchengine.indexer.native.library import description

    with open_engine(collection) as engine:
        try:
            runtime = engine.encoder.load().runs_on
        except SearchEngineError as error:  # why it cannot run
            runtime = str(error)
        stats, more = engine.stats(), {"runtime": runtime, "kernel": description()}
        if lost := engine.count("exists(unreadable)"):
            beside = counted(lost, "document")
            more["unreadable"] = f"parts of files: list --where 'exists(unreadable)' ({beside})"
    if as_json:
        show_json(asdict(stats) | more)
        return
    for name, value in (stats.described() | more).items():
        say(f"{name:12} {value}")


@command(example="verify my.index")
def verify(collection: str, as_json: bool) -> None:
    """Check every file of a collection against its checksum.

    On a server (URL): the checksum of every text.
    """
    with open_engine(collection) as engine:
        engine.verify()
        name = named(collection)
    show_json({"collection": name, "whole": True}) if as_json else say(f"{name} is whole")


@command(opt.ENCODER, example="repair notes.index")
def repair(collection: str, as_json: bool, **options: Any) -> None:
    """Repair a damaged collection from the texts it stores.

    Segments with damaged or missing vectors are encoded again; all else is built again. A
    documents.db that SQLite finds damaged is left as it is: docs/operating.md tells how to recover
    it. The exit status is 0 if the collection is whole afterwards, else 1.
    """
    from searchengine.engine import SearchEngine

    with steps() as report:
        result = SearchEngine.repair(collection, progress=report, wait=opt.WAIT, **options)
    if as_json:
        show_json(asdict(result) | {"whole": result.whole})
    else:
        lines = [f"repaired  {damage}" for damage in result.damage]
        for line in (*lines, *(f"lost      {lost}" for lost in result.lost)):
            say(line)
        say(f"{collection} is whole" if result.whole else f"not whole: {result.complaint}")
    if not result.whole:
        raise click.exceptions.Exit(1)


@command(_NEW_FOLDER, example="backup notes.index /backups/notes.index")
def backup(collection: str, folder: Path, as_json: bool) -> None:
    """Copy the last commit to a new FOLDER, while others read and write."""
    with open_engine(collection) as engine:
        engine.backup(folder)
        stats = engine.stats()
    result = {"collection": stats.path, "folder": str(folder), "documents": stats.documents}
    text = f"{counted(stats.documents, 'document')} of {stats.path} copied to {folder}"
    show_result(result | {"commit": stats.commit}, text, as_json)


@command(_NEW_FOLDER, example="export notes.index notes-export")
def export(collection: str, folder: Path, as_json: bool) -> None:
    """Write documents.jsonl, passages.jsonl and vectors.npy to a new FOLDER."""
    with open_engine(collection) as engine:
        count, name = engine.export(folder), named(collection)
    result = {"collection": name, "folder": str(folder), "documents": count}
    show_result(result, f"{counted(count, 'document')} exported to {folder}", as_json)


@command(
    click.argument("source", type=opt.PATH),
    click.argument("target", type=opt.PATH),
    opt.flag("--prune", "Delete documents of TARGET that SOURCE lacks."),
    example=(
        'copy papers.index "postgresql://me@localhost/search#papers"',
        'copy "postgresql://me@localhost/search#papers" papers.index',
    ),
    collection=False,
)
def copy(source: str, target: str, prune: bool, as_json: bool) -> None:
    """Copy the collection SOURCE to TARGET, a folder or a URL.

    A URL is postgresql://USER@HOST/DATABASE#NAME.

    Nothing is encoded again. After an interruption, or when SOURCE has changed, the same command
    copies the rest; with --prune it also deletes what SOURCE no longer has.
    """
    from searchengine.engine import SearchEngine, name_of

    with steps() as report:
        copied = SearchEngine.copy(source, target, report, prune=prune)
    names = {"source": name_of(source), "target": name_of(target)}
    removed = f", {counted(copied.removed, 'document')} deleted there" if copied.removed else ""
    text = f"{copied.written:,} of {counted(copied.documents, 'document')} copied to "
    text += f"{names['target']}{removed}"
    show_result(names | asdict(copied), text, as_json)


COMMANDS = (info, verify, repair, backup, copy, export)
