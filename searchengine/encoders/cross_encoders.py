"""Cross-encoders by name, each loaded when it is first needed; and what a server allows of one.

Imported for help texts, so it needs no numpy.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

from searchengine.backends.folder.documents.connections import inherit
from searchengine.errors import QueryError
from searchengine.trainer.errors import TrainerError
from searchengine.trainer.runtimes.runtime_config import RuntimeConfig

if TYPE_CHECKING:
    from searchengine.trainer.cross_encoder import CrossEncoder

CANDIDATES = 50
"""Documents that a cross-encoder reads for a question, where a caller says nothing."""
MAX_CANDIDATES = 1000
"""Most of them on a server."""


class CrossEncoders:
    """Safe to use from several threads, and in a forked child, which loads its own."""

    def __init__(self, runtime: RuntimeConfig | None) -> None:
        self._config = RuntimeConfig() if runtime is None else runtime
        self.after_fork()
        inherit(self)

    def after_fork(self) -> None:
        """In a forked child: the runtime's threads and locks are the parent's."""
        self._lock = Lock()
        self._loaded: dict[str, CrossEncoder] = {}

    def get(self, source: str | Path | None) -> "CrossEncoder | None":
        """The cross-encoder of a folder or hub name, ready to score; None for None.

        Raises QueryError.
        """
        if source is None:
            return None
        with self._lock, _named():
            scorer = self._load(source)
            scorer.start()
            return scorer

    def _load(self, source: str | Path) -> "CrossEncoder":
        from searchengine.trainer.cross_encoder import CrossEncoder

        if str(source) not in self._loaded:
            self._loaded[str(source)] = CrossEncoder.load(source, self._config)
        return self._loaded[str(source)]

    def check(self, source: str | Path) -> None:
        """Raise QueryError unless there is a cross-encoder; reads its configuration only."""
        from searchengine.trainer.cross_encoder import check

        with _named():
            check(source, self._config)


@contextmanager
def _named() -> Iterator[None]:
    """Errors of models as QueryError, named by the option of a search."""
    try:
        yield
    except TrainerError as error:
        raise QueryError(f"cross_encoder: {error}") from error


@dataclass(frozen=True, slots=True)
class CrossEncoding:
    """What a server lets its callers ask of a cross-encoder; they never name a model.

    Attributes:
        source: a folder or hub name.
        candidates: most documents that it reads for a question, so that no question takes long.
    """

    source: str
    candidates: int = CANDIDATES

    def options(self, k: int, offset: int, candidates: int | None = None) -> dict[str, Any]:
        """The options of a search by it. `candidates`: fewer, if a caller says so.

        Raises QueryError for more documents than it reads.
        """
        if candidates is not None and candidates > self.candidates:
            raise QueryError(f"candidates must be at most {self.candidates}, got {candidates}")
        if offset + k > self.candidates:
            raise QueryError(
                f"the cross-encoder orders the best {self.candidates} documents, and offset + k "
                f"must not exceed them, got {offset + k}"
            )
        return {
            "cross_encoder": self.source,
            "candidates": self.candidates if candidates is None else candidates,
        }
