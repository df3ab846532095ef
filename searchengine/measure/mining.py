"""Hard negatives: for every anchor, texts that score high and are not its positives.

pairs = read_pairs([Path("pairs.tsv")])
encoder = Encoder.load("starter")
summary = write_negatives(Path("triplets.jsonl"), encoder, pairs, candidates(pairs))

A candidate that scores nearly as high as the positive is probably an unlabelled positive; a margin
excludes it: a fraction of the positive's score (TopK-PercPos of NV-Retriever, Moreira et al., arXiv
2407.15831).
"""

import json
import os
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np

from searchengine.engine import TextEncoder
from searchengine.errors import SearchEngineError
from searchengine.indexer.arrays import Floats
from searchengine.indexer.config import Storage, Structure
from searchengine.indexer.segment import Segment, SegmentConfig
from searchengine.trainer.training.examples import Texts, identity, read_file
from searchengine.trainer.training.train_config import Objective

# Texts encoded, and anchors searched, at a time.
BLOCK = 1024
# A wide prefix and a long shortlist: a missed hard negative costs more than time.
PREFIX, SHORTLIST_PER_RANK = 128, 4
# With more candidates, a graph finds the shortlist faster than a scan of all prefixes.
MAX_SCANNED = 100_000
DEPTH = 100
"""Ranks that are considered, without the anchor and its positives."""
Progress = Callable[[int], object]


def silent(count: int) -> None:
    """Report nothing."""


class Mined(NamedTuple):
    """A pair with its hard negatives, the best ranked first. dropped: ranks outside the margin."""

    anchor: str
    positive: str
    negatives: Texts
    dropped: int


@dataclass(frozen=True, slots=True)
class MiningSummary:
    """Numbers of pairs with all negatives, fewer and none, and of ranks outside the margin."""

    pairs: int
    candidates: int
    complete: int
    fewer: int
    none: int
    dropped_by_margin: int


def read_pairs(paths: Iterable[Path]) -> list[Texts]:
    """The anchor and its positive of each example. Raises DataError and SearchEngineError."""
    pairs = []
    for path in paths:
        for row in read_file(path, objective=Objective.CONTRASTIVE):
            if row.one_text:
                raise SearchEngineError(f"{path}: holds single sentences, expected pairs of texts")
            pairs.append(row.matching)
    return pairs


def candidates(pairs: Iterable[Texts], corpus: Iterable[str] = ()) -> list[str]:
    """All positives and the texts of a corpus; those with equal letters and digits are one."""
    texts: dict[str, str] = {}
    for text in chain.from_iterable((*(pair[1:] for pair in pairs), filter(str.strip, corpus))):
        texts.setdefault(identity(text), text)
    return list(texts.values())


def mine(
    encoder: TextEncoder,
    pairs: Sequence[Texts],
    texts: Sequence[str],
    negatives: int = 1,
    relative_margin: float = 0.95,
    progress: Progress = silent,
    folder: Path | None = None,
) -> Iterator[Mined]:
    """Every pair with its negatives, perhaps none, from `candidates`.

    negatives: number of them for an anchor. relative_margin: maximum score of a negative, as a
    fraction of the positive's. progress: called with the number of texts just encoded, then of
    pairs just mined. The candidates are indexed in a temporary folder in `folder` and searched
    coarse to fine, so that memory grows linearly with the texts.
    """
    rows = {identity(text): row for row, text in enumerate(texts)}
    related: dict[str, set[int]] = defaultdict(set)  # rows of the texts in a text's pairs
    for pair in pairs:
        names = [identity(text) for text in pair]
        for name in names:
            related[name].update(rows[other] for other in names if other in rows)

    def vectors() -> Iterator[Floats]:
        for start in range(0, len(texts), BLOCK):
            yield encoder.encode(texts[start : start + BLOCK], role="document")
            progress(len(texts[start : start + BLOCK]))

    settings = SegmentConfig(
        prefix=min(PREFIX, encoder.dim),
        structure=Structure.FLAT if len(texts) <= MAX_SCANNED else Structure.HNSW,
        storage=Storage.FLOAT32,  # the margins compare exact scores
    )
    with (
        tempfile.TemporaryDirectory(dir=folder, ignore_cleanup_errors=True) as scratch,
        Segment.build(Path(scratch) / "candidates", vectors(), settings) as segment,
    ):
        for start in range(0, len(pairs), BLOCK):
            block = pairs[start : start + BLOCK]
            queries = encoder.encode([pair[0] for pair in block], role="query")
            linked = [related[identity(pair[0])] for pair in block]
            # Enough for DEPTH candidates even if all related texts rank first.
            k = min(DEPTH + max(map(len, linked)), segment.rows)
            result = segment.search(queries, k, shortlist=SHORTLIST_PER_RANK * k)
            own = np.array([[rows[identity(pair[1])]] for pair in block], np.int64)
            positives = segment.rerank(queries, own, 1).scores[:, 0].tolist()
            for i, (anchor, positive, *_) in enumerate(block):
                found = zip(result.rows[i].tolist(), result.scores[i].tolist(), strict=True)
                ranked = [(row, score) for row, score in found if row >= 0 and row not in linked[i]]
                # abs: for a positive of −0.2, a margin of 0.95 must exclude −0.19.
                limit = positives[i] - (1 - relative_margin) * abs(positives[i])
                fitting = [texts[row] for row, score in ranked[:DEPTH] if score <= limit]
                dropped = len(ranked[:DEPTH]) - len(fitting)
                yield Mined(anchor, positive, tuple(fitting[:negatives]), dropped)
            progress(len(block))


def write_negatives(
    out: Path,
    encoder: TextEncoder,
    pairs: Sequence[Texts],
    texts: Sequence[str],
    negatives: int = 1,
    relative_margin: float = 0.95,
    progress: Progress = silent,
) -> MiningSummary:
    """Mine into a new .jsonl file that the trainer reads: anchor, positive, a list negatives.

    Pairs keep their order; pairs with too few negatives are written too. The file appears whole or
    not at all. Raises SearchEngineError if `out` exists, or no pair has a negative.
    """
    check_output(out)
    out, counts, dropped = out.absolute(), Counter[int](), 0  # pairs by number of negatives
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}.") as scratch:
        temporary = Path(scratch) / out.name
        # Half a pair of surrogates, which UTF-8 lacks, is escaped as JSON escapes it.
        with temporary.open("w", encoding="utf-8", errors="backslashreplace", newline="") as file:
            found = mine(encoder, pairs, texts, negatives, relative_margin, progress, Path(scratch))
            for mined in found:
                row = {name: getattr(mined, name) for name in ("anchor", "positive", "negatives")}
                file.write(json.dumps(row, ensure_ascii=False) + "\n")
                counts[len(mined.negatives)] += 1
                dropped += mined.dropped
            file.flush()
            os.fsync(file.fileno())
        if counts[0] == len(pairs):
            raise SearchEngineError(
                f"none of {len(pairs)} pairs has a negative within the margin, of {len(texts)} "
                "candidates; add a corpus, or raise relative_margin"
            )
        check_output(out)  # again: mining may have taken hours
        temporary.rename(out)
    complete, none = counts[negatives], counts[0]
    fewer = len(pairs) - complete - none
    return MiningSummary(len(pairs), len(texts), complete, fewer, none, dropped)


def check_output(out: Path) -> None:
    """Raise SearchEngineError unless `out` is a new .jsonl file in an existing folder."""
    if out.suffix != ".jsonl":
        raise SearchEngineError(f"{out}: the name must end in .jsonl")
    if out.exists():
        raise SearchEngineError(f"{out} exists; name a new file, or remove this one")
    if not out.absolute().parent.is_dir():
        raise SearchEngineError(f"{out}: the folder {out.parent} does not exist; create it first")
