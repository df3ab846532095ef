"""What a collection holds, how it is searched, and what is guaranteed of it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Guarantee:
    """What is left of the statement that a tuning made; see searchengine.maintenance.guarantee.

    Attributes:
        recall: what the mean recall@k exceeds now; None: the guarantee is withdrawn.
        added, deleted: rows since it was tuned; None where that cannot be told any more.
        commit: the commit that the tuning made; None where it was not recorded.
        reason: why the guarantee is lowered or withdrawn; empty while nothing has changed.
    """

    recall: float | None
    added: int | None = None
    deleted: int | None = None
    commit: int | None = None
    reason: str = ""


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
