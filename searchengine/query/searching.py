"""Searching: one question or many, from threads and from event loops, answered together."""

import asyncio
from abc import ABC, abstractmethod
from functools import partial
from threading import Lock
from typing import Any, Unpack
from weakref import WeakValueDictionary

import numpy.typing as npt

from searchengine.encoders.checks import as_array, check_questions
from searchengine.query.coalescing import BackgroundCoalescer, Coalescer
from searchengine.query.documents import Documents
from searchengine.query.hits import Hits, HitsBatch
from searchengine.query.request import Options, Query, Questions
from searchengine.storage.collection import Collection


class Searching(Documents, ABC):
    """The documents of an open collection, and the ways to search them."""

    def __init__(self, collection: Collection) -> None:
        self.collection = collection
        self._new_locks()

    def _new_locks(self) -> None:
        """Nothing is waiting: also in a forked child, where a parent's thread held the lock."""
        self._lock = Lock()
        self._together: WeakValueDictionary[Query, Coalescer[str, Hits]] = WeakValueDictionary()
        self._in_background: WeakValueDictionary[
            tuple[Query, bool], BackgroundCoalescer[Any, Hits]
        ] = WeakValueDictionary()

    @abstractmethod
    def _answered(self, request: Query, queries: Questions) -> HitsBatch:
        """The hits of questions that have the same options."""

    def search(self, query: str | npt.ArrayLike, k: int = 10, **options: Unpack[Options]) -> Hits:
        """The k documents nearest to a question or a vector (D,), best first.

        What several threads ask at once is answered together. `options`: see query.request.
        Raises QueryError and FilterError.
        """
        if not isinstance(query, str):
            return self.search_batch(as_array(query)[None], k, **options)[0]
        request = Query.of(k, options)
        check_questions([query])
        mine = Coalescer(partial(self._answered, request))
        with self._lock:
            together = self._together.setdefault(request, mine)
        return together(query)

    def search_batch(
        self, queries: Questions, k: int = 10, **options: Unpack[Options]
    ) -> HitsBatch:
        """The hits of many questions, or vectors (q, D), in their order; faster than one by one."""
        return self._answered(Query.of(k, options), queries)

    async def asearch(
        self, query: str | npt.ArrayLike, k: int = 10, **options: Unpack[Options]
    ) -> Hits:
        """As `search`, for asyncio: the event loop goes on meanwhile.

        What several tasks ask at once is answered together, in a background thread. A task may be
        cancelled at any time, which concerns no other.
        """
        request, is_text = Query.of(k, options), isinstance(query, str)
        if isinstance(query, str):
            check_questions([query])
        item = query if is_text else as_array(query)
        mine: BackgroundCoalescer[Any, Hits] = BackgroundCoalescer(partial(self._answered, request))
        with self._lock:
            together = self._in_background.setdefault((request, is_text), mine)
        return await asyncio.wrap_future(together.submit(item))

    async def asearch_batch(
        self, queries: Questions, k: int = 10, **options: Unpack[Options]
    ) -> HitsBatch:
        """As `search_batch`, for asyncio: in a thread, while the event loop goes on."""
        return await asyncio.to_thread(self.search_batch, queries, k, **options)
