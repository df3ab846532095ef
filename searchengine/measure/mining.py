"""Hard negatives: for every anchor, texts that score high and are not its positives.

The candidates are indexed in a temporary folder and searched coarse to fine, so that memory grows
linearly with the texts.

    miner = Miner(Encoder.load("starter"), read_pairs([Path("pairs.tsv")]))
    summary = miner.write(Path("triplets.tsv"))
"""

import json
import os
import re
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TextIO

import numpy as np

from searchengine.engine import TextEncoder
from searchengine.errors import SearchEngineError
from searchengine.indexer.arrays import Floats
from searchengine.indexer.config import Structure
from searchengine.indexer.segment import Segment, SegmentConfig, Storage
from searchengine.trainer.training.example_files import identity
from searchengine.trainer.training.examples import read_examples
from searchengine.trainer.training.hard_negatives import MiningConfig, choose
from searchengine.trainer.training.rows import Kind

# Texts encoded, and anchors searched, at a time.
BLOCK = 1024
# A wide prefix and a long shortlist: a missed hard negative costs more than time.
PREFIX, SHORTLIST_PER_RANK = 128, 4
# With more candidates, a graph finds the shortlist faster than a scan of all prefixes.
MAX_SCANNED = 100_000
SUFFIXES = (".tsv", ".jsonl")
_SURROGATE = "[\ud800-\udfff]"  # half a surrogate pair: JSON can write it, UTF-8 cannot
_NOT_IN_TSV = re.compile(rf"[\t\n\r]|{_SURROGATE}")

Progress = Callable[[int], None]


class Pair(NamedTuple):
    """An anchor and its positive; others: further texts with the same meaning."""

    anchor: str
    positive: str
    others: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Mined:
    """A pair with its hard negatives, the best ranked first.

    positive_score, scores: cosines with the anchor. dropped: ranks outside the margins.
    """

    anchor: str
    positive: str
    negatives: tuple[str, ...]
    positive_score: float
    scores: tuple[float, ...]
    dropped: int


@dataclass(frozen=True, slots=True)
class MiningSummary:
    """Numbers of pairs: complete with all negatives, with fewer, with none.

    dropped_by_margin: ranks outside the margins, over all pairs.
    """

    pairs: int
    candidates: int
    complete: int
    fewer: int
    none: int
    dropped_by_margin: int


def read_pairs(paths: Iterable[Path]) -> list[Pair]:
    """Read the pairs of training files; of paraphrases, the first is the anchor.

    Existing negatives are ignored. Raises DataError, also for files of sentences.
    """
    kinds = (Kind.PAIR, Kind.TRIPLET, Kind.PARAPHRASES)
    return [
        Pair(texts[0], texts[1], texts[2:] if kind is Kind.PARAPHRASES else ())
        for kind, texts in read_examples(paths, expects=kinds)
    ]


class Miner:
    """Pairs, and the candidates for their negatives: all positives, and the texts of a corpus.

    Texts with equal letters and digits are one candidate. candidates: the texts.
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
        """Identity of a text -> rows of the texts paired with it, in either role, and its row."""
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
        """Yield every pair with its negatives, perhaps none.

        scratch: existing folder for the index; by default the system's. on_done: callback for the
        number of candidates just encoded, then of pairs just mined; the sum is `work`.
        """
        rows, dim = len(self.candidates), self._encoder.dim
        settings = SegmentConfig(
            prefix=min(PREFIX, dim),
            structure=Structure.FLAT if rows <= MAX_SCANNED else Structure.HNSW,
            storage=Storage.FLOAT32,  # the margins compare exact scores
        )
        with tempfile.TemporaryDirectory(dir=scratch, ignore_cleanup_errors=True) as folder:
            blocks = self._encoded(on_done)
            with Segment.build(Path(folder) / "candidates", blocks, settings) as segment:
                for start in range(0, len(self.pairs), BLOCK):
                    block = self.pairs[start : start + BLOCK]
                    yield from self._mine_block(segment, block, start)
                    if on_done is not None:
                        on_done(len(block))

    def _encoded(self, on_done: Progress | None) -> Iterator[Floats]:
        for start in range(0, len(self.candidates), BLOCK):
            texts = self.candidates[start : start + BLOCK]
            yield self._encoder.encode(texts, role="document")
            if on_done is not None:
                on_done(len(texts))

    def _mine_block(self, segment: Segment, pairs: Sequence[Pair], first: int) -> Iterator[Mined]:
        """Mine pairs with one search; `first`: number of the first pair."""
        vectors = self._encoder.encode([pair.anchor for pair in pairs], role="query")
        related = [self._related[identity(pair.anchor)] for pair in pairs]
        # Enough for `depth` candidates even if all related texts rank first.
        k = min(self.config.depth + max(map(len, related)), segment.rows)
        if self.config.exact:
            result = segment.exact(vectors, k)
        else:
            result = segment.search(vectors, k, shortlist=SHORTLIST_PER_RANK * k)
        positives = np.array([[self._rows[identity(pair.positive)]] for pair in pairs], np.int64)
        scores = segment.rerank(vectors, positives, 1).scores[:, 0]
        for i, pair in enumerate(pairs):
            ranked = zip(result.rows[i].tolist(), result.scores[i].tolist(), strict=True)
            candidates = [
                (row, score) for row, score in ranked if row >= 0 and row not in related[i]
            ]
            chosen, dropped = choose(candidates, float(scores[i]), self.config, first + i)
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
        fields anchor, positive and the list negatives. Pairs keep their order; pairs with too few
        negatives are written too. The file appears whole or not at all; the temporary folder is
        beside it. Raises SearchEngineError if `out` exists, cannot contain the texts, or no pair
        has a negative.
        """
        check_output(out)
        tsv = out.suffix == ".tsv"
        if tsv:
            self._check_lines(out)
        out = out.absolute()
        with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}.") as scratch:
            temporary = Path(scratch) / out.name
            with temporary.open("w", encoding="utf-8", newline="") as file:
                write = _write_tsv if tsv else _write_jsonl
                mined = self.mine(scratch, on_done)
                summary = self._summary(write(file, mined, self.config.negatives))
                file.flush()
                os.fsync(file.fileno())
            check_output(out)  # again: mining may have taken hours
            temporary.rename(out)
        return summary

    def _check_lines(self, out: Path) -> None:
        anchors = (pair.anchor for pair in self.pairs)
        positives = (pair.positive for pair in self.pairs)
        for texts in (anchors, positives, self.candidates):
            for text in texts:
                if match := _NOT_IN_TSV.search(text):
                    raise SearchEngineError(
                        f"{out}: TSV cannot contain {match[0]!r}, got {text[:40]!r}; "
                        "name a .jsonl file"
                    )

    def _summary(self, mined: Iterable[Mined]) -> MiningSummary:
        counts = np.zeros(self.config.negatives + 1, np.int64)  # pairs by number of negatives
        dropped = 0
        for pair in mined:
            counts[len(pair.negatives)] += 1
            dropped += pair.dropped
        if not counts[1:].any():
            raise SearchEngineError(
                f"none of {len(self.pairs)} pairs has a negative within the margins, of "
                f"{len(self.candidates)} candidates; add a corpus, or loosen the margins"
            )
        complete, none = int(counts[-1]), int(counts[0])
        fewer = len(self.pairs) - complete - none
        return MiningSummary(len(self.pairs), len(self.candidates), complete, fewer, none, dropped)


def check_output(out: Path) -> None:
    """Raise SearchEngineError unless `out` is a new .tsv or .jsonl file in an existing folder."""
    if out.suffix not in SUFFIXES:
        raise SearchEngineError(f"{out}: the name must end in {' or '.join(SUFFIXES)}")
    if out.exists():
        raise SearchEngineError(f"{out} exists; name a new file, or remove this one")
    if not out.absolute().parent.is_dir():
        raise SearchEngineError(f"{out}: the folder {out.parent} does not exist; create it first")


def _write_tsv(file: TextIO, mined: Iterable[Mined], negatives: int) -> Iterator[Mined]:
    numbered = [f"negative_{i}" for i in range(1, negatives + 1)]
    columns = ["anchor", "positive", *(numbered if negatives > 1 else ["negative"])]
    file.write("\t".join(columns) + "\n")
    for pair in mined:
        missing = [""] * (negatives - len(pair.negatives))
        file.write("\t".join([pair.anchor, pair.positive, *pair.negatives, *missing]) + "\n")
        yield pair


def _write_jsonl(file: TextIO, mined: Iterable[Mined], _: int) -> Iterator[Mined]:
    for pair in mined:
        row = {"anchor": pair.anchor, "positive": pair.positive, "negatives": pair.negatives}
        line = json.dumps(row, ensure_ascii=False)
        file.write((json.dumps(row) if re.search(_SURROGATE, line) else line) + "\n")
        yield pair
