"""What judges the steps of a run, and whether its result is better than the base as shipped.

A measure gives each item of its data (a question, a labelled text, a scored pair) a value by every
prefix length, so that two encoders are compared on the same items: by a paired bootstrap (Efron,
"Bootstrap Methods: Another Look at the Jackknife", 1979).
"""

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from searchengine.trainer.encoder import Encoder
from searchengine.trainer.errors import DataError
from searchengine.trainer.evaluation.intervals import (
    Statistic,
    Values,
    bootstrap,
    spearman_of_draws,
)
from searchengine.trainer.evaluation.sts import prefix_cosines, unit_prefix
from searchengine.trainer.training.examples import Batch, Row, Split, identity, read_dev
from searchengine.trainer.training.train_config import TrainConfig

Scores = Mapping[int, float]
# Fewer items would tell steps apart by chance: of 20, one more right answer is 5 points.
MIN_ITEMS = 20
# Fewer labels are not held out: a tenth of them could not show a difference of some points.
MIN_LABELS = 2000
SHARE, MAX_HELD_OUT = 0.1, 512
CORPUS = 2000
"""Texts among which an anchor looks for its positive: among few, every encoder finds it."""
RESAMPLES = 1999


@dataclass(frozen=True, slots=True)
class Measure:
    """A measure of encoders: higher is better.

    name: in words, such as "nDCG@10 on scifact (dev)". values: an encoder and prefix lengths → by
    prefix length a value for each item, (n,). gold: (n,) people's scores of pairs whose cosines the
    values are; the measure is then Spearman's correlation, else the mean of the values. digest: of
    the data, so that a resumed run has the same.
    """

    name: str
    values: Callable[[Encoder, Sequence[int]], Mapping[int, Values]]
    gold: Values | None = None
    digest: str = ""

    def scores(self, encoder: Encoder, dims: Sequence[int]) -> dict[int, float]:
        """The score by prefix length."""
        return self.summarize(self.values(encoder, dims))

    def summarize(self, values: Mapping[int, Values]) -> dict[int, float]:
        """The score by prefix length of an encoder's values."""
        every = np.arange(len(next(iter(values.values()))))[None]
        return {dim: float(self._statistic(x)(every)[0]) for dim, x in values.items()}

    def _statistic(self, values: Values) -> Statistic:
        """The score as a statistic of draws of items."""
        if self.gold is not None:
            return spearman_of_draws(values, self.gold)
        return lambda places: np.asarray(values[places].mean(axis=1))

    def compare(
        self,
        result: Mapping[int, Values],
        base: Mapping[int, Values],
        weights: Mapping[int, float],
    ) -> "Verdict":
        """A result against the base, both by the result's prefix lengths."""
        n = len(next(iter(result.values())))
        pairs = {dim: (self._statistic(x), self._statistic(base[dim])) for dim, x in result.items()}

        def difference(places: NDArray[np.int64]) -> Values:
            terms = (weights[dim] * (x(places) - y(places)) for dim, (x, y) in pairs.items())
            return np.asarray(sum(terms) / sum(weights[dim] for dim in pairs))

        low, high = bootstrap(n, difference, 4, RESAMPLES).tolist()
        return Verdict(
            self.name, self.summarize(base), self.summarize(result), n, low, high, weights
        )


@dataclass(frozen=True, slots=True)
class Verdict:
    """A result beside the base as shipped, on the same n items.

    base, result: scores by prefix length of the result. low, high: the 95 % interval of the
    difference of their means, weighted as in the loss.
    """

    measure: str
    base: Scores
    result: Scores
    n: int
    low: float
    high: float
    weights: Mapping[int, float]

    @property
    def better(self) -> bool:
        """Whether the result is better beyond the noise of the items."""
        return self.low > 0 and self.n >= MIN_ITEMS

    def __str__(self) -> str:
        before, after = (mean(scores, self.weights) for scores in (self.base, self.result))
        prefixes = ", mean over the prefixes" if len(self.result) > 1 else ""
        fell = "".join(
            f"; {dim} dimensions fell from {self.base[dim]:.4f} to {score:.4f}"
            for dim, score in self.result.items()
            if after > before and score < self.base[dim]
        )
        return (
            f"{self.measure} {after:.4f} against {before:.4f} for the base as shipped{prefixes} "
            f"(difference {after - before:+.4f}, 95 % interval {self.low:+.4f} to "
            f"{self.high:+.4f}, n {self.n}{fell})"
        )

    def figures(self) -> dict[str, Any]:
        """Everything as JSON values, for the recipe."""
        scores = {"base": self.base, "result": self.result}
        by_dim = {name: {str(dim): x for dim, x in each.items()} for name, each in scores.items()}
        return {"measure": self.measure, "n": self.n, "low": self.low, "high": self.high} | by_dim


def mean(scores: Scores, weights: Mapping[int, float]) -> float:
    """The mean over the prefixes, weighted."""
    return sum(weights[dim] * x for dim, x in scores.items()) / sum(weights[dim] for dim in scores)


def make_measures(
    config: TrainConfig, split: Split, measure: Measure | None = None
) -> tuple[list[Measure], Split]:
    """The measures of a run (the first one chooses the step), and the examples to train on.

    The caller's, and that of the `dev` files; without both, of examples that are held out, if any.
    """
    measures = [] if measure is None else [measure]
    rows: Batch = read_dev(config)
    where = "dev"
    if not measures and not rows:
        split = hold_out(split, config.seed)
        rows, where = split.rows, "held-out examples"
    if rows:
        measures.append(measure_of(rows, split.train, config.seed, where))
    return measures, split


def measure_of(rows: Batch, examples: Batch, seed: int, where: str) -> Measure:
    """The measure that rows of a kind give. Raises DataError for rows that can judge nothing.

    examples: the positives of some are candidates beside those of `rows`.
    """
    if rows[0].label:
        return Measure(f"accuracy on {where}", partial(right_labels, rows))
    if rows[0].score is not None:
        gold = np.array([row.score for row in rows], dtype=np.float64)
        if not np.ptp(gold):
            raise DataError(f"all {len(rows)} pairs of the dev files have one score: no order")
        return Measure(f"Spearman's correlation on {where}", partial(pair_cosines, rows), gold)
    own = dict.fromkeys(row.positive for row in rows)
    if len(own) < MIN_ITEMS:
        raise DataError(
            f"the dev files must have {MIN_ITEMS} different positives or more, got {len(own)}; "
            "fewer would choose a step by chance"
        )
    sample = random.Random(f"corpus {seed}").sample(examples, min(CORPUS, len(examples)))
    corpus = [*(own | dict.fromkeys(row.positive for row in sample))][: max(CORPUS, len(own))]
    return Measure(f"nDCG@10 on {where}", partial(gains, rows, corpus))


def pair_cosines(rows: Batch, encoder: Encoder, dims: Sequence[int]) -> dict[int, Values]:
    """By prefix length, the cosine of each pair."""
    first = encoder.encode([row.anchor for row in rows])
    second = encoder.encode([row.positive for row in rows])
    return {dim: prefix_cosines(first, second, dim) for dim in dims}


def right_labels(rows: Batch, encoder: Encoder, dims: Sequence[int]) -> dict[int, Values]:
    """By prefix length, 1 for each text whose label the encoder's classifier gives, else 0."""
    labels = np.array([row.label for row in rows])
    predicted = encoder.classify([row.anchor for row in rows], dims)
    return {dim: 1.0 * (np.array(x) == labels) for dim, x in zip(dims, predicted, strict=True)}


def gains(
    rows: Batch, corpus: Sequence[str], encoder: Encoder, dims: Sequence[int]
) -> dict[int, Values]:
    """By prefix length, the nDCG@10 of each anchor's positive in a corpus that has it.

    One text is right, so that is 1 / log2(1 + its rank), or 0 after the tenth.
    """
    queries = encoder.encode([row.anchor for row in rows], role="query")
    vectors = encoder.encode(corpus, role="document")
    place = {text: i for i, text in enumerate(corpus)}
    right = np.array([[place[row.positive]] for row in rows])
    # An anchor that is itself in the corpus would be its own nearest text.
    itself = [(i, place[x.anchor]) for i, x in enumerate(rows) if x.anchor in place]
    itself = [(i, at) for i, at in itself if at != right[i]]
    result = {}
    for dim in dims:
        cosines = unit_prefix(queries, dim) @ unit_prefix(vectors, dim).T
        for pair in itself:
            cosines[pair] = -np.inf
        # A text with the same cosine ranks before the positive: equal vectors score 0.
        ranks = (cosines >= np.take_along_axis(cosines, right, 1)).sum(axis=1)
        result[dim] = np.where(ranks <= 10, 1 / np.log2(1 + ranks), 0.0)
    return result


def unjudged(rows: Batch) -> str:
    """Why nothing is held out of these examples, in words."""
    if rows[0].label:
        return f"{len(rows)} labels are too few to hold some out (from {MIN_LABELS:,} on)"
    if rows[0].one_text:
        return "single sentences have no other text that judges them"
    return f"fewer than {MIN_ITEMS} examples can be held out"


def hold_out(split: Split, seed: int) -> Split:
    """Draw rows for judging from a tenth of the examples that have a positive or a label.

    What shares a text with a held-out example, but for hard negatives, is not trained on. Examples
    whose text many others have are not held out, and every label keeps an example to learn from.
    Pairs of a single score are not: they have no order.
    """
    examples, room = split.train, round(SHARE * len(split.train))
    least = MIN_LABELS * SHARE if examples[0].label else MIN_ITEMS
    if examples[0].one_text or room < least:
        return split
    places, most = defaultdict[str, list[int]](list), room // MIN_ITEMS
    for place, row in enumerate(examples):
        for text in row.matching:
            places[identity(text)].append(place)
    labels = Counter(row.label for row in examples)
    held: set[int] = set()
    rows: list[Row] = []
    for place in np.random.default_rng(seed).permutation(len(examples)).tolist():
        row = examples[place]
        linked = {i for text in row.matching for i in places[identity(text)]}
        if len(linked) > min(most, room) or linked & held:
            continue
        lost = Counter(examples[i].label for i in linked)
        if any(labels[label] <= count for label, count in lost.items()):
            continue
        held |= linked
        labels -= lost
        room -= len(linked)
        rows.append(row)
        if room <= 0 or len(rows) == MAX_HELD_OUT:
            break
    scores = {row.score for row in rows}
    if len(rows) < MIN_ITEMS or (len(scores) == 1 and None not in scores):
        return split
    train = [row for place, row in enumerate(examples) if place not in held]
    return Split(train, rows, split.excluded)
