"""Tiny networks are traced once: many tests compile the same one, and most of that is tracing."""

import hashlib
import json
from typing import Any

import pytest

from searchengine.trainer.runtimes import tracing

# Weights of the largest network whose graph stays in memory.
MOST_WEIGHTS = 1_000_000
TRACED: dict[tuple[str, bool], Any] = {}


def remember_graphs(patch: pytest.MonkeyPatch) -> None:
    """Keep the graph of each network and way to trace it, and hand out copies."""
    real = tracing.trace

    def trace(module: Any, *, packed: bool) -> Any:
        if sum(weight.numel() for weight in module.parameters()) > MOST_WEIGHTS:
            return real(module, packed=packed)
        key = network_key(module), packed
        if key not in TRACED:
            TRACED[key] = real(module, packed=packed)
        return TRACED[key].clone()

    patch.setattr(tracing, "trace", trace)


def network_key(module: Any) -> str:
    """A checksum of everything that a traced graph depends on."""
    digest = hashlib.sha256()
    for name, weight in sorted(module.state_dict().items()):
        digest.update(f"{name} {weight.dtype} {list(weight.shape)}\n".encode())
        digest.update(weight.detach().contiguous().numpy().tobytes())
    for part in module.modules():
        values = {k: v for k, v in vars(part).items() if isinstance(v, (str, int, float, tuple))}
        values.pop("name_or_path", None)  # where it was read from
        digest.update(f"{type(part).__qualname__} {sorted(values.items())}\n".encode())
    config = module.transformer.config.to_dict()
    config.pop("_name_or_path", None)
    digest.update(json.dumps(config, sort_keys=True, default=str).encode())
    return digest.hexdigest()
