"""Train, index, query and measure a coarse-to-fine semantic search engine."""

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from searchengine.corpus.documents import Document
    from searchengine.encoders.functions import FunctionEncoder, SentenceTransformerEncoder
    from searchengine.encoders.http import HttpEncoder
    from searchengine.engine import Hit, SearchEngine
    from searchengine.server.client import Client

# Module names of the last release, until the next one.
__path__.append(str(Path(__file__).with_name("deprecated")))

__version__ = "0.1.0"
_MODULES = {
    "Client": "searchengine.server.client",
    "Document": "searchengine.corpus.documents",
    "FunctionEncoder": "searchengine.encoders.functions",
    "Hit": "searchengine.engine",
    "HttpEncoder": "searchengine.encoders.http",
    "SearchEngine": "searchengine.engine",
    "SentenceTransformerEncoder": "searchengine.encoders.functions",
}
__all__ = [
    "Client",
    "Document",
    "FunctionEncoder",
    "Hit",
    "HttpEncoder",
    "SearchEngine",
    "SentenceTransformerEncoder",
]


def __getattr__(name: str) -> object:
    """Load a name's module when it is first needed, so that `import searchengine` stays light."""
    if name not in _MODULES:
        raise AttributeError(f"module 'searchengine' has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)
