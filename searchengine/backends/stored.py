"""What the settings of a collection on a server hold besides those of a folder."""

import base64
import io
from collections.abc import Mapping
from typing import Any

import numpy as np

from searchengine.indexer.arrays import Floats

SHORTLIST = 400
"""The shortlist of a collection that was neither tuned nor copied from one that measured it."""


def shortlist(settings: Mapping[str, Any]) -> int:
    """The configured shortlist, or the one that the copied collection measured."""
    configured = settings["index"]["shortlist"] or settings.get("shortlist")
    return int(configured or SHORTLIST)


def pack(rotation: Floats) -> str:
    """A rotation (D, D) float32 as text, for the settings."""
    file = io.BytesIO()
    np.save(file, rotation, allow_pickle=False)
    return base64.b64encode(file.getvalue()).decode("ascii")


def unpack(text: str) -> Floats:
    """The inverse of `pack`."""
    loaded: Floats = np.load(io.BytesIO(base64.b64decode(text)), allow_pickle=False)
    return loaded
