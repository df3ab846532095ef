"""A reindex that was interrupted before its swap."""

from typing import Any

import pytest

from searchengine import SearchEngine
from searchengine.upkeep.reindex import Reindexing


def leave_pending(engine: SearchEngine, encoder: Any) -> None:
    """Encode everything by another encoder, and leave the swap to the next reindex."""

    def interrupted(_: Reindexing) -> None:
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Reindexing, "swap", interrupted)
        engine.reindex(encoder)
