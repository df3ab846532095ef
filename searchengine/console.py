"""What the command line shows: tables, progress, JSON. Everything but results goes to stderr."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import click
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text


@contextmanager
def progress(what: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
    """A progress bar on stderr; the block calls what it is given with the number just done."""
    with steps() as heard:
        heard(what, 0, total)
        yield lambda done: heard(what, done, total)


@contextmanager
def steps() -> Iterator[Callable[[str, int, int | None], None]]:
    """A progress bar on stderr for every step that the block tells of.

    It calls what it is given with the step, the number just done, and how many there are.
    """
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as bar:
        tasks: dict[str, TaskID] = {}

        def heard(what: str, done: int, total: int | None) -> None:
            if what not in tasks:
                tasks[what] = bar.add_task(what, total=total)
            bar.advance(tasks[what], done)

        yield heard
        for task in bar.tasks:
            bar.update(task.id, total=task.completed)  # the total may have been a guess


def show_rows(rows: Sequence[Mapping[str, Any]], title: str = "") -> None:
    """A table on standard output: one column a key, numbers to the right."""
    # Plain text: a path may hold brackets, which rich would read as markup.
    table = Table(title=Text(title) if title else None, title_justify="left")
    for name in rows[0] if rows else ():
        numeric = isinstance(rows[0][name], int | float)
        table.add_column(name, justify="right" if numeric else "left", no_wrap=True)
    for row in rows:
        table.add_row(*(_cell(value) for value in row.values()))
    console = Console()
    if not console.is_terminal:
        console.width = 200  # nobody folds a pipe or a file
    console.print(table)


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def show_json(value: Any) -> None:
    """One JSON document on standard output."""
    click.echo(json.dumps(value, ensure_ascii=False, indent=2, allow_nan=False))


def note(message: str) -> None:
    """A line for the person, on stderr."""
    click.echo(message, err=True)
