"""The ASGI application: routes behind the guard, what starts and stops with it."""

import asyncio
import faulthandler
import gc
import logging
import multiprocessing
import os
import signal
import socket
import warnings
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from importlib.metadata import version
from typing import Any

from fastapi import Depends, FastAPI
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.gzip import GZipMiddleware
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from searchengine.errors import FieldWarning
from searchengine.server import (
    document_routes,
    embedding_routes,
    page_routes,
    search_routes,
    status_routes,
)
from searchengine.server.auth import Access
from searchengine.server.guard import Guard
from searchengine.server.metrics import Metrics
from searchengine.server.refusals import add_handlers, known_parameters
from searchengine.server.served import Served, State
from searchengine.server.server_settings import ServerSettings

REFRESH = 0.5
"""Seconds between looks for commits of other processes, and for another file of tokens."""
CLOSING = 4.0
"""Seconds that threads have to end, after the requests; then the process ends whatever they do."""
_log = logging.getLogger(__name__)


def create(settings: ServerSettings) -> Any:
    """The application."""
    warnings.simplefilter("ignore", FieldWarning)  # responses have them as `notes`
    here = State(settings, Metrics())
    access = Access(settings.tokens, settings.tokens_file, settings.host)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        """Open the collections, and close them; their encoders are loaded meanwhile."""
        here.collections = {
            name: Served(name, path, settings) for name, path in settings.collections.items()
        }
        tasks = [asyncio.create_task(work) for work in (_warm(here), _follow(here, access))]
        _tell_systemd("READY=1")
        yield
        with suppress(RuntimeError, ValueError, OSError):  # there is no stderr
            # By a thread that needs no lock of the interpreter; it writes where each thread was.
            faulthandler.dump_traceback_later(CLOSING, exit=True)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for served in here.collections.values():
            await served.close()

    app = FastAPI(
        title="searchengine",
        version=version("searchengine"),
        description="Search, documents and embeddings of searchengine collections.",
        lifespan=lifespan,
        docs_url=None,  # its page loads scripts from another host; ours has them
        redoc_url=None,
        redirect_slashes=False,  # a redirect would name the host that the request names
    )
    app.state.here = here
    for routes in (search_routes, embedding_routes, document_routes, status_routes, page_routes):
        app.include_router(routes.router, dependencies=[Depends(known_parameters)])
    page_routes.mount_files(app)
    add_handlers(app)
    # An attack by the length of what is compressed (BREACH) needs a page of another origin that
    # makes a browser send the secret of its user; ours is a token in a header, which none can.
    inner: Any = GZipMiddleware(app, 1000, 1)
    if settings.trust_proxy:
        inner = ProxyHeadersMiddleware(inner, list(settings.trust_proxy))
    guard = Guard(inner, settings, here.metrics, access)
    if not settings.origins:
        return guard
    return CORSMiddleware(
        guard,
        settings.origins,
        allow_methods=["*"],
        allow_headers=["*"],
        expose_headers=["x-request-id", "retry-after"],
    )


async def _warm(here: State) -> None:
    await asyncio.gather(*(served.warm() for served in here.collections.values()))
    gc.collect()
    # Full passes of the garbage collector block the loop: not over what stays, and after 700,000
    # new objects, not 70,000, since a search may make a million.
    gc.freeze()
    gc.set_threshold(700, 10, 100)


async def _follow(here: State, access: Access) -> None:
    """Show what other processes commit. A worker stops, too, if its parent has died."""
    started_by = multiprocessing.parent_process()
    while True:
        await asyncio.sleep(REFRESH)
        access.follow()
        for served in here.collections.values():
            try:
                await served.refresh()
            except Exception:  # the next look may succeed
                _log.exception("%s was not refreshed", served.name)
        if started_by is not None and os.getppid() != started_by.pid:
            signal.raise_signal(signal.SIGTERM)


def _tell_systemd(state: str) -> None:
    """Send a state to the service manager that has started this process (sd_notify), if one has."""
    if address := os.environ.get("NOTIFY_SOCKET", ""):
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            # A name that begins with @ is one of the kernel, without a file.
            sender.sendto(state.encode(), address.replace("@", "\0", 1))
