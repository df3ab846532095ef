"""Collections on a server, as a backend. Only what needs no server is here: names of URLs."""

import re
from urllib.parse import unquote

from searchengine.errors import CollectionError

_DEFAULT = "searchengine"
BESIDE = "-reindex"
"""The end of the schema that a reindex builds beside another. No URL can name one."""
_NAME = re.compile(r"[^\W\d]\w*")
_LONGEST = 63 - len(BESIDE)
"""Bytes of a name; PostgreSQL cuts what is longer."""


def split_url(url: str) -> tuple[str, str]:
    """The connection URI and the schema of a collection's URL. Raises CollectionError."""
    uri, _, name = url.partition("#")
    schema = unquote(name) or _DEFAULT
    fits = len(schema.encode("utf-8", "replace")) <= _LONGEST
    if not fits or _NAME.fullmatch(schema) is None or schema.startswith("pg_"):
        raise CollectionError(
            f"{shown(url)}: the name of a collection, after the first #, must be a word of at most "
            f"{_LONGEST} bytes that does not begin with a digit or pg_; write # in a password as "
            "%23"
        )
    return uri, schema


def shown(url: str) -> str:
    """The URL without its password, for messages."""
    url = re.sub(r"(?<=//)([^:/@]*):.*@", r"\1@", url)  # an unquoted password may hold @, / and ?
    return re.sub(r"(?<=[?&])(ssl)?password=[^&#]*&?", "", url)
