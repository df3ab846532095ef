"""Output of the command line: tables, progress, JSON, signals. Only results go to stdout.

Documents, file names and questions may contain control characters, which would move the cursor, set
the window's title or reverse the text. Every function here escapes them, and every command prints
only through this module.

Functions import rich when they need it: the import takes longer than a search.
"""

import json
import logging
import re
import shlex
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import current_thread, main_thread
from types import FrameType
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Protocol

import click

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import TaskID

# C0 but tab and newline, DEL and C1; what overrides the direction of text; lone surrogates.
_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
INTERRUPTED = 128 + signal.SIGINT
"""Exit status after Ctrl-C, as shells report it."""
_PULSE = 60  # seconds between lines of progress in a log
_SPEED_WINDOW = 120  # seconds to estimate the time left from: a step may take half a minute


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


class StepProgress(Protocol):
    """Progress callback of work in several steps."""

    def __call__(self, step: str, done: int, total: int | None, rate: str = "", /) -> None:
        """Report `done` more items of a step, its total, and its rate as text."""


@contextmanager
def progress(step: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
    """A progress bar on stderr; yields a callback for the number of items just done."""
    with steps() as report:
        report(step, 0, total)
        yield lambda done: report(step, done, total)


@contextmanager
def steps() -> Iterator[StepProgress]:
    """The progress of work in several steps, on stderr; yields the callback.

    On a terminal a bar for each step; elsewhere a line a minute, for cron would send the bars.
    """
    console = _stderr_console()
    if not console.is_terminal:
        yield Pulse()
        return
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
    with Progress(*columns, console=console, speed_estimate_period=_SPEED_WINDOW) as bar:
        tasks: dict[str, TaskID] = {}

        def report(step: str, done: int, total: int | None, rate: str = "") -> None:
            if step not in tasks:
                tasks[step] = bar.add_task(printable(step), total=total, rate=rate)
            task = bar.tasks[tasks[step]]
            if done and total is not None and task.total is not None and task.finished:
                bar.update(task.id, total=task.total + total)  # the step of the next commit
            bar.update(task.id, advance=done, rate=rate)

        try:
            yield report
        except Exception:
            # An error is the only line; after Ctrl-C the bars show how far the command came.
            bar.live.transient = True
            raise
        for task in bar.tasks:
            bar.update(task.id, total=task.completed)  # the total may have been a guess


class Pulse:
    """Progress where there is no terminal for a bar: a line a minute, and none before.

    A log then shows that a run goes on and how far it is, and stays short.
    """

    def __init__(self) -> None:
        self._last = time.monotonic()
        self._done = Counter[str]()
        self._first: dict[str, tuple[float, int]] = {}

    def __call__(self, step: str, done: int, total: int | None, rate: str = "") -> None:
        """Print the items done of a step, and the time left, unless a line came shortly before."""
        now = time.monotonic()
        self._done[step] += done
        start, first = self._first.setdefault(step, (now, done))
        if now - self._last < _PULSE:
            return
        self._last, count, of, left = now, self._done[step], "", ""
        if total is not None and count <= total:  # not the step of a later commit
            of = f" of {total}"
            if count > first:
                left = f", {(now - start) * (total - count) / (count - first) / 60:.0f} min left"
        note(f"{step}: {count}{of}{rate and f', {rate}'}{left}")


@contextmanager
def indexing(total: int | None) -> Iterator[tuple[Callable[[int, int], None], StepProgress]]:
    """The progress of an add, with its rate in tokens; and of its steps.

    Yields a callback for (documents read, tokens encoded), and the callback of `steps`.
    """
    before, tokens, seconds = time.monotonic(), 0, 0.0
    with steps() as report:
        report("Indexing", 0, total)

        def on_read(documents: int, encoded: int) -> None:
            nonlocal before, tokens, seconds
            now = time.monotonic()
            if encoded:  # unchanged documents take time and no tokens
                tokens += encoded
                seconds += now - before
            before = now
            rate = f"{tokens / seconds:,.0f} tokens/s" if seconds else ""
            report("Indexing", documents, total, rate)

        yield on_read, report


def show_rows(rows: Sequence[Mapping[str, Any]], title: str = "") -> None:
    """Print a table on standard output: one column per key, numbers right-aligned."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    # Plain text: rich would read brackets in a path as markup.
    table = Table(title=Text(printable(title)) if title else None, title_justify="left")
    for name in rows[0] if rows else ():
        numeric = isinstance(rows[0][name], int | float)
        justify: Literal["right", "left"] = "right" if numeric else "left"
        table.add_column(Text(printable(name)), justify=justify, no_wrap=True)
    for row in rows:
        table.add_row(*(Text(printable(_cell(value))) for value in row.values()))
    console = Console()
    if not console.is_terminal:
        console.width = 200  # a pipe or a file has no width to fit
    console.print(table)


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def show_json(value: Any) -> None:
    """Print one JSON document on standard output."""
    click.echo(_json(value, indent=2))


def show_result(value: Any, sentence: str, as_json: bool) -> None:
    """Print what a command did: a JSON document on standard output, or a sentence on stderr."""
    if as_json:
        show_json(value)
    else:
        note(sentence)


def show_json_line(value: Any) -> None:
    """Print one JSON document on a line of standard output."""
    click.echo(_json(value))


def show_json_items(values: Iterable[Any]) -> None:
    """Print a JSON array on standard output, item by item, so that memory stays bounded."""
    before = "["
    for value in values:
        click.echo(f"{before}\n{_json(value)}", nl=False)
        before = ","
    click.echo("[]" if before == "[" else "\n]")


def _json(value: Any, indent: int | None = None) -> str:
    text = json.dumps(value, ensure_ascii=False, indent=indent, allow_nan=False)
    # Only strings contain such characters: JSON's own escapes keep the value.
    return _UNSAFE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def counted(number: int, noun: str) -> str:
    """A number and its noun: 1 document, 2,000 documents."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def program() -> str:
    """How to call this program: by its name if the shell finds it, else by its path."""
    name = "searchengine"
    path = Path(sys.argv[0])
    if path.name != name or str(path) == shutil.which(name):
        return name
    return shlex.quote(str(path))


def note(message: str) -> None:
    """Print a line on stderr, above the progress bars if there are any."""
    # With err=True, click writes past the stream that rich puts in place of stderr.
    click.echo(printable(message), file=sys.stderr)


def say(text: str = "", *, bold: bool = False) -> None:
    """Print a line of the result on standard output."""
    text = printable(text)
    click.echo(click.style(text, bold=True) if bold else text)


def _stderr_console() -> "Console":
    from rich.console import Console

    return Console(stderr=True)


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


def stopped(stop: BaseException, message: str) -> click.exceptions.Exit:
    """The end of a command after Ctrl-C or a signal, with a message."""
    note(message)
    return click.exceptions.Exit(stop.status if isinstance(stop, Terminated) else INTERRUPTED)


@contextmanager
def orderly_exit() -> Iterator[None]:
    """Within the block, a signal that would end the process raises Terminated in the main thread.

    So a command removes unfinished files, as on Ctrl-C. An ignored signal, such as SIGHUP under
    nohup, stays ignored.
    """
    if current_thread() is not main_thread():  # only the main thread may set handlers
        yield
        return
    ends = (signal.SIGTERM, signal.SIGHUP)
    replaced = [number for number in ends if signal.getsignal(number) is signal.SIG_DFL]
    try:
        for number in replaced:
            signal.signal(number, _terminate)
        yield
    finally:
        for number in replaced:
            signal.signal(number, signal.SIG_DFL)


def _terminate(number: int, _: FrameType | None) -> NoReturn:
    raise Terminated(number)
