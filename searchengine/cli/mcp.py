"""searchengine mcp."""

import signal
from pathlib import Path
from typing import Any

import click

from searchengine.cli.options import COLLECTION, ENCODER, QUERY_ENCODER, cross_encodes, runs
from searchengine.trainer.errors import install_line


@click.command()
@COLLECTION
@ENCODER
@QUERY_ENCODER
@cross_encodes("the tool search")
@runs
def mcp(collection: Path | str, **options: Any) -> None:
    """Serve a collection to an assistant as tools (MCP).

    The tools are search, get, similar and facets, over stdin and stdout, by
    the Model Context Protocol. They only read, and show what other processes
    commit.

    \b
    Example:
        searchengine mcp notes.index
    """
    try:
        from searchengine.integrations.mcp_server import serve
    except ImportError as error:
        raise ImportError(f"mcp needs {error.name}: {install_line('mcp')}") from error

    for number in (signal.SIGINT, signal.SIGTERM):
        # A handler in Python would wait for the thread that reads stdin; nothing is being written.
        signal.signal(number, signal.SIG_DFL)
    serve(collection, **options)
