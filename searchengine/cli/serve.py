"""searchengine serve and mcp: answer searches of other programs."""

import re
import signal
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click

from searchengine.cli import options as opt
from searchengine.cli.console import say
from searchengine.cli.options import command
from searchengine.errors import QueryError
from searchengine.trainer.errors import require

_NAME = re.compile(r"[\w][\w.-]{0,63}", re.ASCII)


@command(
    click.argument("collections", metavar="COLLECTION…", nargs=-1, required=True, type=opt.PATH),
    click.option("--host", default="127.0.0.1", help="Address to listen on."),
    click.option(
        "--port", type=click.IntRange(0, 65535), default=8080, help="Port; 0: a free one."
    ),
    click.option("--root-path", default="", help="Prefix of all addresses, such as /search."),
    click.option("--trust-proxy", multiple=True, help="Address of a proxy to trust; repeatable."),
    opt.file("--tokens", "File of tokens, a line NAME SCOPE TOKEN each."),
    opt.encoder("Encoder of the collection, if only one is served [default: its own]."),
    click.option("--workers", type=click.IntRange(1, 64), default=1, help="Number of processes."),
    click.option(
        "--timeout", type=click.FloatRange(0.1, 3600), default=30, help="Seconds of a request."
    ),
    example="serve papers.index notes=notes.index --tokens tokens.txt",
    collection=False,
    json=False,
)
def serve(collections: tuple[str, ...], tokens: Path | None, **options: Any) -> None:
    """Answer searches over HTTP.

    COLLECTION is a folder, or NAME=FOLDER. The URL of one on PostgreSQL is named after its #;
    several servers may share it. Without --tokens, everyone on this machine may search and nobody
    may write; a token's scope is read or write. A trusted proxy is an address or network whose
    X-Forwarded-For and -Proto are believed; it may or may not remove --root-path from addresses.
    """
    require("serve", "serve", "fastapi", "httptools", "prometheus_client", "uvicorn", "uvloop")
    from searchengine.server import ServerSettings
    from searchengine.server.app import serve as run

    named = named_collections(collections)
    path = None if tokens is None else tokens.absolute()
    settings = ServerSettings(named, tokens=path, **options)
    run(settings, lambda url: say(f"Serving {', '.join(named)} at {url}"))


@command(opt.ENCODER, example="mcp notes.index", json=False)
def mcp(collection: str, **options: Any) -> None:
    """Serve a collection to an assistant as tools (MCP).

    The tools are search, get, similar and facets, over stdin and stdout, by the Model Context
    Protocol. They only read, and show what other processes commit.
    """
    require("mcp", "mcp", "mcp")
    from searchengine.server.mcp_server import serve as serve_tools

    for number in (signal.SIGINT, signal.SIGTERM):
        # A handler in Python would wait for the thread that reads stdin; nothing is being written.
        signal.signal(number, signal.SIG_DFL)
    serve_tools(collection, **options)


def named_collections(arguments: Iterable[str]) -> dict[str, Path | str]:
    """Name → folder or URL, from folders, URLs or NAME=FOLDER. Raises QueryError, CollectionError.

    A folder's name is that of the collection, without `.index`; a URL's follows its #.
    """
    from searchengine.backends.opening import is_url, name_of
    from searchengine.backends.postgresql import split_url

    named: dict[str, Path | str] = {}
    for argument in arguments:
        name, equals, path = argument.partition("=")
        if not equals or not _NAME.fullmatch(name):
            path, name = argument, Path(argument).absolute().name.removesuffix(".index")
            name = split_url(path)[1] if is_url(path) else name
        if not _NAME.fullmatch(name) or name in named:
            raise QueryError(
                "names of collections must differ, and take letters, digits, '.', '-' and '_', "
                f"got {name!r}; give it another: NAME={name_of(path)}"
            )
        named[name] = path if is_url(path) else Path(path)
    return named


COMMANDS = (serve, mcp)
