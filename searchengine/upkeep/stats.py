"""Statistics of a collection: its size, its settings, and what tuning guarantees."""

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from searchengine.backends.contract import Backend
from searchengine.backends.embedded import Embedded
from searchengine.backends.folder.documents import pending
from searchengine.backends.folder.documents.pending import Kind, Work
from searchengine.backends.folder.documents.store import Store
from searchengine.backends.folder.mode import Mode, weight_of
from searchengine.backends.folder.snapshot import Snapshot
from searchengine.backends.folder.writer import TUNED
from searchengine.backends.postgresql.collection import PostgresCollection
from searchengine.corpus.analyzer import Tokenizer
from searchengine.encoders.protocol import NO_ENCODER
from searchengine.indexer.config import SegmentConfig
from searchengine.indexer.tuning.cost import footprint
from searchengine.notebook import facts


@dataclass(frozen=True, slots=True)
class Guarantee:
    """The recall guarantee that remains of a tuning.

    Attributes:
        recall: the mean recall@k exceeds it; None: the guarantee is withdrawn.
        added, deleted: rows since the tuning; None if unknown.
        commit: the commit of the tuning; None if it was not recorded.
        reason: why the guarantee is lowered or withdrawn; empty while nothing has changed.
    """

    recall: float | None
    added: int | None = None
    deleted: int | None = None
    commit: int | None = None
    reason: str = ""


def guarantee(snapshot: Snapshot, target: float) -> Guarantee:
    """The guarantee that remains of the last tuning, for a `target` of mean recall."""
    tuned = snapshot.settings[TUNED]
    names, commit = tuned["segments"], int(tuned["commit"])  # equal rows have equal checksums
    measured = [row for row in snapshot.segments if row.manifest_sha256 in names]
    lost = len(names) - len(measured)
    if lost:
        reason = f"{lost} of the {len(names)} segments measured were merged, optimized or repaired "
        return Guarantee(None, commit=commit, reason=f"{reason}since commit {commit}")
    rows = sum(row.rows for row in measured)
    left = sum(row.rows if (live := snapshot.live[row]) is None else live.size for row in measured)
    added, deleted = snapshot.rows - left, rows - left
    if not added and not deleted:
        return Guarantee(target, 0, 0, commit)
    missed = added / max(1, snapshot.rows) + deleted / rows
    reason = f"{added} rows were added and {deleted} deleted since commit {commit}"
    if missed >= 1 - target:
        reason += f", by which {missed:.1%} may be missed, and the target allows {1 - target:.3g}"
        return Guarantee(None, added, deleted, commit, reason)
    return Guarantee(target - missed, added, deleted, commit, reason)


@dataclass(frozen=True, slots=True)
class Stats:
    """Size and settings of a collection.

    Attributes:
        path: its folder, or its URL without the password.
        documents, passages, segments: counts. A server has no segments, tombstones or commits.
        tombstones: rows of passages that were deleted, until a merge drops them.
        commit: number of commits.
        cut: tokens and overlap of passages (ingest.passages); None: documents are whole.
        tokenizer: tokenizer of the index of words.
        mode: how questions are ranked in the mode auto.
        weight: weight of the cosine in the mode hybrid; BM25 has the rest.
        words: what ranks by words, "words files" or "FTS5"; None: there is no index of words.
        fields: indexed metadata fields.
        dim: dimensions of a vector.
        index_config: how segments are built and searched, see indexer.config.SegmentConfig.
        shortlist: the longest of the segments' shortlists, which they measured where the index
            config has 0; None while there are no rows.
        exact: whether every search is exact, because each shortlist holds all rows.
        scanned: segments too small for the configured structure, which are flat.
        hot_row: bytes per row that should stay in memory: codes, links and ids of the coarse stage.
        cold_row: bytes per row that may stay on the disk. Both are None while there are no rows.
        tuning: the measurements behind the index config, see tune.Tuning; None: not tuned.
        guarantee: the recall guarantee that remains of the tuning; None: not tuned.
        encoder, layers, fingerprint: the encoder, and how many of its first layers it uses; None:
            all.
        bytes: size of all files in the folder; hard links count once.
        pending: a line for each work that has not ended: what it is, how far it is, who does it.
    """

    path: str
    documents: int
    passages: int
    segments: int
    tombstones: int
    commit: int
    cut: Mapping[str, Any] | None
    tokenizer: str
    mode: str
    weight: float
    words: str | None
    fields: tuple[str, ...]
    dim: int
    index_config: Mapping[str, Any]
    shortlist: int | None
    exact: bool
    scanned: int
    hot_row: float | None
    cold_row: float | None
    tuning: Mapping[str, Any] | None
    guarantee: Guarantee | None
    encoder: str | None
    layers: int | None
    fingerprint: str
    bytes: int
    pending: tuple[str, ...] = ()

    def _repr_html_(self) -> str:
        """Shown by notebooks."""
        encoder = self.encoder or ("none" if self.fingerprint == NO_ENCODER else "made in Python")
        recall = (self.tuning or {}).get("goal", {}).get("recall")
        shortlist = f"{self.shortlist:,}" if self.shortlist is not None else None
        rows: list[tuple[str, object]] = [
            ("documents", f"{self.documents:,}"),
            ("passages", f"{self.passages:,}"),
            ("segments", self.segments),
            ("encoder", encoder),
            ("dimensions", self.dim),
            ("ranking", self.mode),
            ("search", "exact" if self.exact else f"shortlist of {shortlist}"),
            ("tuned for", None if recall is None else f"recall {recall}"),
            ("indexed fields", ", ".join(self.fields) or None),
            ("size", f"{self.bytes / 2**20:,.1f} MiB"),
            *(("under way", work) for work in self.pending),
        ]
        return facts(rows, self.path)


def stats(collection: Backend) -> Stats:
    """Read the statistics of the commit that is shown."""
    if isinstance(collection, PostgresCollection):
        return _of_server(collection)
    assert isinstance(collection, Embedded)
    with collection.reading() as snapshot:
        return _of_folder(snapshot)


def _of_server(collection: PostgresCollection) -> Stats:
    with collection.reading() as snapshot:
        settings, shortlist = snapshot.settings, snapshot.shortlist
        documents, passages = snapshot.store.counts()
    indexed = collection.is_indexed()
    return Stats(
        **_by_settings(settings),
        path=collection.path,
        documents=documents,
        passages=passages,
        segments=0,
        tombstones=0,
        commit=0,
        words=collection.capabilities.words,
        fields=collection.fields(),
        shortlist=shortlist,
        exact=not indexed or shortlist >= passages,
        scanned=0,
        hot_row=None,
        cold_row=None,
        tuning=None,
        guarantee=None,
        bytes=collection.stored_bytes(),
        pending=() if indexed else ("the index of vectors is not built; searches read all rows",),
    )


def _of_folder(snapshot: Snapshot) -> Stats:
    segments, settings = snapshot.segments.values(), snapshot.settings
    structure = SegmentConfig.from_dict(settings["index"]).structure
    rows = sum(segment.rows for segment in segments)
    sizes = [footprint(segment.config, segment.rows, segment.dim) for segment in segments]
    tuning = settings.get(TUNED, {}).get("tuning")
    documents, passages = snapshot.store.counts()
    return Stats(
        **_by_settings(settings),
        path=str(snapshot.path),
        documents=documents,
        passages=passages,
        segments=len(segments),
        tombstones=rows - passages,
        commit=snapshot.commit,
        words=_ranks_by_words(snapshot),
        fields=snapshot.store.fields(),
        shortlist=snapshot.shortlist if segments else None,
        exact=all(segment.config.shortlist >= segment.rows for segment in segments),
        scanned=sum(segment.config.structure is not structure for segment in segments),
        hot_row=sum(size.rows * size.hot_row for size in sizes) / rows if rows else None,
        cold_row=sum(size.cold for size in sizes) / rows if rows else None,
        tuning=tuning,
        guarantee=None if tuning is None else guarantee(snapshot, float(tuning["goal"]["recall"])),
        bytes=_bytes(snapshot.path),
        pending=tuple(map(_described, _works(snapshot))),
    )


def _by_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """What the settings say on every backend."""
    encoder = settings["encoder"]
    return {
        "cut": settings.get("passages"),
        "tokenizer": settings["tokenizer"],
        "mode": settings.get("mode", Mode.VECTOR),
        "weight": weight_of(settings),
        "dim": encoder["dim"],
        "index_config": SegmentConfig.from_dict(settings["index"]).as_dict(),
        "encoder": encoder["source"] or encoder.get("name"),
        "layers": encoder.get("layers"),
        "fingerprint": encoder["fingerprint"],
    }


def _ranks_by_words(snapshot: Snapshot) -> str | None:
    if snapshot.settings["tokenizer"] == Tokenizer.NONE:
        return None
    return "FTS5" if snapshot.words is None else "words files"


def _works(snapshot: Snapshot) -> list[Work]:
    """The pending work as it is now: it makes progress without commits."""
    with Store(snapshot.path / "documents.db", readers=1) as store:
        return pending.works(store) if store.identity == snapshot.store.identity else []


def _described(work: Work) -> str:
    details = work.details
    if work.kind is Kind.REMOVE:
        return "removal of replaced passages, which the next change completes"
    if work.kind is Kind.REINDEX:
        encoder = details["settings"]["encoder"]
        rows = sum(block["rows"] for block in details["blocks"])
        name = encoder["source"] or encoder.get("name") or encoder["fingerprint"][:12]
        return f"reindex by {name}: {rows} passages encoded; {_by(details)}"
    rows = f"{details['moved']} of {details['rows']} passages moved"
    return f"merge of {len(work.inputs)} segments: {rows}; {_by(details)}"


def _by(details: Mapping[str, Any]) -> str:
    return f"started {details['started']} by {details['by']}"


def _bytes(path: Path) -> int:
    """Size of all files in a folder; hard links count once."""
    sizes = {}
    for folder, _, names in os.walk(path):
        for name in names:
            with suppress(FileNotFoundError):  # removed by a writer just now
                file = os.stat(os.path.join(folder, name))
                sizes[file.st_dev, file.st_ino] = file.st_size
    return sum(sizes.values())
