"""Statistics of a collection: its size, its settings, and what tuning guarantees.

Tuning guarantees a recall for the segments that it wrote; their checksums identify them. Segments
never change and are searched one by one, so a search finds the same rows in them as before. Of the
k nearest rows of a query, it may miss in addition:

* rows added since, in segments that were not measured: on average the fraction added / rows;
* rows that took the place of deleted ones: on average the fraction deleted / measured rows;

if the rows that changed are no nearer to the queries than the others. So the mean recall exceeds
the target less both fractions, in the worst case that all of these rows are missed. Nothing is
guaranteed once that loss is as large as the target itself allows, or if a segment was merged,
optimized or repaired, which builds an index that was not measured.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from searchengine.backends.contract import Snapshot
from searchengine.backends.folder.snapshot import Snapshot as FolderSnapshot
from searchengine.backends.folder.writer import TUNED
from searchengine.backends.mode import Mode, weight_of
from searchengine.corpus.synonym_groups import groups_of
from searchengine.encoders.protocol import NO_ENCODER
from searchengine.indexer.config import ALL_ROWS, SegmentConfig, Structure
from searchengine.upkeep.question_map import describe, description


@dataclass(frozen=True, slots=True)
class Guarantee:
    """The recall guarantee that remains of a tuning.

    Attributes:
        recall: the mean recall@k exceeds it; None: the guarantee is withdrawn.
        added, deleted: rows since the tuning; None: withdrawn for another reason.
        commit: the commit of the tuning.
        reason: why the guarantee is lowered or withdrawn; empty while nothing has changed.
    """

    recall: float | None
    added: int | None = None
    deleted: int | None = None
    commit: int | None = None
    reason: str = ""


def guarantee(snapshot: FolderSnapshot, target: float) -> Guarantee:
    """The guarantee that remains of a tuning for a `target` of mean recall."""
    tuned = snapshot.settings[TUNED]
    names, commit = tuned["segments"], int(tuned["commit"])  # equal rows have equal checksums
    measured = [row for row in snapshot.segments if row.manifest_sha256 in names]
    since = f"since commit {commit}"
    if lost := len(names) - len(measured):
        reason = f"{lost} of the {len(names)} segments measured were merged, optimized or repaired "
        return Guarantee(None, commit=commit, reason=reason + since)
    rows = sum(row.rows for row in measured)
    live = [(row.rows, snapshot.live[row]) for row in measured]
    left = sum(every if allowed is None else allowed.size for every, allowed in live)
    added, deleted = snapshot.rows - left, rows - left
    missed = added / max(1, snapshot.rows) + deleted / rows
    reason = f"{added} rows were added and {deleted} deleted {since}" if missed else ""
    if missed < 1 - target:
        return Guarantee(target - missed, added, deleted, commit, reason)
    reason += f", by which {missed:.1%} may be missed, and the target allows {1 - target:.3g}"
    return Guarantee(None, added, deleted, commit, reason)


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
        synonyms: number of groups of synonyms.
        query_map: the map that questions pass: its `questions`, `mode` and `figures`; None: none
            was learnt.
        words: what ranks by words, such as "words files"; None: there is no index of words.
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
        encoder, fingerprint: the encoder.
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
    fingerprint: str
    bytes: int
    synonyms: int = 0
    query_map: Mapping[str, Any] | None = None
    pending: tuple[str, ...] = ()

    def described(self) -> dict[str, str]:
        """The statistics as text: name → value."""
        config, encoder = self.index_config, self.encoder or "made in Python"
        cut = "whole documents"
        if self.fingerprint == NO_ENCODER:
            encoder = "none; documents come with their vectors"
            cut = cut if self.cut is None else "as they come with the vectors"
        elif self.cut is not None:
            size, overlap = self.cut["tokens"] or "as many tokens as fit", self.cut["overlap"]
            cut = f"of {size}, overlapping by {'an eighth' if overlap is None else overlap}"
        search = f"by prefix, a shortlist of up to {self.shortlist} rows a segment at full width"
        parts = f" ({self.weight:g} of vectors, {1 - self.weight:.2g} of words)"
        groups = "1 group" if self.synonyms == 1 else f"{self.synonyms:,} groups"
        tuning = "none; searchengine tune finds the best index config for a recall target"
        if self.tuning is not None and self.guarantee is not None:
            tuning = founded_on(self.tuning, self.guarantee)
        scanned = f" ({self.scanned} too small for the structure and scanned)"
        advice = "; searchengine optimize removes them"
        lines: dict[str, Any] = {
            "path": self.path,
            "documents": str(self.documents),
            "passages": f"{self.passages} ({cut})",
            "segments": f"{self.segments}{scanned if self.scanned else ''}",
            "tombstones": f"{self.tombstones}{advice if self.tombstones else ''}",
            "commit": str(self.commit),
            "index config": in_words(config, self.dim),
            "search": "exact: every row is scored at full width" if self.exact else search,
            "rotation": config["rotation"],
            "storage": config["storage"],
            "mode": self.mode + (parts if self.mode == Mode.HYBRID else ""),
            "words": self.tokenizer
            + (f", ranked by {self.words}" if self.words else "")
            + (f", {groups} of synonyms" if self.synonyms else ""),
            "fields": ", ".join(self.fields) or "none indexed",
            "hot": self.hot_row and f"{self.hot_row:.0f} bytes per row, should stay in memory",
            "cold": self.cold_row and f"{self.cold_row:.0f} bytes per row, may stay on the disk",
            "questions": self.query_map and describe(self.query_map),
            "pending": "; ".join(self.pending),
            "tuning": tuning,
            "encoder": encoder,
            "fingerprint": self.fingerprint,
            "bytes": str(self.bytes),
        }
        return {name: line for name, line in lines.items() if line}


def stats(snapshot: Snapshot, path: Path | str) -> Stats:
    """The statistics of a commit."""
    settings, encoder = snapshot.settings, snapshot.settings["encoder"]
    tuning = settings.get(TUNED, {}).get("tuning")
    remaining = None
    if tuning is not None:  # only a folder is tuned
        remaining = guarantee(cast(FolderSnapshot, snapshot), float(tuning["goal"]["recall"]))
    return Stats(
        path=str(path),
        documents=snapshot.count(),
        cut=settings.get("passages"),
        tokenizer=settings["tokenizer"],
        mode=settings.get("mode", Mode.VECTOR),
        weight=weight_of(settings),
        synonyms=len(groups_of(settings)),
        query_map=description(settings),
        dim=encoder["dim"],
        index_config=SegmentConfig.from_dict(settings["index"]).as_dict(),
        tuning=tuning,
        guarantee=remaining,
        encoder=encoder["source"] or encoder.get("name"),
        fingerprint=encoder["fingerprint"],
        **snapshot.sizes(),
    )


def in_words(config: Mapping[str, Any], dim: int) -> str:
    """An index config (SegmentConfig.as_dict) as a line, without the fields it does not use."""
    size = "all rows" if config["shortlist"] == ALL_ROWS else config["shortlist"] or "measured"
    parts = [f"{config['structure']} {config['code']} over {config['prefix']} of {dim} dimensions"]
    parts += [f"shortlist {size}", *(f"then {keep} by {width}" for width, keep in config["stages"])]
    if config["structure"] != Structure.FLAT:
        graph = config["structure"] == Structure.HNSW
        parts.append(
            f"links {config['hnsw_m']}" if graph else f"lists {config['lists'] or 'by the rows'}"
        )
        parts.append(f"effort {config['effort'] or 'by the shortlist'}")
    return ", ".join(parts)


def founded_on(tuning: Mapping[str, Any], guarantee: Guarantee) -> str:
    """A stored tuning (Tuning.as_dict), and the guarantee that remains, in one sentence."""
    goal = tuning["goal"]
    filtered = "".join(
        f", {recall:.4f} under filters that match {100 * float(share):g} % of the rows"
        for share, recall in tuning["filtered"].items()
    )
    source = "queries" if tuning["source"] == "given" else "documents taken as queries"
    shown = (
        f"recall@{goal['k']} above {goal['recall']:g} with {100 * goal['confidence']:g} % "
        f"confidence on {tuning['held_out']} held-out {source} "
        f"(mean {tuning['recall']:.4f}{filtered}); tuned on {tuning['rows']} rows"
    )
    if guarantee.recall is None:
        return f"guarantee withdrawn: {guarantee.reason}; tune again (it was {shown})"
    now = f"; now above {guarantee.recall:.4f}: {guarantee.reason}" if guarantee.reason else ""
    return shown + now
