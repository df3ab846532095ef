"""searchengine serve and mcp: answer searches of other programs."""

import re
import signal
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import click

from searchengine.cli.console import say
from searchengine.cli.options import (
    COLLECTION,
    ENCODER,
    PATH,
    runs,
)
from searchengine.errors import QueryError
from searchengine.trainer.errors import install_line

_NAME = re.compile(r"[\w][\w.-]{0,63}", re.ASCII)
_SUFFIX = ".index"


@click.command()
@click.argument(
    "collections",
    metavar="COLLECTION…",
    nargs=-1,
    required=True,
    type=PATH,
)
@click.option("--host", default="127.0.0.1", help="Address to listen on.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=8080, help="Port; 0 takes a free one."
)
@click.option(
    "--root-path",
    default="",
    metavar="PATH",
    help="Prefix of all addresses behind a proxy: /search; the proxy may take it off, or not.",
)
@click.option(
    "--trust-proxy",
    multiple=True,
    metavar="ADDRESS",
    help="Address or network of a proxy whose X-Forwarded-For and -Proto are believed; repeatable.",
)
@click.option(
    "--tokens",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="File of tokens, a line NAME SCOPE TOKEN each; the scope is read or write.",
)
@click.option(
    "--encoder",
    "encoders",
    multiple=True,
    metavar="[NAME=]PATH",
    help="Encoder of a collection, if it has moved or the vectors came with the documents; "
    "repeatable.",
)
@click.option("--workers", type=click.IntRange(1, 64), default=1, help="Number of processes.")
@click.option(
    "--timeout",
    type=click.FloatRange(0.1, 3600),
    default=30,
    metavar="SECONDS",
    help="Seconds a request may take.",
)
@click.option(
    "--allow-origin",
    "origins",
    multiple=True,
    metavar="URL",
    help="Web origin whose pages may call the server (CORS); repeatable.",
)
@runs
def serve(
    collections: tuple[str, ...],
    tokens: Path | None,
    encoders: tuple[str, ...],
    runtime: Any,
    **options: Any,
) -> None:
    """Answer searches over HTTP.

    COLLECTION is a folder, or NAME=FOLDER; or the URL of one on PostgreSQL, which several servers
    may share, and which is named after its #. Without --tokens, everyone on this machine may search
    and nobody may write.

    \b
    Example:
        searchengine serve papers.index notes=notes.index --tokens tokens.txt
    """
    try:
        from searchengine.server.app import serve as run
    except ImportError as error:
        raise ImportError(f"serve needs {error.name}: {install_line('serve')}") from error
    from searchengine.server.server_settings import ServerSettings

    named = named_collections(collections)
    settings = ServerSettings(
        collections=named,
        tokens=None if tokens is None else tokens.absolute(),
        encoders=of_collections("--encoder", encoders, named),
        runtime=runtime,
        **options,
    )
    run(settings, lambda url: say(f"Serving {', '.join(named)} at {url}"))


@click.command()
@COLLECTION
@ENCODER
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
        from searchengine.server.mcp_server import serve as serve_tools
    except ImportError as error:
        raise ImportError(f"mcp needs {error.name}: {install_line('mcp')}") from error

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
        name, equals, rest = argument.partition("=")
        path: Path | str
        if equals and _NAME.fullmatch(name) and is_url(rest):
            path = rest
        elif is_url(argument):
            path, name = argument, split_url(argument)[1]
            argument = name_of(argument)
        elif equals and _NAME.fullmatch(name) and not Path(argument).exists():
            path = Path(rest)
        else:
            path = Path(argument)
            name = path.absolute().name.removesuffix(_SUFFIX)
        if not _NAME.fullmatch(name):
            raise QueryError(
                f"the name of a collection takes letters, digits, '.', '-' and '_', got {name!r}; "
                f"give it one: NAME={argument}"
            )
        if name in named:
            raise QueryError(f"two collections are named {name!r}; name one: NAME={argument}")
        named[name] = path
    return named


def of_collections(
    option: str, arguments: Iterable[str], collections: Mapping[str, Path | str]
) -> dict[str, str]:
    """Collection → value, from NAME=VALUE; the only collection needs no name.

    `option`: for the message. Raises QueryError.
    """
    values: dict[str, str] = {}
    names = ", ".join(collections)
    for argument in arguments:
        name, equals, value = argument.partition("=")
        if not equals or Path(argument).exists():
            if len(collections) > 1:
                raise QueryError(
                    f"{option} {argument}: name its collection, one of {names}: "
                    f"{option} NAME={argument}"
                )
            name, value = next(iter(collections)), argument
        if name not in collections:
            raise QueryError(f"{option} {argument}: the collections are {names}, got {name!r}")
        values[name] = value
    return values
