"""The ASGI application: routes behind the guard, what starts and stops with it, its OpenAPI."""

import asyncio
import faulthandler
import gc
import logging
import multiprocessing
import os
import signal
import warnings
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from importlib.metadata import version
from pathlib import Path
from threading import current_thread, main_thread
from typing import Any

from fastapi import Depends, FastAPI
from starlette.middleware.cors import CORSMiddleware
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from searchengine.errors import FieldWarning
from searchengine.server import (
    document_routes,
    openai_routes,
    page_routes,
    search_routes,
    status_routes,
)
from searchengine.server.counting import Metrics, Shared
from searchengine.server.guard import OPEN, Guard
from searchengine.server.refusals import add_handlers, known_parameters
from searchengine.server.served import Served, State
from searchengine.server.server_settings import SPARE_TOKENS, ServerSettings
from searchengine.server.systemd import notify, reloading

REFRESH = 0.5
"""Seconds between looks for commits of other processes."""
HARD_END = 34.0
"""Seconds after a signal to stop at which the process ends whatever it does: 4 more than requests
have."""
_DESCRIPTION = "Search, documents and embeddings of searchengine collections."
_log = logging.getLogger(__name__)


def create(settings: ServerSettings, numbers: Path | None = None) -> Guard:
    """The application. `numbers`: the file that its workers share; None: there is one."""
    warnings.simplefilter("ignore", FieldWarning)  # responses have them as `notes`
    slots = len(settings.tokens) + SPARE_TOKENS
    shared = Shared(len(settings.collections), slots, numbers)
    here = State(settings, shared, Metrics(settings))
    app = FastAPI(
        title="searchengine",
        version=version("searchengine"),
        description=_DESCRIPTION,
        lifespan=partial(_lifespan, here),
        docs_url=None,  # its page loads scripts from another host
        redoc_url=None,
        redirect_slashes=False,  # a redirect would name the host that the request names
    )
    app.state.here = here
    for routes in (
        search_routes,
        openai_routes,
        document_routes,
        status_routes,
        page_routes,
    ):
        app.include_router(routes.router, dependencies=[Depends(known_parameters)])
    add_handlers(app)
    _describe(app, settings)
    inner: Any = app
    if settings.trust_proxy:
        inner = ProxyHeadersMiddleware(inner, list(settings.trust_proxy))
    guarded: Any = Guard(inner, settings, shared, here.metrics, slots)
    here.reload = guarded.reload
    if numbers is not None:  # a worker may begin long after the server was started
        here.reload()
    if settings.origins:
        guarded = CORSMiddleware(
            guarded,
            settings.origins,
            allow_methods=["*"],
            allow_headers=["*"],
            expose_headers=["x-request-id", "retry-after"],
        )
    guarded.here = here
    return guarded  # type: ignore[no-any-return]


@asynccontextmanager
async def _lifespan(here: State, _: FastAPI) -> AsyncIterator[None]:
    """Open the collections, and close them; their encoders are loaded meanwhile."""
    settings = here.settings
    here.stopping = asyncio.Event()
    here.collections = {
        name: Served(name, path, here.shared, position, settings, here.metrics)
        for position, (name, path) in enumerate(settings.collections.items())
    }
    _on_signal(here)
    warming = asyncio.create_task(_warm(here))
    refreshing = asyncio.create_task(_refresh(here))
    if settings.workers == 1:
        notify("READY=1")
    yield
    here.stopping.set()
    for task in (refreshing, warming):
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
    for served in here.collections.values():
        await served.close()


async def _warm(here: State) -> None:
    await asyncio.gather(*(served.warm() for served in here.collections.values()))
    gc.collect()
    # Full passes of the garbage collector block the loop: not over what stays, and after 700,000
    # new objects, not 70,000, since a search may make a million.
    gc.freeze()
    gc.set_threshold(700, 10, 100)


async def _refresh(here: State) -> None:
    """Show what other processes commit. A worker stops, too, if its parent has died."""
    started_by = multiprocessing.parent_process()
    while True:
        await asyncio.sleep(REFRESH)
        for served in here.collections.values():
            try:
                await served.refresh()
            except Exception:  # the next look may succeed
                _log.exception("%s was not refreshed", served.name)
        if started_by is not None and os.getppid() != started_by.pid:
            signal.raise_signal(signal.SIGTERM)


def _on_signal(here: State) -> None:
    """Set `stopping` at once when the server begins to stop, for /readyz."""
    if current_thread() is not main_thread():
        return
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        before = signal.getsignal(number)
        if not callable(before):
            continue

        def stop(number: int, frame: Any, before: Any = before) -> None:
            if not here.stopping.is_set():
                _end_in(HARD_END)
                if here.settings.workers == 1:
                    notify("STOPPING=1")
            loop.call_soon_threadsafe(here.stopping.set)
            before(number, frame)

        signal.signal(number, stop)
    _on_hangup(here, loop)


def _on_hangup(here: State, loop: asyncio.AbstractEventLoop) -> None:
    """Read the tokens again at SIGHUP."""

    def reload(*_: Any) -> None:
        if here.settings.workers == 1:
            reloading()
        here.reload()
        if here.settings.workers == 1:
            notify("READY=1")

    signal.signal(signal.SIGHUP, lambda *_: loop.call_soon_threadsafe(reload))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})  # blocked while a worker starts


def _end_in(seconds: float) -> None:
    """End this process after some seconds, by a thread that needs no lock of the interpreter.

    It writes where each thread was: something has not ended in time.
    """
    with suppress(RuntimeError, ValueError, OSError):  # there is no stderr
        faulthandler.dump_traceback_later(seconds, exit=True)


def _describe(app: FastAPI, settings: ServerSettings) -> None:
    """Say in OpenAPI below which address the server is, and which operations need a token."""
    generate = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            schema = generate()
            if settings.root_path:
                schema["servers"] = [{"url": settings.root_path}]
            if settings.tokens:
                parts = schema.setdefault("components", {})
                parts["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
                for path, operations in schema["paths"].items():
                    for operation in operations.values():
                        operation["security"] = [] if path in OPEN else [{"token": []}]
            app.openapi_schema = schema
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]
