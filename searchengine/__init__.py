"""Train, index, query and measure a coarse-to-fine semantic search engine."""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from searchengine.corpus.documents import Document
    from searchengine.encoders.functions import FunctionEncoder
    from searchengine.encoders.sentence_transformers import SentenceTransformerEncoder
    from searchengine.engine import Hit, SearchEngine

# Module names of the last release, until the next one.
__path__.append(str(Path(__file__).with_name("deprecated")))

__version__ = "0.1.0"
__all__ = ["Document", "FunctionEncoder", "Hit", "SearchEngine", "SentenceTransformerEncoder"]


def __getattr__(name: str) -> object:
    """Load the engine when it is first asked for, so that `import searchengine` stays light."""
    if name == "Document":
        from searchengine.corpus.documents import Document

        return Document
    if name == "FunctionEncoder":
        from searchengine.encoders.functions import FunctionEncoder

        return FunctionEncoder
    if name == "SentenceTransformerEncoder":
        from searchengine.encoders.sentence_transformers import SentenceTransformerEncoder

        return SentenceTransformerEncoder
    if name in __all__:
        from searchengine import engine

        return getattr(engine, name)
    raise AttributeError(f"module 'searchengine' has no attribute {name!r}")
