"""A reindex that was interrupted before its swap."""

from typing import Any

from searchengine import SearchEngine
from searchengine.encoders.loading import load_given
from searchengine.upkeep.reindex import Reindexing


def leave_pending(engine: SearchEngine, encoder: Any) -> None:
    """Encode everything by another encoder, and leave the swap to the next reindex."""
    collection = engine.folder
    with Reindexing.opened(
        collection.path, load_given(encoder, None), None, collection.wait, None
    ) as reindexing:
        reindexing.encode()
