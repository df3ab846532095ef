"""Statistics of a collection: its size, its settings, and what it was tuned for."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from searchengine.backends.contract import Snapshot
from searchengine.backends.folder.writer import TUNED
from searchengine.backends.mode import WEIGHT, Mode
from searchengine.encoders.loading import QUERY_MAP
from searchengine.encoders.protocol import NO_ENCODER
from searchengine.indexer.config import ALL_ROWS, SegmentConfig, Structure
from searchengine.upkeep.tuning import DESCRIBED


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats:
    """Size and settings of a collection.

    Attributes:
        path: its folder, or its URL without the password.
        documents, passages, segments: counts. A server has no segments, tombstones or commits.
        tombstones: rows of passages that were deleted, until a merge drops them.
        commit: number of commits.
        cut: tokens of passages (ingest.passages); None: documents are whole.
        tokenizer: tokenizer of the index of words.
        mode: how questions are ranked in the mode auto.
        weight: weight of the cosine in the mode hybrid; BM25 has the rest.
        synonyms: number of groups of synonyms.
        query_map: the map that questions pass: its `questions`, `mode` and `figures`; None: none
            was learnt.
        fields: indexed metadata fields.
        dim: dimensions of a vector.
        index_config: how segments are built and searched, see indexer.config.SegmentConfig.
        shortlist: the longest of the segments' shortlists, which they measured where the index
            config has 0; None while there are no rows.
        exact: whether every search is exact, because each shortlist holds all rows.
        tuning: the measurements behind the index config, see tune.Tuning; None: not tuned.
        encoder, fingerprint: the encoder.
        bytes: size of all files in the folder; hard links count once.
        pending: a line for each work that has not ended: what it is, how far it is, who does it.
    """

    path: str
    documents: int
    passages: int
    segments: int = 0
    tombstones: int = 0
    commit: int = 0
    cut: Mapping[str, Any] | None
    tokenizer: str
    mode: str
    weight: float
    synonyms: int
    query_map: Mapping[str, Any] | None
    fields: tuple[str, ...]
    dim: int
    index_config: Mapping[str, Any]
    shortlist: int | None
    exact: bool
    tuning: Mapping[str, Any] | None
    encoder: str | None
    fingerprint: str
    bytes: int
    pending: tuple[str, ...]

    def described(self) -> dict[str, str]:
        """The statistics as text: name → value."""
        encoder, cut = self.encoder or "made in Python", "whole documents"
        if self.fingerprint == NO_ENCODER:
            encoder = "none; documents come with their vectors"
            cut = cut if self.cut is None else "as they come with the vectors"
        elif self.cut is not None:
            cut = f"of {self.cut['tokens'] or 'as many tokens as fit'}, overlapping by an eighth"
        search = f"by prefix, a shortlist of up to {self.shortlist} rows a segment at full width"
        parts = f" ({self.weight:g} of vectors, {1 - self.weight:.2g} of words)"
        advice = "; searchengine optimize removes them"
        judged = 0 if self.query_map is None else self.query_map["questions"]
        learnt = f"pass a map learnt from {judged:,} judged questions" if judged else ""
        lines: dict[str, Any] = {
            "path": self.path,
            "documents": str(self.documents),
            "passages": f"{self.passages} ({cut})",
            "segments": str(self.segments),
            "tombstones": f"{self.tombstones}{advice if self.tombstones else ''}",
            "commit": str(self.commit),
            "index config": self._index_config(),
            "search": "exact: every row is scored at full width" if self.exact else search,
            "mode": self.mode + (parts if self.mode == Mode.HYBRID else ""),
            "words": self.tokenizer + (f", synonyms: {self.synonyms:,}" if self.synonyms else ""),
            "fields": ", ".join(self.fields) or "none indexed",
            "questions": learnt,
            "pending": "; ".join(self.pending),
            "tuning": self._tuning(),
            "encoder": encoder,
            "fingerprint": self.fingerprint,
            "bytes": str(self.bytes),
        }
        return {name: line for name, line in lines.items() if line}

    def _index_config(self) -> str:
        """The index config, without the fields it does not use."""
        config = self.index_config
        kind = f"{config['structure']} {config['code']}"
        size = "all rows" if config["shortlist"] == ALL_ROWS else config["shortlist"] or "measured"
        parts = [f"{kind} over {config['prefix']} of {self.dim} dimensions", f"shortlist {size}"]
        parts += [f"then {keep} by {width}" for width, keep in config["stages"]]
        if config["structure"] != Structure.FLAT:
            parts.append(f"effort {config['effort'] or 'by the shortlist'}")
        return ", ".join(parts)

    def _tuning(self) -> str:
        """What was shown by the last tuning, and of how many rows."""
        if (tuning := self.tuning) is None:
            return "none; searchengine tune finds the best index config for a recall target"
        goal = tuning["goal"]
        source = "queries" if tuning["source"] == "given" else "documents taken as queries"
        now = "" if tuning["rows"] == self.passages else f", of {self.passages} now"
        return (
            f"recall@{goal['k']} above {goal['recall']:g} with {100 * goal['confidence']:g} % "
            f"confidence on {tuning['held_out']} held-out {source} "
            f"(mean {tuning['recall']:.4f}); tuned on {tuning['rows']} rows{now}"
        )


def stats(snapshot: Snapshot, path: Path | str) -> Stats:
    """The statistics of a commit."""
    settings, encoder = snapshot.settings, snapshot.settings["encoder"]
    learnt = settings.get(QUERY_MAP)
    return Stats(
        path=str(path),
        documents=snapshot.count(),
        cut=settings.get("passages"),
        tokenizer=settings["tokenizer"],
        mode=settings.get("mode", Mode.VECTOR),
        weight=float(settings.get("weight", WEIGHT)),
        synonyms=len(settings.get("synonyms", "").splitlines()),
        query_map=learnt and {name: learnt[name] for name in DESCRIBED},
        dim=encoder["dim"],
        index_config=SegmentConfig.from_dict(settings["index"]).as_dict(),
        tuning=settings.get(TUNED, {}).get("tuning"),
        encoder=encoder["source"] or encoder.get("name"),
        fingerprint=encoder["fingerprint"],
        **snapshot.sizes(),
    )
