"""Hard negatives: for every anchor, texts that score high and are not its positives.

The candidates are indexed in a temporary folder and searched coarse to fine, so that memory grows
with the texts and not with their square. A candidate that scores nearly as high as the positive is
likely to be a positive nobody marked, and is left out by a margin: a share of the positive's score
(TopK-PercPos of NV-Retriever, Moreira et al., arXiv 2407.15831), or a difference, or both.

    miner = Miner(Encoder.load("starter"), read_pairs([Path("pairs.tsv")]))
    summary = miner.write(Path("triplets.tsv"))
"""

import json
import os
import random
import re
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TextIO

import numpy as np

from indexer.segment import Segment, SegmentConfig, Storage, Structure
from searchengine.errors import QueryError, SearchEngineError
from searchengine.ingest.encoding import TextEncoder, Vectors
from trainer.training.data.files import identity, read_examples
from trainer.training.data.positives import Kind

# Texts encoded, and anchors searched, at a time.
BLOCK = 1024
# A wide prefix and a long shortlist: a hard negative that is missed costs more than the time.
PREFIX, SHORTLIST_PER_RANK = 128, 4
# Beyond this many candidates a graph finds the shortlist sooner than a scan of all prefixes.
SCANNED = 100_000
SUFFIXES = (".tsv", ".jsonl")
_HALF = "[\ud800-\udfff]"  # of a surrogate pair, which JSON can write and UTF-8 cannot
_NOT_IN_TSV = re.compile(rf"[\t\n\r]|{_HALF}")

Progress = Callable[[int], None]


class Pair(NamedTuple):
    """An anchor and its positive; others: further texts that mean the same."""

    anchor: str
    positive: str
    others: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class MiningConfig:
    """What counts as a hard negative. Ranks leave out the anchor's own positives and itself.

    Attributes:
        negatives: how many for each anchor.
        relative_margin: only candidates that score at most this share of the positive's score.
        margin: only those that score at least this much below the positive; None for any.
        skip: the first ranks, not looked at.
        depth: the last rank looked at.
        sample: draw among the fitting ones, instead of taking the best ranked.
        seed: decides the draw.
        exact: score all candidates at full width, and do without the shortlist.

    Raises:
        QueryError: a number outside its range, or more negatives than ranks.
    """

    negatives: int = 1
    relative_margin: float = 0.95
    margin: float | None = None
    skip: int = 0
    depth: int = 100
    sample: bool = False
    seed: int = 0
    exact: bool = False

    def __post_init__(self) -> None:
        if self.negatives < 1 or self.skip < 0:
            raise QueryError(
                f"{self.negatives} negatives behind {self.skip} skipped ranks: expected at least "
                "1 and 0"
            )
        if self.depth < self.skip + self.negatives:
            raise QueryError(
                f"depth {self.depth} leaves {max(0, self.depth - self.skip)} ranks after the "
                f"first {self.skip}: {self.negatives} negatives need depth "
                f"{self.skip + self.negatives} or more"
            )
        if not self.relative_margin > 0:
            raise QueryError(f"relative margin {self.relative_margin}: expected a share above 0")

    def limit(self, positive: float) -> float:
        """The highest score of a negative beside a positive of this score."""
        # |…|: beside a positive of −0.2, 0.95 must not let −0.19 pass.
        limit = positive - (1 - self.relative_margin) * abs(positive)
        return limit if self.margin is None else min(limit, positive - self.margin)


@dataclass(frozen=True, slots=True)
class Mined:
    """A pair with its hard negatives, the best ranked first.

    positive_score, scores: cosines with the anchor. dropped: ranks that the margins left out.
    """

    anchor: str
    positive: str
    negatives: tuple[str, ...]
    positive_score: float
    scores: tuple[float, ...]
    dropped: int


@dataclass(frozen=True, slots=True)
class MiningSummary:
    """What came of it: pairs with all the negatives asked for, with fewer, with none.

    dropped_by_margin: ranks left out by the margins, over all pairs.
    """

    pairs: int
    candidates: int
    complete: int
    fewer: int
    none: int
    dropped_by_margin: int


def read_pairs(paths: Iterable[Path]) -> list[Pair]:
    """The pairs of training files; of paraphrases, the first is the anchor and the second read.

    Negatives that a file has already are not read. Raises DataError, also for files of sentences.
    """
    kinds = (Kind.PAIR, Kind.TRIPLET, Kind.PARAPHRASES)
    return [
        Pair(texts[0], texts[1], texts[2:] if kind is Kind.PARAPHRASES else ())
        for kind, texts in read_examples(paths, expects=kinds).examples
    ]


class Miner:
    """Pairs, and the candidates for their negatives: all positives, and the texts of a corpus.

    Texts are equal, and one candidate, where their letters and digits are. candidates: the texts.
    """

    def __init__(
        self,
        encoder: TextEncoder,
        pairs: Sequence[Pair],
        corpus: Iterable[str] = (),
        config: MiningConfig | None = None,
    ) -> None:
        self.config = config or MiningConfig()
        self.pairs = pairs
        self.candidates: list[str] = []
        self._encoder = encoder
        self._rows: dict[str, int] = {}  # identity -> row in candidates
        for pair in pairs:
            for text in (pair.positive, *pair.others):
                self._add(text)
        for text in corpus:
            if text.strip():
                self._add(text)
        self._related = self._relate()

    def _add(self, text: str) -> None:
        if self._rows.setdefault(identity(text), len(self.candidates)) == len(self.candidates):
            self.candidates.append(text)

    def _relate(self) -> dict[str, set[int]]:
        """Identity of a text -> rows of what it is paired with, whichever of the two is the anchor.

        The text's own row is among them.
        """
        related: dict[str, set[int]] = defaultdict(set)
        for pair in self.pairs:
            anchor = identity(pair.anchor)
            positives = [identity(text) for text in (pair.positive, *pair.others)]
            related[anchor].update(self._rows[text] for text in positives)
            if (row := self._rows.get(anchor)) is not None:
                for text in (anchor, *positives):
                    related[text].add(row)
        return dict(related)

    @property
    def work(self) -> int:
        """Candidates to encode and pairs to mine, for a progress bar."""
        return len(self.candidates) + len(self.pairs)

    def mine(
        self,
        scratch: str | Path | None = None,
        on_done: Progress | None = None,
    ) -> Iterator[Mined]:
        """Every pair in turn with its negatives: as many as fit, perhaps none.

        scratch: an existing folder to index in; by default the system's. on_done: called with the
        number of candidates just encoded, then of pairs just mined; they add up to `work`.
        """
        rows, dim = len(self.candidates), self._encoder.dim
        settings = SegmentConfig(
            prefix=min(PREFIX, dim),
            structure=Structure.FLAT if rows <= SCANNED else Structure.HNSW,
            storage=Storage.FLOAT32,  # the margins compare scores; half the disk is not worth it
        )
        with tempfile.TemporaryDirectory(dir=scratch, ignore_cleanup_errors=True) as folder:
            blocks = self._encoded(on_done)
            with Segment.build(Path(folder) / "candidates", blocks, settings) as segment:
                for start in range(0, len(self.pairs), BLOCK):
                    block = self.pairs[start : start + BLOCK]
                    yield from self._mine_block(segment, block, start)
                    if on_done is not None:
                        on_done(len(block))

    def _encoded(self, on_done: Progress | None) -> Iterator[Vectors]:
        for start in range(0, len(self.candidates), BLOCK):
            texts = self.candidates[start : start + BLOCK]
            yield self._encoder.encode(texts, role="document")
            if on_done is not None:
                on_done(len(texts))

    def _mine_block(self, segment: Segment, pairs: Sequence[Pair], first: int) -> Iterator[Mined]:
        """The pairs, the first of which has the number `first`, searched together."""
        vectors = self._encoder.encode([pair.anchor for pair in pairs], role="query")
        own = [self._related[identity(pair.anchor)] for pair in pairs]
        # Deep enough to find `depth` others even where all of its own come first.
        k = min(self.config.depth + max(map(len, own)), segment.rows)
        if self.config.exact:
            found = segment.exact(vectors, k)
        else:
            found = segment.search(vectors, k, shortlist=SHORTLIST_PER_RANK * k)
        positives = np.array([[self._rows[identity(pair.positive)]] for pair in pairs], np.int64)
        scores = segment.rerank(segment.rotate(vectors), positives, 1).scores[:, 0]
        for i, pair in enumerate(pairs):
            ranked = zip(found.rows[i].tolist(), found.scores[i].tolist(), strict=True)
            others = [(row, score) for row, score in ranked if row >= 0 and row not in own[i]]
            chosen, dropped = choose(others, float(scores[i]), self.config, first + i)
            yield Mined(
                pair.anchor,
                pair.positive,
                tuple(self.candidates[row] for row, _ in chosen),
                float(scores[i]),
                tuple(score for _, score in chosen),
                dropped,
            )

    def write(self, out: Path, on_done: Progress | None = None) -> MiningSummary:
        """Mine into a new file that the trainer reads: .tsv, or .jsonl for texts with line breaks.

        TSV has the columns anchor, positive and negative, or negative_1, negative_2, …; JSONL the
        fields anchor, positive and the list negatives. Pairs keep their order, and those with too
        few negatives their row. The file appears whole or not at all, and the scratch folder lies
        beside it. Raises SearchEngineError where `out` exists, cannot hold the texts, or no pair
        has a negative.
        """
        check_output(out)
        tsv = out.suffix == ".tsv"
        if tsv:
            self._check_lines(out)
        out = out.absolute()
        with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}.") as scratch:
            made = Path(scratch) / out.name
            with made.open("w", encoding="utf-8", newline="") as file:
                lines = _write_tsv if tsv else _write_jsonl
                mined = self.mine(scratch, on_done)
                summary = self._counted(lines(file, mined, self.config.negatives))
                file.flush()
                os.fsync(file.fileno())
            check_output(out)  # again: mining may have taken hours
            made.rename(out)
        return summary

    def _check_lines(self, out: Path) -> None:
        anchors = (pair.anchor for pair in self.pairs)
        positives = (pair.positive for pair in self.pairs)
        for texts in (anchors, positives, self.candidates):
            for text in texts:
                if found := _NOT_IN_TSV.search(text):
                    raise SearchEngineError(
                        f"{out}: TSV cannot hold the {found[0]!r} in {text[:40]!r}: "
                        "name a .jsonl file"
                    )

    def _counted(self, mined: Iterable[Mined]) -> MiningSummary:
        found = np.zeros(self.config.negatives + 1, np.int64)  # pairs by number of negatives
        dropped = 0
        for each in mined:
            found[len(each.negatives)] += 1
            dropped += each.dropped
        if not found[1:].any():
            raise SearchEngineError(
                f"none of {len(self.pairs)} pairs has a negative within the margins, of "
                f"{len(self.candidates)} candidates: add a corpus, or loosen the margins"
            )
        complete, none = int(found[-1]), int(found[0])
        fewer = len(self.pairs) - complete - none
        return MiningSummary(len(self.pairs), len(self.candidates), complete, fewer, none, dropped)


def choose(
    ranked: Sequence[tuple[int, float]], positive: float, config: MiningConfig, number: int = 0
) -> tuple[list[tuple[int, float]], int]:
    """The negatives among (row, score), and how many ranks the margins left out.

    ranked: best first, without the anchor's own. positive: the positive's score. number: of the
    pair; with the seed it decides a draw. What is drawn stays in the order of ranks.
    """
    seen = ranked[config.skip : config.depth]
    limit = config.limit(positive)
    fitting = [item for item in seen if item[1] <= limit]
    dropped = len(seen) - len(fitting)
    if config.sample and len(fitting) > config.negatives:
        rng = random.Random(f"mine {config.seed} {number}")
        drawn = sorted(rng.sample(range(len(fitting)), config.negatives))
        return [fitting[i] for i in drawn], dropped
    return fitting[: config.negatives], dropped


def check_output(out: Path) -> None:
    """SearchEngineError unless `out` names a new .tsv or .jsonl file in a folder that is there."""
    if out.suffix not in SUFFIXES:
        raise SearchEngineError(f"{out}: expected a name that ends in {' or '.join(SUFFIXES)}")
    if out.exists():
        raise SearchEngineError(f"{out} exists: name a new file, or remove this one")
    if not out.absolute().parent.is_dir():
        raise SearchEngineError(f"{out}: no folder {out.parent}: make it first")


def _write_tsv(file: TextIO, mined: Iterable[Mined], negatives: int) -> Iterator[Mined]:
    numbered = [f"negative_{i}" for i in range(1, negatives + 1)]
    columns = ["anchor", "positive", *(numbered if negatives > 1 else ["negative"])]
    file.write("\t".join(columns) + "\n")
    for each in mined:
        missing = [""] * (negatives - len(each.negatives))
        file.write("\t".join([each.anchor, each.positive, *each.negatives, *missing]) + "\n")
        yield each


def _write_jsonl(file: TextIO, mined: Iterable[Mined], negatives: int) -> Iterator[Mined]:
    for each in mined:
        row = {"anchor": each.anchor, "positive": each.positive, "negatives": each.negatives}
        line = json.dumps(row, ensure_ascii=False)
        file.write((json.dumps(row) if re.search(_HALF, line) else line) + "\n")
        yield each
