"""The command line: parse, call one function, print. Commands import heavy packages when run."""

import errno
import itertools
import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import click

from searchengine.cli import demo, documents, index, learn, search, serve, train, tune, upkeep
from searchengine.cli.console import (
    INTERRUPTED,
    PrintableFormatter,
    Terminated,
    note,
    orderly_exit,
    printable,
)
from searchengine.cli.measuring import bench, evaluate, judged
from searchengine.errors import FieldWarning, LanguageWarning, SearchEngineError


class BadInput(click.ClickException):
    """One sentence on stderr; the same exit code as click's own for wrong usage."""

    exit_code = 2


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    """Print a warning as one sentence, without its line of code."""
    note(str(message))


class _Notes(logging.Handler):
    """Prints log messages as notes."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print one."""
        note(self.format(record))


@contextmanager
def _trainer_noted() -> Iterator[None]:
    """What the trainer is doing, as notes: compiling an encoder takes seconds, once."""
    logger, notes = logging.getLogger("searchengine.trainer"), _Notes()
    level = logger.level
    logger.setLevel(logging.INFO)
    logger.addHandler(notes)
    try:
        yield
    finally:
        logger.removeHandler(notes)
        logger.setLevel(level)


@contextmanager
def _printable_errors() -> Iterator[None]:
    """Escape control characters in the messages that click shows: they quote user input."""
    try:
        yield
    except click.ClickException as error:
        text = printable(error.format_message())
        error.format_message = lambda: text  # type: ignore[method-assign]
        raise


def _reason(error: OSError) -> str:
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return "too many files are open: raise the limit, for example with: ulimit -n 1024"
    reason = error.strerror or str(error)
    if error.errno == errno.ENOSPC:
        reason += "; free some space, or write to another disk"
    if error.filename is not None:
        return f"{error.filename}: {reason}"
    try:
        os.getcwd()
    except FileNotFoundError:
        return "the current folder was removed; change to one that is there"
    return reason


class OneSentence(click.Group):
    """A group whose commands report bad input in one sentence, with exit code 2."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands in groups."""
        for title, commands in SECTIONS.items():
            rows = [(str(command.name), command.get_short_help_str(200)) for command in commands]
            with formatter.section(title):
                formatter.write_dl(rows, col_max=20)

    def main(self, *arguments: Any, **options: Any) -> Any:
        """Run as a process: escape log messages, and let SIGTERM end it as Ctrl-C does."""
        if logging.lastResort is not None:
            logging.lastResort.setFormatter(PrintableFormatter())
        with orderly_exit():
            try:
                return super().main(*arguments, **options)
            except Terminated as end:
                with suppress(OSError):  # the terminal may be gone
                    note(f"Ended by {end.signal_name}")
                raise

    def make_context(self, *arguments: Any, **options: Any) -> click.Context:
        """Parse the group's own options."""
        with _printable_errors():
            return super().make_context(*arguments, **options)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; turn its errors into messages."""
        with _printable_errors():
            return self._invoke(ctx)

    def _invoke(self, ctx: click.Context) -> Any:
        try:
            with _trainer_noted(), warnings.catch_warnings():
                warnings.simplefilter("always", LanguageWarning)
                warnings.simplefilter("always", FieldWarning)
                warnings.showwarning = _show_warning
                return super().invoke(ctx)
        except (SearchEngineError, ImportError) as error:
            raise BadInput(str(error)) from error
        except KeyboardInterrupt:
            with suppress(OSError):  # the terminal may be gone
                note("Interrupted")
            raise click.exceptions.Exit(INTERRUPTED) from None
        except OSError as error:
            if error.errno == errno.EPIPE:  # which click handles
                raise
            raise BadInput(_reason(error)) from error


@click.group(
    cls=OneSentence, context_settings={"help_option_names": ["-h", "--help"], "show_default": True}
)
@click.version_option(package_name="searchengine")
def cli() -> None:
    """Train, index, query and measure a coarse-to-fine semantic search engine."""


evaluate.evaluate.add_command(judged.retrieval)
SECTIONS: dict[str, tuple[click.Command, ...]] = {
    "Index and search": (
        demo.demo,
        index.index,
        search.search,
        search.explain,
        search.similar,
        documents.get,
        documents.list_documents,
        documents.duplicates,
        documents.update,
        documents.delete,
        serve.serve,
        serve.mcp,
    ),
    "Measure and tune": (evaluate.evaluate, bench.bench, tune.tune, learn.learn),
    "Train": (
        train.train,
        train.mine,
        upkeep.reindex,
    ),
    "Keep": (
        upkeep.info,
        upkeep.verify,
        upkeep.repair,
        upkeep.optimize,
        upkeep.backup,
        upkeep.copy,
        upkeep.export,
    ),
}
"""The commands, in the groups of the help."""

for command in itertools.chain.from_iterable(SECTIONS.values()):
    cli.add_command(command)
