"""Cross-encoders by name, each loaded when it is first needed."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

from searchengine.errors import QueryError
from searchengine.trainer.errors import TrainerError
from searchengine.trainer.runtimes.runtime_config import RuntimeConfig

if TYPE_CHECKING:
    from searchengine.trainer.cross_encoder import CrossEncoder


class CrossEncoders:
    """Safe to use from several threads."""

    def __init__(self, runtime: RuntimeConfig | None) -> None:
        self._config = RuntimeConfig() if runtime is None else runtime
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
