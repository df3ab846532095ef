"""The coarse prefixes of all passages: a table beside `passages`, and how another one follows it.

    prefixes_01234567   a row for each passage: its id, its document, and normalise(M x) of its
                        vector x, with the graph that searches walk

The rotation M is fitted once there are FLAT_BELOW passages, and again when the collection has
outgrown it. Vectors are only read:

    begin     one transaction creates a table and names it in the settings, with M; from then on
              writers write to it as well
    fill      the passages of before, in blocks; writers wait for each
    build     the graph, beside writers
    replace   one transaction names the table as the one that searches use
    drop      the former table, when no reader is left that began before

A reader uses the table that the settings of its snapshot name. An interrupted build goes on.
"""

import base64
import io
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Self
from uuid import uuid4

import numpy as np

from searchengine.backends.postgresql import schema
from searchengine.indexer.arrays import Floats
from searchengine.indexer.config import SegmentConfig
from searchengine.indexer.storage.rotation import fit, prefixes

if TYPE_CHECKING:
    from searchengine.backends.postgresql.pool import Connection

IN_USE, NEXT = "prefixes", "next_prefixes"
"""The settings with the table that searches use, and the one that is being filled."""
COLUMNS, TYPES = "id, document, prefix", ["int8", "int8", "halfvec"]
_SAMPLE = 20_000  # rows that a rotation is fitted on
_GROWTH = 8  # times the rows of the last fit: then the rotation is fitted again
_BLOCK = 2000  # passages written at a time
_MEMORY = "512MB"  # for building the graph, where the server has no value of its own
_MAX_LINKS, _MAX_CANDIDATES = 100, 1000  # the limits of pgvector
_PATIENCE = "2s"  # that others wait for a reader that lasts
_TRIES = 8


@dataclass(frozen=True, slots=True)
class Prefixes:
    """A table of prefixes.

    Attributes:
        table: its name.
        rotation: M (p, D) float32, with orthonormal rows; None: the first p dimensions.
        dim: p.
        passages: number of passages when M was fitted.
    """

    table: str
    rotation: Floats | None
    dim: int
    passages: int

    @classmethod
    def parse(cls, stored: Mapping[str, Any] | None) -> Self | None:
        """The inverse of `as_dict`."""
        if stored is None:
            return None
        rotation = stored["rotation"]
        if rotation is not None:
            file = io.BytesIO(base64.b64decode(rotation))
            rotation = np.load(file, allow_pickle=False)
        return cls(stored["table"], rotation, stored["dim"], stored["passages"])

    def as_dict(self) -> dict[str, Any]:
        """All of it, for the settings."""
        rotation = None
        if self.rotation is not None:
            file = io.BytesIO()
            np.save(file, self.rotation, allow_pickle=False)
            rotation = base64.b64encode(file.getvalue()).decode("ascii")
        return {
            "table": self.table,
            "rotation": rotation,
            "dim": self.dim,
            "passages": self.passages,
        }

    @property
    def index(self) -> str:
        """The name of the graph."""
        return f"{self.table}_hnsw"

    def of(self, rows: Floats) -> Floats:
        """The prefixes (n, p) of rows (n, D), of length one."""
        return prefixes(rows, self.dim, self.rotation)

    def rows(self, numbers: Sequence[tuple[int, int]], vectors: Floats) -> list[tuple[Any, ...]]:
        """Rows of the table, for passages (id, document) with unit vectors (n, D)."""
        halves = half_vectors(self.of(vectors))
        return [(*number, half) for number, half in zip(numbers, halves, strict=True)]

    def is_outgrown(self, passages: int) -> bool:
        """Whether M was fitted to much fewer passages, and to few."""
        return self.passages < _SAMPLE and passages >= _GROWTH * self.passages


def half_vectors(rows: Floats) -> list[Any]:
    """Rows (n, d) as float16, for the database."""
    from pgvector import HalfVector

    return [HalfVector(row) for row in rows.astype(np.float16)]


class State(NamedTuple):
    """The settings of a commit, the table that searches use, and the one that is being filled."""

    settings: dict[str, Any]
    in_use: Prefixes | None
    following: Prefixes | None

    @property
    def tables(self) -> list[Prefixes]:
        """The tables that writers write to."""
        return [each for each in (self.in_use, self.following) if each is not None]


def begin(connection: "Connection", settings: Mapping[str, Any], passages: int) -> Prefixes:
    """Fit a rotation and create the table that follows. The connection is in autocommit."""
    config = SegmentConfig.from_dict(settings["index"])
    sql = f"SELECT vector FROM passages ORDER BY random() LIMIT {_SAMPLE}"
    rows = connection.cursor(binary=True).execute(sql).fetchall()
    sample = np.array([vector.to_numpy() for (vector,) in rows], np.float32)
    rotation = fit([sample], config)
    following = Prefixes(f"prefixes_{uuid4().hex[:8]}", rotation, config.prefix, passages)
    spread = bool(settings.get(schema.CITUS))
    with _writers_out(connection):
        if spread:  # definitions and rows are changed by one connection to each node
            connection.execute("SET LOCAL citus.multi_shard_modify_mode = 'sequential'")
        schema.create_prefixes(connection, following.table, config.prefix, spread)
        schema.set_value(connection, NEXT, following.as_dict())
    return following


def fill(connection: "Connection", following: Prefixes) -> None:
    """Write the prefixes of passages that have none."""
    last = -1
    sql = "SELECT id, document, vector FROM passages WHERE id > %s ORDER BY id LIMIT %s"
    present = f"SELECT id FROM {following.table} WHERE id = ANY(%s)"
    while True:
        with _writers_out(connection):
            rows = connection.cursor(binary=True).execute(sql, (last, _BLOCK)).fetchall()
            if not rows:
                return
            last = rows[-1][0]
            known = connection.execute(present, ([row[0] for row in rows],)).fetchall()
            missing = {row[0] for row in rows} - {i for (i,) in known}
            if new := [row for row in rows if row[0] in missing]:
                vectors = np.array([vector.to_numpy() for *_, vector in new], np.float32)
                ready = following.rows([row[:2] for row in new], vectors)
                connection.insert(following.table, COLUMNS, TYPES, ready)


def build_index(connection: "Connection", following: Prefixes, config: SegmentConfig) -> None:
    """Build the graph as the server's parameters say: memory, and processes that take part."""
    links = min(config.hnsw_m, _MAX_LINKS)
    candidates = min(max(config.ef_construction, 2 * links), _MAX_CANDIDATES)
    # The graph should fit into memory while it is built. A server that says how much may be
    # used is obeyed; only the value that PostgreSQL has from the start is raised.
    connection.execute(
        f"SELECT set_config(name, '{_MEMORY}', false) FROM pg_settings "
        "WHERE name = 'maintenance_work_mem' AND source = 'default'"
    )
    # The table is too narrow for PostgreSQL to count on the work that its rows are.
    connection.execute("SET min_parallel_table_scan_size = 0")
    schema.drop_interrupted(connection)
    connection.execute(
        f"CREATE INDEX CONCURRENTLY IF NOT EXISTS {following.index} ON {following.table} "
        f"USING hnsw (prefix halfvec_ip_ops) WITH (m = {links}, ef_construction = {candidates})"
    )
    connection.execute(f"ANALYZE {following.table}")


def replace(connection: "Connection", following: Prefixes) -> None:
    """Let searches use a table."""
    with connection.transaction():
        schema.set_value(connection, IN_USE, following.as_dict())
        schema.set_value(connection, NEXT, None)


def drop_former(connection: "Connection", in_use: Prefixes) -> None:
    """Drop the tables that were in use; if a reader lasts, they are left to the next call."""
    from psycopg import errors

    former = [name for name in schema.prefix_tables(connection) if name != in_use.table]
    for attempt in range(_TRIES if former else 0):
        try:
            with connection.transaction():
                connection.execute("SELECT set_config('lock_timeout', %s, true)", (_PATIENCE,))
                # All transactions read the settings first: none is left that names these tables.
                connection.execute("LOCK TABLE settings IN ACCESS EXCLUSIVE MODE")
                connection.execute(f"DROP TABLE IF EXISTS {', '.join(former)}")
            return
        except errors.LockNotAvailable:
            time.sleep(0.05 * 2**attempt)


@contextmanager
def _writers_out(connection: "Connection") -> Iterator[None]:
    """A transaction during which nobody else writes: all writers lock a row of the settings."""
    with connection.transaction():
        connection.execute("LOCK TABLE settings IN EXCLUSIVE MODE")
        yield
