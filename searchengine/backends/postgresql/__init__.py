"""Collections on a server, as a backend. Only what needs no server is here: names of URLs."""

import re
from urllib.parse import unquote

from searchengine.errors import CollectionError

_DEFAULT = "searchengine"
_NAME = re.compile(r"[^\W\d]\w{0,62}")


def split_url(url: str) -> tuple[str, str]:
    """The connection URI and the schema of a collection's URL. Raises CollectionError."""
    uri, _, name = url.partition("#")
    schema = unquote(name) or _DEFAULT
    if _NAME.fullmatch(schema) is None or schema.startswith("pg_"):
        raise CollectionError(
            f"{shown(url)}: the name of a collection, after the first #, must be a word of at most "
            "63 characters that does not begin with a digit or pg_; write # in a password as %23"
        )
    return uri, schema


def shown(url: str) -> str:
    """The URL without its password, for messages."""
    url = re.sub(r"(?<=//)([^:/@]*):.*@", r"\1@", url)  # an unquoted password may hold @, / and ?
    return re.sub(r"(?<=[?&])(ssl)?password=[^&#]*&?", "", url)
