"""The ASGI application, and the processes of uvicorn that run it."""

import asyncio
import faulthandler
import gc
import multiprocessing
import os
import resource
import signal
import socket
import tempfile
import warnings
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from importlib.metadata import version
from multiprocessing import resource_tracker
from typing import Any

import uvicorn
from fastapi import Depends, FastAPI
from fastapi.security import HTTPBearer
from uvicorn.supervisors import Multiprocess

from searchengine.engine import SearchEngine
from searchengine.errors import CollectionError, FieldWarning, QueryError
from searchengine.server import (
    ServerSettings,
    document_routes,
    embedding_routes,
    page_routes,
    search_routes,
    status_routes,
)
from searchengine.server.auth import Access, read_tokens
from searchengine.server.guard import Guard
from searchengine.server.responses import HANDLERS, known_parameters
from searchengine.server.served import REFRESH, Served

GRACE, CLOSING = 30, 4.0
"""Seconds that requests under way have to end, and then threads; the process ends after that."""
_BACKLOG = 4096  # connections that wait to be accepted: what Linux allows


def create(settings: ServerSettings) -> Any:
    """The application."""
    warnings.simplefilter("ignore", FieldWarning)  # responses have them as `notes`
    access = Access(settings.tokens, settings.host)
    collected = settings.collections.items()
    collections = {name: Served(name, path, settings) for name, path in collected}

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        """Open the collections, and close them; their encoders are loaded meanwhile."""
        await asyncio.gather(*(served.show() for served in collections.values()))
        works = (_follow(access), *(served.follow() for served in collections.values()))
        tasks = [asyncio.create_task(work) for work in works]
        yield
        with suppress(RuntimeError, ValueError, OSError):  # there is no stderr
            # By a thread that needs no lock of the interpreter; it writes where each thread was.
            faulthandler.dump_traceback_later(CLOSING, exit=True)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for served in collections.values():
            await served.close()

    app = FastAPI(
        title="searchengine",
        version=version("searchengine"),
        description="Search, documents and embeddings of searchengine collections.",
        lifespan=lifespan,
        docs_url=None,  # its page loads scripts from another host; ours has them
        redoc_url=None,
        redirect_slashes=False,  # a redirect would name the host that the request names
        exception_handlers=HANDLERS,
        dependencies=[Depends(known_parameters)],
        responses={
            "4XX": {"description": "The request is refused; `error.message` says why."},
            "5XX": {"description": "Not ready, busy, not in time, or an error."},
        },
    )
    app.state.collections = collections
    app.include_router(status_routes.health)
    # The guard has checked the token; this says in OpenAPI that an operation takes one.
    token = Depends(HTTPBearer(auto_error=False, scheme_name="token"))
    for routes in (search_routes, embedding_routes, document_routes, status_routes, page_routes):
        app.include_router(routes.router, dependencies=[token])
    page_routes.mount_files(app)
    return Guard(app, settings, access)


async def _follow(access: Access) -> None:
    """Follow the file of tokens. A worker stops, too, if its parent has died."""
    # Full passes of the garbage collector block the loop: not over what stays, and after 700,000
    # new objects, not 70,000, since a search may make a million.
    gc.set_threshold(700, 10, 100)
    started_by = multiprocessing.parent_process()
    while True:
        await asyncio.sleep(REFRESH)
        access.follow()
        if started_by is not None and os.getppid() != started_by.pid:
            signal.raise_signal(signal.SIGTERM)


def serve(settings: ServerSettings, on_address: Callable[[str], None]) -> None:
    """Answer requests until SIGTERM or SIGINT; `on_address` is called with the URL.

    Raises CollectionError if no collection can be opened, and QueryError if the tokens cannot be
    read or the address cannot be used. Of several, the others are served, and say which is not.
    """
    if settings.tokens is not None:
        read_tokens(settings.tokens)
    failures: list[CollectionError] = []
    for path in settings.collections.values():
        try:
            SearchEngine.open(path).close()
        except CollectionError as error:
            failures.append(error)
    if len(failures) == len(settings.collections):
        raise failures[0]
    with suppress(OSError, ValueError):  # open files: what this user may have
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    config = uvicorn.Config(
        partial(create, settings),
        factory=True,
        http="httptools",
        workers=settings.workers,
        access_log=False,
        log_level="warning",
        log_config=None,
        backlog=_BACKLOG,
        server_header=False,
        timeout_graceful_shutdown=GRACE,
        timeout_worker_healthcheck=GRACE,
        forwarded_allow_ips=list(settings.trust_proxy),
    )
    with listen(settings.host, settings.port) as listener:
        host, port = listener.getsockname()[:2]
        host = f"[{host}]" if ":" in host else host
        on_address(f"http://{host}:{port}{settings.root_path}")
        if settings.workers > 1:
            with tempfile.TemporaryDirectory(prefix="searchengine-") as folder:
                os.environ[status_routes.METRICS_FOLDER] = folder  # for the workers
                resource_tracker.ensure_running()  # which unblocks signals
                signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # workers inherit it
                _Workers(config, [listener]).run()
            if signal.SIGINT in signal.sigpending():
                raise KeyboardInterrupt
            return
        server = uvicorn.Server(config)
        try:
            server.run(sockets=[listener])
        except SystemExit:
            if not server.started:
                raise
            # uvicorn raises SIGTERM again after an orderly stop: no error


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens now, so that no connection is refused while workers start.

    Raises QueryError.
    """
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except OSError as error:
        raise QueryError(
            f"cannot listen on {host}, port {port}: {error.strerror or error}; choose another: "
            "--host ADDRESS --port PORT"
        ) from error


class _Workers(Multiprocess):
    """Processes that answer; uvicorn replaces one that dies."""

    def handle_signals(self) -> None:
        """Stop after Ctrl-C, which all processes get, also those that are still starting."""
        if signal.SIGINT in signal.sigpending():
            self.handle_int()
        super().handle_signals()

    def terminate_all(self) -> None:
        """Stop the workers, and refuse connections from now on: no worker would accept them."""
        for listener in self.sockets:
            listener.close()
        super().terminate_all()
