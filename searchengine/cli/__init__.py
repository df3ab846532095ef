"""The command line: parse, call one function, print. Heavy imports wait for the command."""

import warnings
from typing import Any

import click

from indexer.errors import IndexerError
from searchengine.cli import (
    bench,
    changing,
    collection,
    measuring,
    mining,
    mteb,
    repairing,
    retrieving,
    searching,
    training,
    tuning,
)
from searchengine.errors import SearchEngineError
from trainer.errors import EngineWarning, TrainerError


class BadInput(click.ClickException):
    """One sentence on stderr; the same exit code as click's own for wrong usage."""

    exit_code = 2


def _noted(message: Warning | str, *_: Any, **__: Any) -> None:
    """A warning as one sentence, without the line of code that it comes from."""
    click.echo(str(message), err=True)


class OneSentence(click.Group):
    """A group whose commands end in one sentence and exit code 2 when the input is at fault."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; its named errors become messages."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("always", EngineWarning)
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
