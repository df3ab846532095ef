"""Jobs: bulk adds whose bodies are spooled to disk, and that go on without their callers.

A job is a file of JSON in a folder that all workers share, so that any of them answers for it, and
a body beside it until it has ended. The folder, and all jobs, end with the server.
"""

import asyncio
import json
import logging
import os
import re
import secrets
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from searchengine.server.bulk_add import COUNTS, BulkAdd, Message, lines
from searchengine.server.document_routes import LINES, Name
from searchengine.server.models import ErrorModel, JobList, JobModel
from searchengine.server.refusals import RESPONSES, RETRY, Refused
from searchengine.server.responses import as_json
from searchengine.server.served import Served, State, collection_of, readable, state
from searchengine.server.server_settings import MAX_COMMIT

MAX_JOBS = 100
"""Jobs that wait or run, and jobs that are remembered after their end."""
_ENDED = ("done", "failed", "cancelled")
_CHUNK = 1 << 18  # bytes of a body that are read at a time
_log = logging.getLogger(__name__)
router = APIRouter(tags=["jobs"], responses=RESPONSES)


class _Cancelled(Exception):
    """Raised in a job that was cancelled: at its turn, or before a commit."""


class Job(BulkAdd):
    """A bulk add from a spooled body, which keeps a file of its state instead of a response."""

    def __init__(self, here: State, served: Served, commit_every: int) -> None:
        super().__init__(here, served, commit_every)
        self._position = 0  # in the body
        identity = secrets.token_hex(8)
        self._spooled, self._file = here.jobs / f"{identity}.body", here.jobs / f"{identity}.json"
        self.state: dict[str, Any] = {"id": identity, "collection": served.name, "state": "queued"}
        self.state |= {"created": _now(), "started": None, "ended": None, "error": None}
        self.state |= {"lines": 0, "documents": 0, **dict.fromkeys(COUNTS, 0)}
        self.state |= {"errors": 0, "left_out": [], "worker": os.getpid()}

    def save(self, **changes: Any) -> None:
        """Write the state, whole or not at all. Raises OSError."""
        self.state |= changes | {"errors": self._errors}
        _write(self._file, self.state)

    def forget(self) -> None:
        """Remove what was written."""
        for path in (self._spooled, self._file):
            path.unlink(missing_ok=True)

    async def spool(self, chunks: AsyncIterator[bytes]) -> None:
        """Write the body to disk. Raises Refused; then there is no job."""
        settings = self._here.settings
        try:
            with self._spooled.open("wb") as file:
                while chunk := await asyncio.wait_for(anext(chunks, b""), settings.bulk_idle):
                    _check_room(self._here, file.tell() + len(chunk))
                    await asyncio.to_thread(file.write, chunk)
            if not self._spooled.stat().st_size:
                raise Refused(422, "the body is empty; send a JSON object on each line")
            self.save()
        except TimeoutError:
            self.forget()
            reason = f"nothing came for {settings.bulk_idle:g} seconds; 0 documents are stored"
            raise Refused(408, reason, {"Connection": "close"}) from None
        except OSError as error:
            self.forget()
            message = f"the server cannot keep the body on its disk ({error.strerror}); make room, "
            raise Refused(503, f"{message}or send the lines to …/documents", RETRY) from error
        except BaseException:
            self.forget()
            raise

    async def run(self) -> None:
        """Add the lines when it is this job's turn; the state says how it ended."""
        end, error = "failed", None
        try:
            async with self._here.job_turn:
                self._check_wanted()
                self.save(state="running", started=_now())
                last = await self._run(lines(self._receive, self._here))
            self.state["lines"] = last["lines"]
            end, error = "done" if last["done"] else "failed", last.get("error")
        except _Cancelled:
            end = "cancelled"
        except Exception as failure:
            _log.exception("job %s failed", self.state["id"])
            error = self._served.without_path(self.explain(failure)[1])
        stored = f"{self._documents} documents are stored"
        if error is not None:
            error = f"{error}; {stored}"
            _log.warning("job %s ended early: %s", self.state["id"], error)
        try:
            self._spooled.unlink(missing_ok=True)
            self.save(state=end, error=error, ended=_now())
        except OSError:
            _log.exception("the state of job %s cannot be kept", self.state["id"])

    async def _receive(self) -> Message:
        """A part of the body, as a server would hand it over."""
        chunk = await asyncio.to_thread(self._read)
        return {"type": "http.request", "body": chunk, "more_body": len(chunk) == _CHUNK}

    def _read(self) -> bytes:
        with self._spooled.open("rb") as file:
            file.seek(self._position)
            chunk = file.read(_CHUNK)
        self._position += len(chunk)
        return chunk

    async def _commit(self) -> None:
        self._check_wanted()
        await super()._commit()

    def _check_wanted(self) -> None:
        if _cancelling(self._file).exists():
            raise _Cancelled

    async def _say(self, line: dict[str, Any], *, more: bool = True) -> None:
        """Note what a bulk add would answer."""
        if "error" in line:
            self.state["left_out"].append(line)
            return
        counts = {name: self.state[name] + line[name] for name in COUNTS}
        self.save(lines=line["committed"], documents=self._documents, **counts)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _cancelling(file: Path) -> Path:
    return file.with_suffix(".cancel")


def _write(file: Path, content: dict[str, Any]) -> None:
    fresh = file.with_suffix(f".{os.getpid()}.new")
    fresh.write_text(json.dumps(content))
    fresh.replace(file)


def _check_room(here: State, size: int) -> None:
    """Raise Refused if this body of `size` bytes so far, or all bodies, take too much room."""
    most = here.settings.max_spooled
    if size > most:
        raise Refused(413, f"the body of a job must be at most {most} bytes; send several jobs")
    if sum(_size(path) for path in here.jobs.glob("*.body")) > most:
        raise Refused(429, "the jobs that wait take all room for bodies; try again", RETRY)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _states(here: State) -> list[dict[str, Any]]:
    """All jobs, newest first; those of a worker that has died have failed."""
    found = [_state(here, path) for path in here.jobs.glob("*.json")]
    return sorted((job for job in found if job), key=lambda job: job["created"], reverse=True)


def _state(here: State, file: Path) -> dict[str, Any] | None:
    try:
        job: dict[str, Any] = json.loads(file.read_bytes())
    except FileNotFoundError:
        return None
    ended: dict[str, Any] = {}
    if job["state"] == "queued" and _cancelling(file).exists():
        ended = {"state": "cancelled"}
    elif job["state"] not in _ENDED and here.settings.workers > 1 and not _lives(job["worker"]):
        error = f"its worker has died; send the lines after {job['lines']} again"
        ended = {"state": "failed", "error": error}
    if ended:
        job |= ended | {"ended": _now()}
        _write(file, job)
        file.with_suffix(".body").unlink(missing_ok=True)
    return job


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except OSError:  # there is none, or now a process of another user has this number
        return False
    return True


def _known(request: Request, identity: str) -> dict[str, Any]:
    job, here = None, state(request)
    if re.fullmatch("[0-9a-f]{16}", identity):
        job = _state(here, here.jobs / f"{identity}.json")
    if job is None or job["collection"] not in readable(request):
        raise Refused(
            404,
            f"there is no job {identity!r:.80}; jobs live as long as the server, and the last "
            f"{MAX_JOBS} are remembered",
        )
    return job


@router.post(
    "/v1/collections/{name}/documents:bulk",
    response_model=JobModel,
    status_code=202,
    responses={408: {"model": ErrorModel, "description": "Nothing came for --bulk-idle seconds."}},
    openapi_extra=LINES,
)
async def add_in_a_job(
    request: Request,
    name: Name,
    commit_every: Annotated[
        int, Query(ge=1, le=MAX_COMMIT, description="Documents in a commit.")
    ] = 1000,
) -> Response:
    """Add or replace documents, one JSON object a line, in a job that outlives the connection."""
    here = state(request)
    job = Job(here, collection_of(request, name), commit_every)
    states = _states(here)
    if sum(each["state"] not in _ENDED for each in states) >= MAX_JOBS:
        raise Refused(429, f"{MAX_JOBS} jobs wait already; try again", RETRY)
    for each in [each for each in states if each["state"] in _ENDED][MAX_JOBS - 1 :]:
        for path in here.jobs.glob(f"{each['id']}.*"):
            path.unlink(missing_ok=True)
    try:
        await job.spool(request.stream())
    except ClientDisconnect:
        return Response(status_code=499)
    task = asyncio.create_task(job.run())
    here.running.add(task)
    task.add_done_callback(here.running.discard)
    response = as_json(job.state)
    response.status_code = 202
    root = here.settings.root_path
    response.headers["location"] = f"{root}/v1/jobs/{job.state['id']}"
    return response


@router.get("/v1/jobs", response_model=JobList)
async def list_jobs(request: Request) -> Response:
    """The jobs of this server, newest first, without the lines that were left out."""
    allowed = readable(request)
    found = [job for job in _states(state(request)) if job["collection"] in allowed]
    return as_json({"jobs": [{**job, "left_out": []} for job in found]})


@router.get("/v1/jobs/{identity}", response_model=JobModel)
async def get_job(request: Request, identity: str) -> Response:
    """How far a job is."""
    return as_json(_known(request, identity))


@router.delete("/v1/jobs/{identity}", response_model=JobModel)
async def cancel_job(request: Request, identity: str) -> Response:
    """Let a job end before its next commit, or at once if it waits; what is committed stays."""
    here = state(request)
    job = _known(request, identity)
    if job["state"] not in _ENDED:
        _cancelling(here.jobs / f"{identity}.json").touch()
    return as_json(_known(request, identity))
