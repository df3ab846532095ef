"""The first texts of the packaged model: numpy runs them while the fastest runtime starts."""

import threading
from collections.abc import Callable
from importlib import import_module
from threading import Lock, Thread
from typing import TYPE_CHECKING

from trainer.model.packaged import Packaged

if TYPE_CHECKING:
    from trainer.runtimes.numpy_runtime import NumpyRuntime

# Tokens that numpy encodes before the fastest runtime is started: a few seconds, about as long as
# that takes. Each call counts as CALL_TOKENS at least, so that a process with many questions is
# answered fast from the hundredth or so on.
FIRST_TOKENS, CALL_TOKENS = 8192, 64


class FirstTexts:
    """Says what numpy runs, and starts the fastest runtime beside it when there is more."""

    def __init__(self, packaged: Packaged, start: Callable[[], object]):
        """start: starts the fastest runtime; called at most once, in a thread of its own."""
        self.packaged = packaged
        self._start = start
        self._tokens = 0
        self._numpy: NumpyRuntime | None = None
        self._starting: Thread | None = None
        self.after_fork()

    def after_fork(self) -> None:
        """In a forked child: the lock may be held by a thread of the parent."""
        self._lock = Lock()

    @property
    def starting(self) -> bool:
        """Whether the fastest runtime was started, which may have failed."""
        return self._starting is not None

    def runtime_for(self, tokens: int) -> "NumpyRuntime | None":
        """The numpy runtime for a call of `tokens` tokens; None: wait for the fastest runtime.

        A long call waits, because numpy would take longer. For short calls numpy goes on until the
        fastest runtime has started. If that fails, the result is None: the caller starts it again,
        which raises the error. Raises ModelError.
        """
        with self._lock:
            self._tokens += max(tokens, CALL_TOKENS)
            if tokens > FIRST_TOKENS:
                return None
            if self._tokens > FIRST_TOKENS:
                if self._starting is None:
                    self._starting = Thread(target=self._start, name="start")
                    self._starting.start()
                    _end_after(self._starting)
                elif not self._starting.is_alive():
                    return None
            if self._numpy is None:
                from trainer.runtimes.numpy_runtime import NumpyRuntime

                self._numpy = NumpyRuntime(self.packaged)
            return self._numpy


def _end_after(thread: Thread) -> None:
    """Make a process that ends meanwhile wait for a thread, so that its graph is stored.

    threading waits for threads only after the exit functions registered with it. One of them is
    that of concurrent.futures, which loads the weights: no work can be added after it. They are
    called in reverse order, so it is imported first. (torch does not survive as a daemon thread.)
    """
    import_module("concurrent.futures.thread")
    threading._register_atexit(thread.join)  # type: ignore[attr-defined]
