"""What a collection holds, how it is searched, and what is guaranteed of it."""

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from indexer.config import SegmentConfig
from indexer.tuning.footprint import footprint
from searchengine.maintenance.guarantee import Guarantee, guarantee
from searchengine.storage.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class Stats:
    """What a collection holds and how it is searched.

    Attributes:
        path, documents, passages, segments: where it is, and how much there is.
        tombstones: rows of passages that were deleted, until a merge drops them.
        commit: how many commits were made.
        cut: tokens and overlap of passages (ingest.passages); None: documents are whole.
        tokenizer: of the index of words.
        fields: metadata that is indexed.
        dim: numbers of a vector.
        recipe: how segments are built and searched, see indexer.config.SegmentConfig.
        scanned: segments too small for the recipe's structure, which are flat.
        hot_row: bytes a row that should stay in memory: codes, links and ids of the coarse stage.
        cold_row: bytes a row that may stay on the disk; of both None while there are no rows.
        tuning: what the recipe is founded on, see tune.Tuning; None if it was not tuned.
        guarantee: what is left of the tuning's statement; None if it was not tuned.
        encoder, layers, fingerprint: what made the vectors, by how many of its first layers; None:
            by all.
        bytes: of all files below the folder; one that has two names counts once.
    """

    path: str
    documents: int
    passages: int
    segments: int
    tombstones: int
    commit: int
    cut: Mapping[str, Any] | None
    tokenizer: str
    fields: tuple[str, ...]
    dim: int
    recipe: Mapping[str, Any]
    scanned: int
    hot_row: float | None
    cold_row: float | None
    tuning: Mapping[str, Any] | None
    guarantee: Guarantee | None
    encoder: str | None
    layers: int | None
    fingerprint: str
    bytes: int


def stats(snapshot: Snapshot) -> Stats:
    """What a collection holds and how it is searched."""
    settings, segments = snapshot.settings, snapshot.segments.values()
    recipe = SegmentConfig.from_dict(settings["index"])
    rows = sum(segment.rows for segment in segments)
    sizes = [footprint(segment.config, segment.rows, segment.dim) for segment in segments]
    tuning = next((s.manifest.tuning for s in segments if s.manifest.tuning is not None), None)
    documents, passages = snapshot.store.counts()
    return Stats(
        path=str(snapshot.path),
        documents=documents,
        passages=passages,
        segments=len(segments),
        tombstones=rows - passages,
        commit=snapshot.commit,
        cut=settings.get("passages"),
        tokenizer=settings["tokenizer"],
        fields=snapshot.store.fields(),
        dim=settings["encoder"]["dim"],
        recipe=recipe.as_dict(),
        scanned=sum(recipe.fitting(each.rows, each.dim) != recipe for each in segments),
        hot_row=sum(size.rows * size.hot_row for size in sizes) / rows if rows else None,
        cold_row=sum(size.cold for size in sizes) / rows if rows else None,
        tuning=tuning,
        guarantee=None if tuning is None else guarantee(snapshot, float(tuning["goal"]["recall"])),
        encoder=settings["encoder"]["source"],
        layers=settings["encoder"].get("layers"),
        fingerprint=settings["encoder"]["fingerprint"],
        bytes=_bytes(snapshot.path),
    )


def _bytes(path: Path) -> int:
    """Of all files below a folder; one that has two names counts once."""
    sizes = {}
    for folder, _, names in os.walk(path):
        for name in names:
            with suppress(FileNotFoundError):  # removed by a writer just now
                file = os.stat(os.path.join(folder, name))
                sizes[file.st_dev, file.st_ino] = file.st_size
    return sum(sizes.values())
