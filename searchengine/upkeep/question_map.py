"""The map of the question's vector that a collection stores (searchengine.measure.learning)."""

from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from searchengine.indexer.arrays import Floats

QUERY_MAP = "query_map"
"""The setting of a map: its `matrix`, the `dim` and the `fingerprint` of the encoder; DESCRIBED."""
DESCRIBED = ("questions", "mode", "weight", "figures")
"""What the setting says of a map, beside the matrix."""
Encode = Callable[[Sequence[str]], Floats]


def with_map(encode: Encode, settings: Mapping[str, Any], fingerprint: str, dim: int) -> Encode:
    """What encodes questions by an encoder, and maps them if a map was learnt for it."""
    learnt = settings.get(QUERY_MAP)
    if learnt is None or (learnt["fingerprint"], learnt["dim"]) != (fingerprint, dim):
        return encode

    def mapped(questions: Sequence[str]) -> Floats:
        rows = encode(questions) @ _matrix(learnt["matrix"], dim)
        unit: Floats = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
        return unit

    return mapped


@lru_cache(maxsize=2)
def _matrix(stored: str, dim: int) -> Floats:
    """The transposed matrix (D, D), decoded once."""
    return np.ascontiguousarray(np.frombuffer(b64decode(stored), "<f4").reshape(dim, dim).T)


def map_setting(
    described: Mapping[str, Any], matrix: Floats, fingerprint: str, dim: int
) -> dict[str, dict[str, Any]]:
    """The setting that stores a matrix (D, D) for an encoder; `described` has what is DESCRIBED."""
    stored = b64encode(matrix.astype("<f4").tobytes()).decode()
    learnt_for = {"fingerprint": fingerprint, "dim": dim, "matrix": stored}
    return {QUERY_MAP: {name: described[name] for name in DESCRIBED} | learnt_for}


def description(settings: Mapping[str, Any]) -> dict[str, Any] | None:
    """What the settings say of a map, without the matrix; None without one."""
    stored = settings.get(QUERY_MAP)
    return None if stored is None else {name: stored[name] for name in DESCRIBED}


def describe(described: Mapping[str, Any]) -> str:
    """A description in words, for a line of statistics."""
    held = described["figures"][described["mode"]]
    return (
        f"pass a map learnt from {described['questions']:,} judged questions (nDCG@10 of held-out "
        f"ones {held['before']:.3f} → {held['after']:.3f})"
    )
