"""What the command line shows: tables, progress, JSON. Everything but results goes to stderr.

rich is imported where it draws: that takes longer than a search.
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

import click

if TYPE_CHECKING:
    from rich.progress import TaskID

_REMEMBERED = 120  # seconds that the time left is worked out from: a step may take half a minute


class Heard(Protocol):
    """Hears what is being done."""

    def __call__(self, what: str, done: int, total: int | None, rate: str = "") -> None:
        """The step, the number just done, how many there are, and how fast it goes."""


@contextmanager
def progress(what: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
    """A progress bar on stderr; the block calls what it is given with the number just done."""
    with steps() as heard:
        heard(what, 0, total)
        yield lambda done: heard(what, done, total)


@contextmanager
def steps() -> Iterator[Heard]:
    """A progress bar on stderr for every step that the block tells of.

    It calls what it is given with the step, the number just done, and how many there are.
    """
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        SpinnerColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[rate]}"),
    )
    console = Console(stderr=True)
    with Progress(*columns, console=console, speed_estimate_period=_REMEMBERED) as bar:
        tasks: dict[str, TaskID] = {}

        def heard(what: str, done: int, total: int | None, rate: str = "") -> None:
            if what not in tasks:
                tasks[what] = bar.add_task(what, total=total, rate=rate)
            task = bar.tasks[tasks[what]]
            if done and total is not None and task.total is not None and task.finished:
                bar.update(task.id, total=task.total + total)  # once more: the next commit's
            bar.update(task.id, advance=done, rate=rate)

        yield heard
        for task in bar.tasks:
            bar.update(task.id, total=task.completed)  # the total may have been a guess


@contextmanager
def indexing(total: int | None) -> Iterator[tuple[Callable[[int, int], None], Heard]]:
    """The progress of an add: documents, tokens a second and time left; and of its steps.

    Gives what is called with the documents read and tokens encoded, and what `steps` gives.
    """
    before, tokens, seconds = time.monotonic(), 0, 0.0
    with steps() as heard:
        heard("Indexing", 0, total)

        def read(documents: int, more: int) -> None:
            nonlocal before, tokens, seconds
            now = time.monotonic()
            if more:  # what is stored already takes time and no tokens
                tokens += more
                seconds += now - before
            before = now
            rate = f"{tokens / seconds:,.0f} tokens/s" if seconds else ""
            heard("Indexing", documents, total, rate)

        yield read, heard


def show_rows(rows: Sequence[Mapping[str, Any]], title: str = "") -> None:
    """A table on standard output: one column a key, numbers to the right."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

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


def counted(number: int, what: str) -> str:
    """How many of something: 1 document, 2,000 documents."""
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def note(message: str) -> None:
    """A line for the person, on stderr."""
    click.echo(message, err=True)
