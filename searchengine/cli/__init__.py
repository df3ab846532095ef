"""The command line: parse, call one function, print. Commands import heavy packages when run."""

import errno
import logging
import signal
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from io import TextIOWrapper
from typing import Any

import click

from searchengine.cli import change, demo, index, keep, measure, search, serve, train
from searchengine.cli.console import INTERRUPTED, Notes, Terminated, note, orderly_exit, printable
from searchengine.errors import FieldWarning, LanguageWarning, SearchEngineError

SECTIONS: dict[str, Sequence[click.Command]] = {
    "Index and search": (demo.demo, index.index, *search.COMMANDS),
    "Change": change.COMMANDS,
    "Serve": serve.COMMANDS,
    "Measure and tune": measure.COMMANDS,
    "Train": train.COMMANDS,
    "Keep": keep.COMMANDS,
}
"""The commands, in the groups of the help."""


_NOTES = Notes()


class BadInput(click.ClickException):
    """One sentence on stderr; the same exit code as click's own for wrong usage."""

    exit_code = 2


@contextmanager
def _one_sentence() -> Iterator[None]:
    """Turn errors into messages, without the control characters of the input that they quote."""
    try:
        try:
            yield
        except (SearchEngineError, ImportError) as error:
            raise BadInput(str(error)) from error
        except OSError as error:
            if error.errno == errno.EPIPE:  # which click handles
                raise
            raise BadInput(_reason(error)) from error
    except click.ClickException as error:
        text = printable(error.format_message())
        error.format_message = lambda: text  # type: ignore[method-assign]
        raise


def _reason(error: OSError) -> str:
    """An error of the system in a sentence, with the way out."""
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return "too many files are open: raise the limit, for example with: ulimit -n 1024"
    space = "; free some space, or write to another disk" if error.errno == errno.ENOSPC else ""
    place = "" if error.filename is None else f"{error.filename}: "
    return f"{place}{error.strerror or error}{space}"


class OneSentence(click.Group):
    """A group whose commands report bad input in one sentence, with exit code 2."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands in groups."""
        for title, commands in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(str(c.name), c.get_short_help_str(200)) for c in commands])

    def main(self, *arguments: Any, **options: Any) -> Any:
        """Run as a process: escape what its streams cannot encode, let SIGTERM end it as Ctrl-C."""
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")
        logging.lastResort = _NOTES
        logger = logging.getLogger("searchengine.trainer")  # compiling takes seconds, once
        logger.setLevel(logging.INFO)
        logger.addHandler(_NOTES)
        with orderly_exit():
            try:
                return super().main(*arguments, **options)
            except Terminated as end:
                with suppress(OSError):  # the terminal may be gone
                    note(f"Ended by {signal.Signals(int(str(end.code)) - 128).name}")
                raise

    def make_context(self, *arguments: Any, **options: Any) -> click.Context:
        """Parse the group's own options."""
        with _one_sentence():
            return super().make_context(*arguments, **options)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; print warnings as sentences."""
        try:
            with _one_sentence(), warnings.catch_warnings():
                for kind in (LanguageWarning, FieldWarning):
                    warnings.simplefilter("always", kind)
                warnings.showwarning = lambda message, *_, **__: note(str(message))
                return super().invoke(ctx)
        except KeyboardInterrupt:
            with suppress(OSError):  # the terminal may be gone
                note("Interrupted")
            raise click.exceptions.Exit(INTERRUPTED) from None


@click.group(
    cls=OneSentence, context_settings={"help_option_names": ["-h", "--help"], "show_default": True}
)
@click.version_option(package_name="searchengine")
def cli() -> None:
    """Train, index, query and measure a coarse-to-fine semantic search engine."""


for command in (command for commands in SECTIONS.values() for command in commands):
    cli.add_command(command)
