"""The tables of a collection in its schema, and the settings in them.

settings    name → JSON; `version` is that of these tables, `revision` changes with any setting
documents   as in documents.db, except: `metadata` is the JSON as it was stored, `fields` the
            same as JSONB, `dates` its shadow (filters.py), `tokens` its length in terms,
            `words` title and text as a tsvector, for phrases
postings, word_totals   see words.py
passages    a row for each passage: its document, its offsets, and its vector as the encoder
            gave it, of length one, float16
prefixes_…  see prefixes.py
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from searchengine.backends.filters.tree import Field
from searchengine.corpus.analyzer import ALGORITHMS, Analyzer, Tokenizer
from searchengine.corpus.language_traits import UNSPACED_LANGUAGES
from searchengine.corpus.normalization import ACCENTS, FRACTIONS, SIGNS
from searchengine.errors import CollectionError

if TYPE_CHECKING:
    from searchengine.backends.postgresql.connections import Connections
    from searchengine.backends.postgresql.pool import Connection

VERSION = 3
HOT = ("passages_pkey", "documents_pkey", "postings_term")
"""The indexes that every search reads, beside the prefixes."""
WORDS_RANKER = "BM25"
CITUS = "citus"
"""The setting of a collection with tables spread over the nodes of a cluster."""
_FIELD_INDEXES = {"fields": "field", "dates": "date"}
"""Column → how the names of the indexes of its fields begin."""
_OF_FIELD = "(starts_with(relname, 'field ') OR starts_with(relname, 'date '))"
INDEXED_TEXT = 200_000
"""Maximum characters of a document that are indexed as words: a tsvector holds one megabyte."""
_WORDS = {Tokenizer.UNICODE: "simple"}
_STEMMERS = {
    "ar", "hy", "eu", "ca", "da", "nl", "en", "fi", "fr", "de", "el", "hu", "id", "ga", "it",
    "lt", "nb", "nn", "no", "pt", "ro", "ru", "sr", "es", "sv", "ta", "tr",
}  # fmt: skip
"""Languages that PostgreSQL 14 has a stemmer for; of several in a collection, the first counts."""


def words_config(settings: Mapping[str, Any]) -> str | None:
    """The text search configuration for a tokenizer; None: there are no words to search."""
    analyzer = Analyzer.parse(settings["tokenizer"])
    if analyzer.tokenizer is not Tokenizer.STEM:
        return _WORDS.get(analyzer.tokenizer)
    if not set(analyzer.languages).isdisjoint(UNSPACED_LANGUAGES):
        return None  # its parser cuts words at spaces only
    first = next((name for name in analyzer.languages if name in _STEMMERS), None)
    return "simple" if first is None else ALGORITHMS[first][0]


def normalized_sql(text: str) -> str:
    """The expression for a text `normalized`, where signs always have spaces around them."""
    apart = f"[{SIGNS}{FRACTIONS}]"
    spaced = (
        f"regexp_replace(regexp_replace({text}, '[{ACCENTS}]', ' ', 'g'), '{apart}', ' \\& ', 'g')"
    )
    return f"normalize({spaced}, NFKC)"


def field_index(name: str, column: str = "fields") -> str:
    """The name of the index of a metadata field; PostgreSQL truncates names to 63 bytes."""
    kind = _FIELD_INDEXES[column]
    index = f"{kind} {name}"
    if len(index.encode()) < 64:
        return index
    return f"{kind} {hashlib.sha256(name.encode()).hexdigest()[:32]}"


def index_field(
    connection: "Connection",
    field: Field,
    name: str,
    column: str = "fields",
    *,
    concurrently: bool = False,
) -> None:
    """Index a metadata field for comparisons, named as in filters; in `dates`: those of dates.

    `concurrently`: others write meanwhile; not in a transaction.
    """
    from psycopg import sql

    steps = sql.SQL(" -> ").join(map(sql.Literal, field))
    index = sql.Identifier(field_index(name, column))
    create = "CREATE INDEX CONCURRENTLY" if concurrently else "CREATE INDEX"
    connection.execute(
        sql.SQL(create + " IF NOT EXISTS {} ON documents (({} -> {}))").format(
            index, sql.Identifier(column), steps
        )
    )
    connection.execute(sql.SQL("COMMENT ON INDEX {} IS {}").format(index, sql.Literal(name)))


def drop_interrupted(connection: "Connection") -> None:
    """Drop the indexes that were not built to the end."""
    connection.execute(
        "DO $$ DECLARE name text; BEGIN FOR name IN "
        "SELECT relname FROM pg_index JOIN pg_class ON pg_class.oid = indexrelid "
        "WHERE NOT indisvalid AND relnamespace = current_schema()::regnamespace "
        f"AND (starts_with(relname, 'prefixes_') OR {_OF_FIELD}) "
        "LOOP EXECUTE format('DROP INDEX %I', name); END LOOP; END $$"
    )


def create(connection: "Connection", connections: "Connections", settings: dict[str, Any]) -> None:
    """Create the tables, in the caller's transaction. Raises CollectionError if there are some."""
    name, dim = connections.name, int(settings["encoder"]["dim"])
    _lock(connection, connections.schema)
    if exists(connection, connections.schema):
        raise CollectionError(
            f"{name} exists already; open it with SearchEngine.open_or_create, or choose another "
            "name after the #"
        )
    config = words_config(settings)
    text = normalized_sql(f"title || ' ' || left(text, {INDEXED_TEXT})")
    words = f"to_tsvector('pg_catalog.{config}', {text})" if config else "NULL::tsvector"
    if spread := installed(connection, "citus"):
        _check_cluster(connection, name)
    schema = f'"{connections.schema}"'
    connection.execute("CREATE EXTENSION IF NOT EXISTS vector SCHEMA public")
    connection.execute(f"CREATE SCHEMA IF NOT EXISTS {schema}")
    connections.use_schema(connection)  # the types may be in another schema
    for statement in (
        "CREATE TABLE settings (name text PRIMARY KEY, value json NOT NULL)",
        f"""CREATE TABLE documents (
            id bigint GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY,
            key text COLLATE "C" NOT NULL {"" if spread else "UNIQUE"},
            title text NOT NULL,
            text text NOT NULL,
            metadata json NOT NULL,
            fields jsonb NOT NULL,
            dates jsonb,
            source json,
            root text,
            digest bytea NOT NULL,
            vectors bytea,
            tokens int NOT NULL,
            words tsvector GENERATED ALWAYS AS ({words}) STORED
        )""",
        "CREATE INDEX documents_fields ON documents USING gin (fields jsonb_path_ops)",
        """CREATE TABLE postings (
            term bytea NOT NULL,
            document bigint NOT NULL,
            frequency real NOT NULL,
            length int NOT NULL
        )""",
        "CREATE INDEX postings_term ON postings (term) INCLUDE (document, frequency, length)",
        "CREATE INDEX postings_document ON postings (document)",
        "CREATE TABLE word_totals (documents bigint NOT NULL, tokens bigint NOT NULL)",
        *(["CREATE INDEX documents_words ON documents USING gin (words)"] if config else []),
        *(_SPREAD if spread else []),
    ):
        connection.execute(statement)
    columns = f"first int NOT NULL, last int NOT NULL, vector halfvec({dim}) NOT NULL"
    numbered = "bigint GENERATED BY DEFAULT AS IDENTITY"
    _create_rows(connection, "passages", numbered, columns, spread)
    if spread:
        settings = settings | {CITUS: True}
    for key, value in (settings | {"version": VERSION}).items():
        set_value(connection, key, value)


def _spread_by(table: str) -> str:
    """Spreads a table over the nodes by its column `document`, as `documents` is."""
    return f"SELECT create_distributed_table('{table}', 'document', colocate_with => 'documents')"


_SPREAD = (
    "CREATE INDEX documents_key ON documents (key)",
    'CREATE TABLE keys (key text COLLATE "C" PRIMARY KEY, document bigint NOT NULL)',
    "SELECT create_distributed_table('documents', 'id', colocate_with => 'none')",
    _spread_by("postings"),
    "SELECT create_distributed_table('keys', 'key', colocate_with => 'none')",
)
"""Spread the tables over the nodes: all of a document is on one, and `keys` keeps keys unique."""


def create_prefixes(connection: "Connection", table: str, dim: int, spread: bool) -> None:
    """Create a table of prefixes of width `dim`, with the rights of `passages`."""
    from psycopg import sql

    _create_rows(connection, table, "bigint", f"prefix halfvec({dim}) NOT NULL", spread)
    rights = connection.execute(
        "SELECT CASE grantee WHEN 0 THEN 'PUBLIC' ELSE grantee::regrole::text END, "
        "privilege_type FROM pg_class, aclexplode(relacl) "
        "WHERE oid = 'passages'::regclass AND grantee <> relowner"
    ).fetchall()
    for role, right in rights:
        grant = sql.SQL("GRANT {} ON {} TO {}")
        named = grant.format(sql.SQL(right), sql.Identifier(table), sql.SQL(role))
        connection.execute(named)


def _create_rows(
    connection: "Connection", table: str, numbers: str, columns: str, spread: bool
) -> None:
    """Create a table with rows of documents; `numbers`: the type of their ids."""
    connection.execute(
        f"""CREATE TABLE {table} (
            id {numbers},
            document bigint NOT NULL REFERENCES documents ON DELETE CASCADE,
            {columns},
            PRIMARY KEY (id{", document" if spread else ""})
        )"""
    )
    connection.execute(f"CREATE INDEX {table}_document ON {table} (document)")
    if spread:
        connection.execute(_spread_by(table))


def prefix_tables(connection: "Connection") -> list[str]:
    """The tables of prefixes, in use or not."""
    sql = (
        "SELECT relname FROM pg_class WHERE relnamespace = current_schema()::regnamespace "
        "AND relkind = 'r' AND relname ~ '^prefixes_[0-9a-f]{8}$'"
    )
    return [name for (name,) in connection.execute(sql).fetchall()]


def installed(connection: "Connection", extension: str) -> bool:
    """Whether the database has an extension."""
    sql = "SELECT 1 FROM pg_extension WHERE extname = %s"
    return connection.execute(sql, (extension,)).fetchone() is not None


def exists(connection: "Connection", schema: str) -> bool:
    """Whether a schema holds a collection."""
    sql = (
        "SELECT count(*) FROM information_schema.tables WHERE table_schema = %s "
        "AND table_name IN ('settings', 'documents', 'passages')"
    )
    row = connection.execute(sql, (schema,)).fetchone()
    return row is not None and row[0] == 3


def indexed_fields(connection: "Connection") -> tuple[str, ...]:
    """The metadata fields that are indexed for comparisons, as filters name them."""
    sql = (
        "SELECT coalesce(obj_description(oid, 'pg_class'), substr(relname, 7)) "
        f"FROM pg_class WHERE relkind = 'i' AND {_OF_FIELD} "
        "AND relnamespace = current_schema()::regnamespace ORDER BY oid"
    )
    return tuple(dict.fromkeys(row[0] for row in connection.execute(sql).fetchall()))


def stored_bytes(connection: "Connection", spread: bool) -> int:
    """Bytes of all tables and indexes of the collection; `spread`: over a cluster."""
    size = "pg_total_relation_size(oid)"
    if spread:
        distributed = "EXISTS (SELECT 1 FROM pg_dist_partition WHERE logicalrelid = pg_class.oid)"
        size = f"CASE WHEN {distributed} THEN citus_total_relation_size(oid) ELSE {size} END"
    sql = (
        f"SELECT coalesce(sum({size}), 0)::bigint FROM pg_class "
        "WHERE relnamespace = current_schema()::regnamespace AND relkind = 'r'"
    )
    row = connection.execute(sql).fetchone()
    return int(row[0]) if row else 0


def hot_bytes(connection: "Connection", names: Sequence[str]) -> int:
    """Bytes of the HOT indexes, and of tables and indexes with these names."""
    sql = (
        "SELECT coalesce(sum(pg_relation_size(oid)), 0)::bigint FROM pg_class "
        "WHERE relnamespace = current_schema()::regnamespace AND relname = ANY(%s)"
    )
    row = connection.execute(sql, ([*HOT, *names],)).fetchone()
    return int(row[0]) if row else 0


def set_value(connection: "Connection", name: str, value: Any) -> None:
    """Write one setting; None removes it."""
    for key, text in ((name, json.dumps(value)), ("revision", json.dumps(uuid4().hex))):
        connection.execute(
            "INSERT INTO settings (name, value) VALUES (%s, %s) "
            "ON CONFLICT (name) DO UPDATE SET value = excluded.value",
            (key, text),
        )
    if value is None:
        connection.execute("DELETE FROM settings WHERE name = %s", (name,))


def read_settings(connection: "Connection", name: str) -> dict[str, Any]:
    """All settings. Raises CollectionError for tables of another version."""
    settings: dict[str, Any] = dict(
        connection.execute("SELECT name, value FROM settings").fetchall()
    )
    version = settings.get("version")
    if version != VERSION:
        newer = isinstance(version, int) and version > VERSION
        advice = "index the documents again, or copy a folder there (searchengine copy)"
        if newer:
            advice = "upgrade searchengine to open it"
        raise CollectionError(
            f"{name} has tables of version {version}, and this searchengine reads version "
            f"{VERSION}; {advice}"
        )
    return settings


def _check_cluster(connection: "Connection", name: str) -> None:
    """Raise CollectionError for a Citus that cannot do what the tables need.

    Before 13.2.2, and in 14.0.0, it has no statistics of expressions, which filters need.
    """
    row = connection.execute("SELECT substring(citus_version(), '[0-9]+[.0-9]*')").fetchone()
    version = row[0] if row else ""
    parts = tuple(map(int, version.split(".")))
    if parts < (13, 2, 2) or parts == (14, 0, 0):
        raise CollectionError(
            f"{name} has Citus {version}, and 13.2.2, or 14.0.1 or later is needed; upgrade it on "
            "all nodes, or use a database without the extension citus"
        )


def _lock(connection: "Connection", schema: str) -> None:
    """One transaction at a time creates a collection."""
    connection.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", (schema,))
