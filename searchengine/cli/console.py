"""What the command line shows: tables, progress, JSON. Everything but results goes to stderr.

Documents, file names and questions may hold control characters, which would move the cursor, set
the window's title or reverse the text. Every function here escapes them, and every command prints
through this module alone.

rich is imported where it draws: that takes longer than a search.
"""

import json
import logging
import re
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import current_thread, main_thread
from types import FrameType
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Protocol

import click

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import TaskID

# C0 but tab and newline, DEL and C1; what overrides the direction of text; lone surrogates.
_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_NAMES = ("SIGTERM", "SIGHUP")  # Windows has no SIGHUP
_REMEMBERED = 120  # seconds that the time left is worked out from: a step may take half a minute


def printable(text: str) -> str:
    r"""The text with control characters escaped, as \x1b or \u202e; tabs and newlines stay."""
    return _UNSAFE.sub(_escaped, text)


def _escaped(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


class PrintableFormatter(logging.Formatter):
    """A log record's text with control characters escaped."""

    def format(self, record: logging.LogRecord) -> str:
        """The message, and the traceback if there is one."""
        return printable(super().format(record))


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
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[rate]}", markup=False),
    )
    console = stderr_console()
    with Progress(*columns, console=console, speed_estimate_period=_REMEMBERED) as bar:
        tasks: dict[str, TaskID] = {}

        def heard(what: str, done: int, total: int | None, rate: str = "") -> None:
            if what not in tasks:
                tasks[what] = bar.add_task(printable(what), total=total, rate=rate)
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
    table = Table(title=Text(printable(title)) if title else None, title_justify="left")
    for name in rows[0] if rows else ():
        numeric = isinstance(rows[0][name], int | float)
        justify: Literal["right", "left"] = "right" if numeric else "left"
        table.add_column(Text(printable(name)), justify=justify, no_wrap=True)
    for row in rows:
        table.add_row(*(Text(printable(_cell(value))) for value in row.values()))
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
    text = json.dumps(value, ensure_ascii=False, indent=2, allow_nan=False)
    # Only strings hold such characters: JSON's own escape of each leaves the value as it is.
    click.echo(_UNSAFE.sub(lambda match: f"\\u{ord(match[0]):04x}", text))


def counted(number: int, what: str) -> str:
    """How many of something: 1 document, 2,000 documents."""
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def note(message: str) -> None:
    """A line for the person, on stderr."""
    click.echo(printable(message), err=True)


def say(text: str = "", *, bold: bool = False) -> None:
    """A line of the result, on standard output."""
    text = printable(text)
    click.echo(click.style(text, bold=True) if bold else text)


def stderr_console() -> "Console":
    """A rich console on stderr; print texts to it by `print_line`."""
    from rich.console import Console

    return Console(stderr=True)


def print_line(console: "Console", text: str) -> None:
    """A line above the progress that a rich console shows; brackets are no markup."""
    console.print(printable(text), markup=False, soft_wrap=True)


class Terminated(SystemExit):
    """A signal ended the command.

    Attributes:
        status: the exit status, 128 + the signal's number, as shells report it.
        signal_name: such as SIGTERM.
    """

    def __init__(self, number: int) -> None:
        self.status = 128 + number
        self.signal_name = signal.Signals(number).name
        super().__init__(self.status)


@contextmanager
def orderly_exit() -> Iterator[None]:
    """Within the block, raise Terminated in the main thread where a signal would kill the process.

    A signal that is ignored, as SIGHUP is under nohup, stays ignored.
    """
    if current_thread() is not main_thread():  # only the main thread may set handlers
        yield
        return
    numbers = [getattr(signal, name) for name in _NAMES if hasattr(signal, name)]
    replaced = [number for number in numbers if signal.getsignal(number) is signal.SIG_DFL]
    try:
        for number in replaced:
            signal.signal(number, _terminate)
        yield
    finally:
        for number in replaced:
            signal.signal(number, signal.SIG_DFL)


def _terminate(number: int, _: FrameType | None) -> NoReturn:
    raise Terminated(number)
