"""One thread that encodes, a job after the other, while its caller reads, writes and builds."""

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from threading import Event
from typing import Self

import numpy as np
import numpy.typing as npt

Vectors = npt.NDArray[np.float32]
OnBatch = Callable[[int], None]
Encode = Callable[[OnBatch], Vectors]

AHEAD = 2
"""Jobs begun and not taken: one is encoded, and the next one waits for it. Bounds memory."""


class Stopped(Exception):
    """Ends a job that nobody waits for any more, between two batches of its encoder."""


@dataclass(slots=True)
class _Job:
    vectors: Future[Vectors]
    documents: int = 0
    tokens: int = 0


class Encoding:
    """Jobs encoded in their order in one thread, which has ended when the `with` block is left.

    Encoders release the interpreter while they compute, so one thread is all it takes for them to
    go on. Everything but the encoder's own call stays with the thread of the caller.
    """

    def __init__(self, progress: Callable[[int, int], None] | None = None) -> None:
        """`progress` hears, in the caller's thread, of documents and tokens that are encoded."""
        self._progress = progress
        self._jobs: deque[_Job] = deque()
        self._stop = Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="encoding")

    def start(self, encode: Encode) -> None:
        """Encode this when all before it is done.

        `encode` is given what to call after each batch, if it can: that lets it be stopped.
        """
        self._jobs.append(_Job(self._thread.submit(encode, self._after_batch)))

    def count(self, documents: int, tokens: int) -> None:
        """So many documents and tokens are done when all is that was started so far."""
        if not self._jobs:
            self._report(documents, tokens)
            return
        self._jobs[-1].documents += documents
        self._jobs[-1].tokens += tokens

    def done(self) -> Iterator[Vectors]:
        """The vectors of jobs that are done, in order. Raises what a job raised, in its turn."""
        while self._jobs and self._jobs[0].vectors.done():
            yield from self.taken(len(self._jobs) - 1)

    def taken(self, left: int) -> Iterator[Vectors]:
        """The vectors of jobs, in order, until so many jobs are left; waits for them. As `done`."""
        while len(self._jobs) > left:
            yield self._jobs[0].vectors.result()
            job = self._jobs.popleft()  # what was yielded is stored by now
            self._report(job.documents, job.tokens)

    def _report(self, documents: int, tokens: int) -> None:
        if self._progress is not None and documents:
            self._progress(documents, tokens)

    def _after_batch(self, _: int) -> None:
        if self._stop.is_set():
            raise Stopped

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Drop what is not done; an encoder that does not tell of its batches ends its call."""
        self._stop.set()
        self._thread.shutdown(cancel_futures=True)
