"""`searchengine index --prune` and `--watch`."""

import functools
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from searchengine.cli.console import Terminated, counted, note, show_json_line

if TYPE_CHECKING:
    from searchengine.corpus.columns import Columns
    from searchengine.ingest.mirror import MirrorOptions, Pass

PATIENCE = 60.0
"""Seconds to wait for another writer while a folder is watched, unless --wait says more."""


@dataclass(frozen=True, slots=True)
class Mirror:
    """What was asked for besides `index`.

    Attributes:
        watch: go on until Ctrl-C.
        allow_empty: an empty folder empties its part of the collection.
    """

    watch: bool
    allow_empty: bool

    def options(
        self, key_prefix: str, columns: "Columns", commit_every: int | None, **how: Any
    ) -> "MirrorOptions":
        """For SearchEngine.mirror and watch; `how` as AddOptions has it."""
        from searchengine.ingest.mirror import MirrorOptions
        from searchengine.ingest.settings import AddOptions

        add = AddOptions(commit_every=commit_every, **how)
        return MirrorOptions(key_prefix, columns, self.allow_empty, add)


def patience(mirror: Mirror | None, corpus: str, vectors: Any, wait: float) -> float:
    """Seconds to wait for another writer. Refuses to mirror what is no folder of files."""
    if mirror is None:
        return wait
    name = "--watch" if mirror.watch else "--prune"
    if vectors is not None or not Path(corpus).is_dir():
        raise click.UsageError(
            f"{name} needs a folder of files, got {corpus}; leave {name} out, or name a folder"
        )
    return max(wait, PATIENCE) if mirror.watch else wait


def mirrors(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that mirror a folder; the command gets `mirror`, None without them."""

    @functools.wraps(command)
    def with_mirror(prune: bool, watch: bool, allow_empty: bool, **options: Any) -> None:
        if allow_empty and not (prune or watch):
            raise click.UsageError("--allow-empty needs --prune or --watch")
        command(mirror=Mirror(watch, allow_empty) if prune or watch else None, **options)

    for option in (
        click.option(
            "--allow-empty",
            is_flag=True,
            help="With --prune and --watch, let an empty folder remove all its documents.",
        ),
        click.option(
            "--watch",
            is_flag=True,
            help="Do as --prune, and again whenever the folder changes, until Ctrl-C.",
        ),
        click.option(
            "--prune",
            is_flag=True,
            help="Remove the documents of files that are gone from the folder CORPUS.",
        ),
    ):
        with_mirror = option(with_mirror)
    return with_mirror


def watch(engine: Any, folder: str, options: "MirrorOptions", as_json: bool) -> None:
    """Keep a collection equal to a folder, and print each pass, until Ctrl-C or SIGTERM."""
    collection, documents, shown = engine.collection.path, 0, ""
    try:
        for done in engine.watch(folder, options):
            documents = done.documents
            (_show_json if as_json else _show)(folder, collection, done)
            skipped = done.unread.sentence()
            if skipped not in ("", shown) and not as_json:
                note(skipped)
                shown = skipped
    except (KeyboardInterrupt, Terminated) as stop:
        note(
            f"Stopped watching {folder}; {collection} has {counted(documents, 'document')}, the "
            "same command continues from there"
        )
        if isinstance(stop, Terminated):
            raise click.exceptions.Exit(stop.status) from None


def _show(folder: str, collection: Path, done: "Pass") -> None:
    total = counted(done.documents, "document")
    if done.problem:
        note(f"{done.problem}; trying again")
        return
    counts = ", ".join(f"{n} {name.replace('_', ' ')}" for name, n in done.changes.items())
    note(f"{counts or 'nothing new'} in {collection}, {total} now; watching {folder}, Ctrl-C ends")
    for message in _left_out(done):
        note(f"left out: {message}")


def _show_json(folder: str, collection: Path, done: "Pass") -> None:
    summary = done.summary
    show_json_line(
        {
            "collection": str(collection),
            "folder": folder,
            "documents": done.documents,
            **({} if summary is None else _counts(summary)),
            "problem": done.problem or None,
            "left_out": _left_out(done),
            "skipped": dict(done.unread.kinds),
        }
    )


def _counts(summary: Any) -> dict[str, int]:
    return {name: value for name, value in asdict(summary).items() if isinstance(value, int)}


def _left_out(done: "Pass") -> list[str]:
    """Messages of files and records that were left out."""
    bad = [] if done.summary is None else done.summary.bad.first
    return [*done.unread.failed.first, *done.malformed.first, *bad]
