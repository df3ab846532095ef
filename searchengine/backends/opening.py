"""Opens and creates a collection by its path or URL."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from searchengine.backends.contract import Backend, folders_only
from searchengine.backends.folder.collection import Collection
from searchengine.backends.folder.folders import check_name
from searchengine.backends.postgresql import shown
from searchengine.corpus.analyzer import Analyzer
from searchengine.errors import CollectionError
from searchengine.trainer.errors import install_line

if TYPE_CHECKING:
    from searchengine.backends.postgresql.collection import PostgresCollection

_POSTGRESQL = ("postgresql", "postgres")


def is_url(path: str | Path) -> bool:
    """Whether a collection is on a server."""
    return "://" in str(path)


def open_backend(path: str | Path, wait: float = 0, device: str = "cpu") -> Backend:
    """Open the collection in a folder, or on the server of a URL.

    Raises CollectionError and, if an extra is missing, ImportError.
    """
    if not is_url(path):
        return Collection(Path(path), wait, device)
    if device != "cpu":
        raise CollectionError(
            f"{name_of(path)}: a server scans vectors itself; leave the device out"
        )
    return _server_backend(path)(str(path))


def in_folder(backend: Backend, instead: str = "") -> Collection:
    """A collection with what only one in a folder can do. Raises CollectionError for a server.

    `instead`: what to do on a server; by default, to copy it to a folder.
    """
    if not isinstance(backend, Collection):
        raise folders_only(backend.path, instead)
    return backend


def exists(path: str | Path) -> bool:
    """Whether there is a collection. Raises as `open_backend` if a server cannot be asked."""
    if not is_url(path):
        check_name(Path(path))
        return (Path(path) / "documents.db").exists()
    return _server_backend(path).exists(str(path))


def name_of(path: str | Path) -> str:
    """The path, or the URL without its password, for messages."""
    return shown(str(path)) if is_url(path) else str(path)


def create_backend(
    path: str | Path, settings: dict[str, Any], analyzer: Analyzer | None, wait: float = 0
) -> Backend:
    """Create an empty collection in a folder, or on the server of a URL."""
    if not is_url(path):
        return Collection.create(Path(path), settings, analyzer, wait)
    return _server_backend(path).create(str(path), settings, analyzer)


def _server_backend(path: str | Path) -> "type[PostgresCollection]":
    """The backend of a URL, loaded only if it is used."""
    if str(path).partition("://")[0] not in _POSTGRESQL:
        raise CollectionError(
            f"{name_of(path)}: no backend has this scheme; a collection is a folder, or a URL of "
            "PostgreSQL (postgresql://USER@HOST/DATABASE#COLLECTION)"
        )
    try:
        from searchengine.backends.postgresql.collection import PostgresCollection
    except ImportError as error:
        raise ImportError(
            f"collections on PostgreSQL need {error.name}: {install_line('postgresql')}"
        ) from error
    return PostgresCollection
