"""Output of the command line: tables, progress, JSON, signals. Only results go to stdout.

Documents, file names and questions may contain control characters, which would move the cursor, set
the window's title or reverse the text. Every function here escapes them, and every command prints
only through this module.

Functions import rich when they need it: the import takes longer than a search.
"""

import json
import logging
import re
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import current_thread, main_thread
from typing import Any, Literal, NoReturn

import click

# C0 but tab and newline, DEL and C1; what overrides the direction of text; lone surrogates.
_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
INTERRUPTED = 128 + signal.SIGINT
"""Exit status after Ctrl-C, as shells report it."""
_PULSE = 60  # seconds between lines of progress in a log
_SPEED_WINDOW = 120  # seconds to estimate the time left from: a step may take half a minute


def printable(text: str) -> str:
    r"""The text with control characters escaped, as \x1b or \u202e; tabs and newlines stay."""
    return _UNSAFE.sub(lambda match: ascii(match[0])[1:-1], text)


class Notes(logging.Handler):
    """Prints log messages as notes."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print one, and its traceback if there is one."""
        note(self.format(record))


Report = Callable[..., None]
"""Progress callback: a step, its items just done, its items in all or None, and a rate as text."""


@contextmanager
def progress(step: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
    """The progress of one step, on stderr; yields a callback for the number of items just done."""
    with steps() as report:
        report(step, 0, total)
        yield lambda done: report(step, done, total)


@contextmanager
def steps() -> Iterator[Report]:
    """The progress of work in several steps, on stderr.

    On a terminal a bar for each step; elsewhere a line a minute, for cron would send the bars.
    """
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import MofNCompleteColumn, Progress

    console = Console(stderr=True)
    columns = *Progress.get_default_columns(), MofNCompleteColumn()
    bar = Progress(*columns, console=console, speed_estimate_period=_SPEED_WINDOW)
    tasks: dict[str, Any] = {}
    noted = time.monotonic()

    def report(step: str, done: int, total: int | None, rate: str = "") -> None:
        nonlocal noted
        if step not in tasks:
            tasks[step] = bar.add_task("", total=total)
        task = bar.tasks[tasks[step]]
        if done and total is not None and task.total is not None and task.finished:
            bar.update(task.id, total=task.total + total)  # the step of the next commit
        text = printable(f"{step}  {rate}".rstrip())
        bar.update(task.id, advance=done, description=escape(text), text=text)
        running = [task for task in bar.tasks if not task.finished]
        if running and not console.is_terminal and time.monotonic() - noted >= _PULSE:
            noted = time.monotonic()
            note("; ".join(map(_progress_line, running)))

    if not console.is_terminal:
        yield report
        noted = float("inf")  # the passes of --watch go on reporting, and each prints what it did
        return
    with bar:
        try:
            yield report
        except Exception:
            # An error is the only line; after Ctrl-C the bars show how far the command came.
            bar.live.transient = True
            raise
        for task in bar.tasks:
            bar.update(task.id, total=task.completed)  # the total may have been a guess


def _progress_line(task: Any) -> str:
    """A step in a log: its items, in all, a second, and the minutes left."""
    of = "" if task.total is None else f" of {task.total:,}"
    speed = f", {task.speed:,.1f}/s" if task.speed else ""
    left = f", {task.time_remaining / 60:.0f} min left" if task.time_remaining else ""
    return f"{task.fields['text']}: {task.completed:,}{of}{speed}{left}"


def show_rows(rows: Sequence[Mapping[str, Any]], title: str = "") -> None:
    """Print a table on standard output: one column per key, numbers right-aligned."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    # Plain text: rich would read brackets in a path as markup.
    table = Table(title=Text(printable(title)) if title else None, title_justify="left")
    for name, value in rows[0].items() if rows else ():
        justify: Literal["right", "left"] = "right" if isinstance(value, int | float) else "left"
        table.add_column(Text(printable(name)), justify=justify, no_wrap=True)
    for row in rows:
        table.add_row(*(Text(printable(_cell(value))) for value in row.values()))
    console = Console()
    if not console.is_terminal:
        console.width = 200  # a pipe or a file has no width to fit
    console.print(table)


def _cell(value: Any) -> str:
    if isinstance(value, tuple):  # an interval
        return "–".join(f"{end:.3f}" for end in value)
    if isinstance(value, float):
        return f"{value:.4f}" if abs(value) < 10 else f"{value:.4g}"
    return "–" if value is None else str(value)


def show_json(value: Any, indent: int | None = 2) -> None:
    """Print one JSON document on standard output; without indent, on a line."""
    click.echo(_json(value, indent))


def show_result(value: Any, sentence: str, as_json: bool) -> None:
    """Print what a command did: a JSON document on standard output, or a sentence on stderr."""
    show_json(value) if as_json else note(sentence)


def show_json_items(values: Iterable[Any]) -> None:
    """Print a JSON array on standard output, item by item, so that memory stays bounded."""
    before = "["
    for value in values:
        click.echo(f"{before}\n{_json(value)}", nl=False)
        before = ","
    click.echo("[]" if before == "[" else "\n]")


def _json(value: Any, indent: int | None = None) -> str:
    is_ascii = "utf" not in (sys.stdout.encoding or "").lower()  # cp1252 has no Korean
    text = json.dumps(value, ensure_ascii=is_ascii, indent=indent, allow_nan=False)
    # Only strings contain such characters: JSON's own escapes keep the value.
    return _UNSAFE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def counted(number: int, noun: str) -> str:
    """A number and its noun: 1 document, 2,000 documents."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def note(message: str) -> None:
    """Print a line on stderr, above the progress bars if there are any."""
    # With err=True, click writes past the stream that rich puts in place of stderr.
    click.echo(printable(message), file=sys.stderr)


def say(text: str = "", *, bold: bool = False) -> None:
    """Print a line of the result on standard output."""
    text = printable(text)
    click.echo(click.style(text, bold=True) if bold else text)


class Terminated(SystemExit):
    """A signal ended the command. Its code is 128 + the signal's number, as shells report it."""


@contextmanager
def orderly_exit() -> Iterator[None]:
    """Within the block, a signal that would end the process raises Terminated in the main thread.

    So a command removes unfinished files, as on Ctrl-C. An ignored signal, such as SIGHUP under
    nohup, stays ignored.
    """

    def end(number: int, _: object) -> NoReturn:
        raise Terminated(128 + number)

    replaced: list[signal.Signals] = []
    if current_thread() is main_thread():  # only the main thread may set handlers
        ends = (signal.SIGTERM, signal.SIGHUP)
        replaced = [number for number in ends if signal.getsignal(number) is signal.SIG_DFL]
    try:
        for number in replaced:
            signal.signal(number, end)
        yield
    finally:
        for number in replaced:
            signal.signal(number, signal.SIG_DFL)
