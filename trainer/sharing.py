"""One model for all encoders of a process that ask for the same, for as long as one holds it."""

import os
from collections.abc import Hashable
from threading import Lock
from weakref import WeakValueDictionary

from searchengine.trainer.runtimes.handle import Handle, open_handle
from searchengine.trainer.runtimes.runtime_config import RuntimeConfig
from searchengine.trainer.sources.source import Source

_shared: WeakValueDictionary[Hashable, Handle] = WeakValueDictionary()
_sharing = Lock()  # held while a model is opened, so that two callers never read it twice


def share_handle(config: RuntimeConfig, source: Source) -> Handle:
    """As `open_handle`, but one handle serves all callers in this process, until none holds it.

    A model whose files have changed since is opened anew. Nobody may train its module.
    """
    key = (config, source, source.state())
    with _sharing:
        handle = _shared.get(key)
        if handle is None:
            handle = _shared[key] = open_handle(config, source)
        return handle


def _share_no_longer() -> None:
    """In a forked child: the threads of the runtimes and the lock are the parent's."""
    global _sharing
    _sharing = Lock()
    _shared.clear()


os.register_at_fork(after_in_child=_share_no_longer)
