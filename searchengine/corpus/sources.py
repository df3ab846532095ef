"""What a corpus is named by: a path, a table of a database, or standard input."""

from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

from searchengine.corpus.lines import bad

_SQLITE = "sqlite:"
_EXAMPLE = "sqlite:///FILE?table=NAME"


@dataclass(frozen=True, slots=True)
class Source:
    """A corpus.

    Attributes:
        path: a file or folder; "-" for standard input.
        table: of a SQLite database; None: not a database.
    """

    path: Path
    table: str | None = None


def source_of(corpus: str | Path) -> Source:
    """The source that a text names: a path, "-", or "sqlite:///FILE?table=NAME".

    A relative FILE comes after three slashes, an absolute one after four. Raises CorpusError.
    """
    if isinstance(corpus, Path) or not corpus.startswith(_SQLITE):
        return Source(Path(corpus))
    try:
        parts = urlsplit(corpus)
        query = parse_qs(parts.query, strict_parsing=True, keep_blank_values=True)
    except ValueError as error:
        raise bad(corpus, f"expected {_EXAMPLE} ({error})") from error
    file = unquote(parts.path.removeprefix("/"))
    if parts.netloc or not file or list(query) != ["table"] or len(query["table"]) > 1:
        raise bad(corpus, f"expected {_EXAMPLE}, with four slashes for an absolute path")
    return Source(Path(file), query["table"][0])
