"""The cross-encoder of a server, apart from searches so that help texts need no numpy."""

from dataclasses import dataclass
from typing import Any

from searchengine.errors import QueryError

CANDIDATES = 50
"""Documents that a cross-encoder reads for a question, where a caller says nothing."""
MAX_CANDIDATES = 1000
"""Most of them on a server."""


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
