"""The command line: parse, call one function, print. Heavy imports wait for the command."""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import click

from indexer.errors import IndexerError
from searchengine.cli import bench, collection, mining, mteb
from searchengine.cli import evaluate as measuring
from searchengine.cli import maintenance as changing
from searchengine.cli import repair as repairing
from searchengine.cli import retrieval as retrieving
from searchengine.cli import search as searching
from searchengine.cli import train as training
from searchengine.cli import tune as tuning
from searchengine.cli.console import PrintableFormatter, note, printable
from searchengine.cli.signals import Terminated, orderly_exit
from searchengine.errors import SearchEngineError
from trainer.errors import RuntimeChoiceWarning, TrainerError


class BadInput(click.ClickException):
    """One sentence on stderr; the same exit code as click's own for wrong usage."""

    exit_code = 2


def _noted(message: Warning | str, *_: Any, **__: Any) -> None:
    """A warning as one sentence, without the line of code that it comes from."""
    note(str(message))


@contextmanager
def _printable_errors() -> Iterator[None]:
    """Escape control characters in the messages that click shows: they quote what was given."""
    try:
        yield
    except click.ClickException as error:
        text = printable(error.format_message())
        error.format_message = lambda: text  # type: ignore[method-assign]
        raise


class OneSentence(click.Group):
    """A group whose commands end in one sentence and exit code 2 when the input is at fault."""

    def main(self, *arguments: Any, **options: Any) -> Any:
        """Run as a process: log messages are escaped, and SIGTERM ends it as Ctrl-C does."""
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
        """Run the command; its named errors become messages."""
        with _printable_errors():
            return self._invoke(ctx)

    def _invoke(self, ctx: click.Context) -> Any:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("always", RuntimeChoiceWarning)
                warnings.showwarning = _noted
                return super().invoke(ctx)
        except (SearchEngineError, IndexerError, TrainerError, ImportError) as error:
            raise BadInput(str(error)) from error
        except OSError as error:
            if error.filename is None:  # not about a file: a closed pipe, say, which click handles
                raise
            raise BadInput(f"{error.filename}: {error.strerror}") from error


@click.group(cls=OneSentence, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="searchengine")
def cli() -> None:
    """Train, index, query and measure a coarse-to-fine semantic search engine."""


for command in (retrieving.retrieval, retrieving.run_files, mteb.mteb):
    measuring.evaluate.add_command(command)
for command in (
    mining.mine,
    training.train,
    measuring.evaluate,
    collection.index,
    searching.search,
    searching.similar,
    changing.delete,
    changing.update,
    changing.optimize,
    tuning.tune,
    bench.bench,
    collection.info,
    collection.verify,
    repairing.repair,
    changing.backup,
    changing.export,
    collection.demo,
):
    cli.add_command(command)
