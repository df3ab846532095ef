"""Output of the command line: tables, progress, JSON, signals. Only results go to stdout.

Documents, file names and questions may contain control characters, which would move the cursor, set
the window's title or reverse the text. Every function here escapes them, and every command prints
only through this module.

Functions import rich when they need it: the import takes longer than a search.
"""

import json
import logging
import math
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
    from rich.progress import Progress, TaskID

# C0 but tab and newline, DEL and C1; what overrides the direction of text; lone surrogates.
_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
INTERRUPTED = 128 + signal.SIGINT
"""Exit status after Ctrl-C, as shells report it."""
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
    """A progress bar on stderr for every step that the block reports; yields the callback."""
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
    hidden = not console.is_terminal  # cron would send the bars every night
    with Progress(
        *columns, console=console, speed_estimate_period=_SPEED_WINDOW, disable=hidden
    ) as bar:
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
            erase(bar)
            raise
        for task in bar.tasks:
            bar.update(task.id, total=task.completed)  # the total may have been a guess


def erase(bar: "Progress") -> None:
    """Stop progress bars without a trace, so that an error is the only line.

    Not for Ctrl-C and signals: the bars show how far the command came.
    """
    bar.live.transient = True
    bar.live.stop()
    bar.disable = True  # Progress.stop prints an empty line to a file


class Pulse:
    """Progress in lines, where there is no terminal for a bar: the first, then one a minute.

    A log then shows that a run goes on and how far it is, and stays short.
    """

    def __init__(self, seconds: float = 60, last: float = -math.inf) -> None:
        """`last`: when the last line came, by the clock `time.monotonic`."""
        self._seconds = seconds
        self._first: tuple[str, float, int] | None = None
        self._last = last

    def __call__(
        self, step: str, done: int, total: int | None, more: str | Callable[[], str] = ""
    ) -> None:
        """Print the items done of a step, and the time left, unless a line came shortly before."""
        now = time.monotonic()
        if self._first is None or self._first[0] != step:
            self._first = step, now, done
        _, start, before = self._first
        if now - self._last < self._seconds:
            return
        self._last = now
        left = ""
        if done > before and total is not None:
            left = f", {(now - start) * (total - done) / (done - before) / 60:.0f} min left"
        more = more if isinstance(more, str) else more()
        note(f"{step}: {done}{'' if total is None else f' of {total}'}{more}{left}")


@contextmanager
def indexing(
    total: int | None, stored: Callable[[], int]
) -> Iterator[tuple[Callable[[int, int], None], StepProgress]]:
    """The progress of an add: documents, tokens per second and time left; and of its steps.

    Yields a callback for (documents read, tokens encoded), and the callback of `steps`. Without a
    terminal a line a minute says the same, and how many passages are `stored`; of steps too.
    """
    before, tokens, seconds, read = time.monotonic(), 0, 0.0, 0
    pulse, step_pulse, done = Pulse(last=before), Pulse(last=before), Counter[str]()
    is_log = not stderr_console().is_terminal
    with steps() as report:
        report("Indexing", 0, total)

        def on_read(documents: int, encoded: int) -> None:
            nonlocal before, tokens, seconds, read
            now = time.monotonic()
            if encoded:  # unchanged documents take time and no tokens
                tokens += encoded
                seconds += now - before
            before = now
            rate = f"{tokens / seconds:,.0f} tokens/s" if seconds else ""
            report("Indexing", documents, total, rate)
            read += documents
            if is_log:
                pulse(
                    "Indexing",
                    read,
                    total,
                    lambda: f" documents, {stored()} passages stored, {rate}",
                )

        def on_step(step: str, count: int, of: int | None, rate: str = "") -> None:
            report(step, count, of, rate)
            done[step] += count
            if is_log:
                step_pulse(step, done[step], None)

        yield on_read, on_step


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


def stderr_console() -> "Console":
    """A rich console on stderr; print texts to it by `print_line`."""
    from rich.console import Console

    return Console(stderr=True)


def print_line(console: "Console", text: str) -> None:
    """Print a line above the progress bars of a rich console; brackets are not markup."""
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
