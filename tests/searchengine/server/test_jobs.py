"""Jobs over HTTP: bulk adds that go on without their callers."""

import errno
import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from server_process import READER, running, vectors_collection
from starlette.testclient import TestClient

from searchengine import SearchEngine
from searchengine.errors import CollectionBusy
from searchengine.server import job_routes

AT = "/v1/collections/words/documents:bulk"
Serve = Callable[..., TestClient]


def ended(client: Any, job: dict[str, Any]) -> dict[str, Any]:
    """The job once it has ended."""
    end = time.monotonic() + 60
    while job["state"] in ("queued", "running"):
        assert time.monotonic() < end
        time.sleep(0.01)
        job = client.get(f"/v1/jobs/{job['id']}").json()
    return job


def body(documents: int) -> bytes:
    return b"".join(b'{"_id": "j%d", "text": "x%d"}\n' % (i, i) for i in range(documents))


def test_a_job_tells_how_far_it_is(client: TestClient) -> None:
    content = body(3) + b'bad\n\xff\n{"_id": "j0", "text": "other"}\n' + b'{"_id": "j1", "text": 1}'
    response = client.post(f"{AT}?commit_every=2", content=content)
    job = response.json()
    assert response.status_code == 202 and job["state"] == "queued" and job["ended"] is None
    assert response.headers["location"] == f"/v1/jobs/{job['id']}"
    done = ended(client, job)
    assert done["state"] == "done" and done["error"] is None
    assert done["created"] <= done["started"] <= done["ended"]
    counts = [done[name] for name in ("lines", "documents", "added", "changed", "errors")]
    assert counts == [7, 4, 3, 1, 3]
    assert [entry["line"] for entry in done["left_out"]] == [4, 5, 7]
    assert client.get("/v1/jobs").json() == {"jobs": [{**done, "left_out": []}]}
    ended_already = client.delete(f"/v1/jobs/{job['id']}").json()
    assert ended_already["state"] == "done"
    reader = {"Authorization": f"Bearer {READER}"}
    assert client.get(f"/v1/jobs/{job['id']}", headers=reader).status_code == 200
    assert client.post(AT, content=body(1), headers=reader).status_code == 403
    for unknown in ("0" * 16, "..", "x"):
        missing = client.get(f"/v1/jobs/{unknown}")
        assert missing.status_code == 404
    assert "live as long as the server" in client.delete(f"/v1/jobs/{'0' * 16}").text
    assert not list(client.app.here.jobs.glob("*.body"))  # type: ignore[attr-defined]


def test_a_job_that_is_cancelled_or_fails(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = SearchEngine.add
    calls = []

    def add(engine: SearchEngine, *args: Any, **options: Any) -> Any:
        calls.append(1)
        if len(calls) == 2:  # while the second block is written
            (job,) = client.app.here.jobs.glob("*.json")  # type: ignore[attr-defined]
            job.with_suffix(".cancel").touch()
        if len(calls) == 4:
            raise CollectionBusy("pid 1 is writing")
        if len(calls) == 6:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(engine, *args, **options)

    monkeypatch.setattr(SearchEngine, "add", add)
    job = ended(client, client.post(f"{AT}?commit_every=2", content=body(20)).json())
    assert (job["state"], job["lines"], job["documents"]) == ("cancelled", 4, 4)
    job = ended(client, client.post(f"{AT}?commit_every=2", content=body(20)).json())
    assert (job["state"], job["lines"], job["unchanged"]) == ("failed", 2, 2)
    assert job["error"] == (
        "another process is writing to the collection; try again; 2 documents are stored"
    )
    job = ended(client, client.post(f"{AT}?commit_every=2", content=body(20)).json())
    assert (job["state"], job["lines"], job["unchanged"]) == ("failed", 2, 2)
    assert job["error"].startswith("a disk of the server is full; make room")


def test_a_job_that_waits_is_cancelled_at_once(client: TestClient) -> None:
    here = client.app.here  # type: ignore[attr-defined]
    assert client.portal is not None
    client.portal.call(here.job_turn.acquire)
    waiting = client.post(AT, content=body(20)).json()
    assert waiting["state"] == "queued"
    cancelled = client.delete(f"/v1/jobs/{waiting['id']}").json()
    assert cancelled["state"] == "cancelled" and cancelled["ended"]
    assert not list(here.jobs.glob("*.body"))
    client.portal.call(here.job_turn.release)
    after = client.post(AT, content=body(1)).json()
    assert ended(client, after)["documents"] == 1
    job = client.get(f"/v1/jobs/{waiting['id']}").json()
    assert (job["state"], job["documents"], job["error"]) == ("cancelled", 0, None)


def test_jobs_are_bounded(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    client = serve(max_spooled=100)
    too_large = client.post(AT, content=body(20))
    assert too_large.status_code == 413 and "at most 100 bytes" in too_large.text
    assert client.post(AT, content=b"").status_code == 422
    monkeypatch.setattr(job_routes, "MAX_JOBS", 2)
    for _ in range(3):
        ended(client, client.post(AT, content=body(1)).json())
    assert len(client.get("/v1/jobs").json()["jobs"]) == 2

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(job_routes, "_check_room", full)
    response = client.post(AT, content=body(1))
    assert response.status_code == 503 and "No space left on device" in response.text
    monkeypatch.setattr(job_routes, "MAX_JOBS", 0)
    assert client.post(AT, content=body(1)).status_code == 429


@pytest.mark.parametrize("kind", [ProcessLookupError, PermissionError])
def test_a_job_whose_worker_is_gone_has_failed(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[OSError]
) -> None:
    """Also if a process of another user has its number by now."""

    def kill(*_: int) -> None:
        raise kind

    client = serve(workers=2)
    client.app.here.jobs = tmp_path  # type: ignore[attr-defined]
    job = ended(client, client.post(AT, content=body(1)).json())
    (tmp_path / f"{job['id']}.json").write_text(json.dumps({**job, "state": "running"}))
    monkeypatch.setattr(os, "kill", kill)
    found = client.get(f"/v1/jobs/{job['id']}").json()
    assert found["state"] == "failed" and "its worker has died" in found["error"]


def test_jobs_of_workers(tmp_path: Path) -> None:
    """Any worker answers for a job; one whose worker is killed has failed; a stop says so."""
    path = vectors_collection(tmp_path / "vectors.index")
    content = b"".join(
        json.dumps({"_id": f"k{i}", "_vector": [1.0] * 8}).encode() + b"\n" for i in range(5000)
    )
    at = "/v1/collections/vectors/documents:bulk?commit_every=10"
    with running(tmp_path, [path], "--workers", 2) as server:
        with server.client() as client:
            job = client.post(at, content=content).json()
        end = time.monotonic() + 60
        while not job["lines"]:
            assert time.monotonic() < end and job["state"] in ("queued", "running")
            with server.client() as client:  # a new connection, which any worker accepts
                job = client.get(f"/v1/jobs/{job['id']}").json()
        os.kill(job["worker"], signal.SIGKILL)
        with server.client() as client:
            job = ended(client, job)
            assert job["state"] == "failed" and "its worker has died" in job["error"]
            client.post(at, content=content)
        assert server.stop() == 0
    assert any("ended early: the server stops" in line for line in server.log)
    with SearchEngine.open(path) as engine:
        assert job["lines"] <= len(engine) < 5003
        engine.verify()
