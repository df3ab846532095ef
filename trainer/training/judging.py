"""What judges the steps of a run, and whether its result is better than the base as shipped.

A measure gives each item of its data (a question, a labelled text, a scored pair) a value by every
prefix length, so that two encoders are compared on the same items: by a paired bootstrap (Efron,
"Bootstrap Methods: Another Look at the Jackknife", 1979).
"""

import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from searchengine.trainer.encoder import Encoder
from searchengine.trainer.errors import ConfigError, DataError
from searchengine.trainer.evaluation.intervals import (
    Statistic,
    Values,
    bootstrap,
    spearman_of_draws,
)
from searchengine.trainer.evaluation.sts import STS_COLUMNS, prefix_cosines, read_sts
from searchengine.trainer.training.examples import (
    Examples,
    Kind,
    Row,
    column_names,
    draw,
    identity,
    read_file,
    read_labelled,
    texts_that_match,
)
from searchengine.trainer.training.train_config import Objective, TrainConfig

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
        every = {dim: np.arange(len(x))[None] for dim, x in values.items()}
        return {dim: float(self._statistic(x)(every[dim])[0]) for dim, x in values.items()}

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


@dataclass(frozen=True, slots=True)
class Split:
    """Examples to train on, and rows to judge by: () where too few could be held out."""

    train: Examples
    rows: tuple[Row, ...] = ()


def make_measures(
    config: TrainConfig, examples: Examples, measure: Measure | None = None
) -> tuple[list[Measure], Split]:
    """The measures of a run, of which the first chooses the step; and what is held out for them.

    They are the caller's, and that of the `dev` files; without both, of held-out examples. None
    for sentences alone, or where too few can be held out.
    """
    measures = [] if measure is None else [measure]
    if config.dev:
        return [*measures, _of_files(config, examples)], Split(examples)
    if measures:
        return measures, Split(examples)
    split = hold_out(examples, config.seed)
    if not split.rows:
        return [], split
    where = "held-out examples"
    if config.objective is Objective.CLASSIFICATION:
        return [of_labels([(row.anchor, row.label) for row in split.rows], where)], split
    if config.objective is Objective.SIMILARITY:
        if len({row.score for row in split.rows}) == 1:  # no order to agree with
            return [], Split(examples)
        pairs = [(row.score, row.anchor, row.positive) for row in split.rows]
        return [of_pairs(pairs, where)], split
    return [of_anchors(split.rows, split.train, config.seed, where)], split


def _of_files(config: TrainConfig, examples: Examples) -> Measure:
    for folder in filter(Path.is_dir, config.dev):
        raise ConfigError(
            f"dev is {folder}, a folder: expected files; to judge by search quality, pass "
            "measure=searchengine.measure.judged_folder.retrieval(folder)"
        )
    if config.objective is Objective.CLASSIFICATION:
        return of_labels(read_labelled(config.dev, config.columns), "dev")
    if _have_scores(config):
        pairs = read_sts(config.dev)
        if len({score for score, _, _ in pairs}) == 1:
            raise DataError(f"all {len(pairs)} pairs of the dev files have one score: no order")
        return of_pairs(pairs, "dev")
    return of_anchors(_read_rows(config), examples, config.seed, "dev")


def _have_scores(config: TrainConfig) -> bool:
    """Whether the dev files are STS files, by their columns; else they have pairs."""
    if config.objective is Objective.SIMILARITY:
        return True
    scored = [path for path in config.dev if {*STS_COLUMNS} <= {*column_names(path)}]
    if scored and len(scored) < len(config.dev):
        raise ConfigError(
            f"of the dev files {len(scored)} have scored pairs (columns {', '.join(STS_COLUMNS)}), "
            f"such as {scored[0]}, and the others have none: give files of one kind"
        )
    return bool(scored)


def _read_rows(config: TrainConfig) -> list[Row]:
    """The pairs of the dev files. Raises DataError for texts that have no positive."""
    rng = random.Random(f"dev {config.seed}")
    rows = []
    for path in config.dev:
        for kind, texts in read_file(path, config.columns):
            if kind is Kind.SENTENCE:
                raise DataError(
                    f"{path}: holds single sentences, and dev files judge by pairs: give an anchor "
                    "and its positive, or pairs with scores"
                )
            rows.append(draw(kind, texts, rng))
    positives = len({row.positive for row in rows})
    if positives < MIN_ITEMS:
        raise DataError(
            f"different positives in the dev files: {positives}; expected {MIN_ITEMS} or more, "
            "as fewer would choose a step by chance"
        )
    return rows


def of_pairs(pairs: Sequence[tuple[float, str, str]], where: str) -> Measure:
    """Spearman's correlation of the cosines of pairs with their scores."""
    sides = [first for _, first, _ in pairs], [second for _, _, second in pairs]

    def values(encoder: Encoder, dims: Sequence[int]) -> dict[int, Values]:
        first, second = (encoder.encode(texts) for texts in sides)
        return {dim: prefix_cosines(first, second, dim) for dim in dims}

    return Measure(
        f"Spearman's correlation on {where}", values, np.array([score for score, _, _ in pairs])
    )


def of_labels(labelled: Sequence[tuple[str, str]], where: str) -> Measure:
    """The accuracy of the encoder's classifier."""

    def values(encoder: Encoder, dims: Sequence[int]) -> dict[int, Values]:
        classifier = encoder.model.classifier
        assert classifier is not None
        vectors = encoder.encode([text for text, _ in labelled], role="document")
        rows = torch.as_tensor(vectors, device=next(classifier.parameters()).device)
        right = {}
        with torch.inference_mode():
            for dim in dims:
                predicted = classifier(rows, dim).argmax(dim=1).tolist()
                pairs = zip(predicted, labelled, strict=True)
                right[dim] = np.array([float(classifier.labels[i] == x) for i, (_, x) in pairs])
        return right

    return Measure(f"accuracy on {where}", values)


def of_anchors(rows: Sequence[Row], examples: Examples, seed: int, where: str) -> Measure:
    """nDCG@10 of each anchor's positive among the positives of all rows and of some examples.

    One text is right, so that is 1 / log2(1 + its rank), or 0 after the tenth.
    """
    corpus = list(dict.fromkeys([*(row.positive for row in rows), *_positives(examples, seed)]))
    corpus = corpus[: max(CORPUS, len({row.positive for row in rows}))]
    place = {text: i for i, text in enumerate(corpus)}
    own = np.array([place[row.positive] for row in rows])
    # An anchor that is itself in the corpus would be its own nearest text.
    itself = [(i, place[row.anchor]) for i, row in enumerate(rows) if row.anchor in place]
    itself = [(i, at) for i, at in itself if at != own[i]]

    def values(encoder: Encoder, dims: Sequence[int]) -> dict[int, Values]:
        queries = encoder.encode([row.anchor for row in rows], role="query")
        vectors = encoder.encode(corpus, role="document")
        gains = {}
        for dim in dims:
            short = vectors[:, :dim]
            lengths = np.maximum(np.linalg.norm(short, axis=1), 1e-12)
            cosines = queries[:, :dim] @ short.T / lengths  # an anchor's length changes no order
            if itself:
                cosines[tuple(np.array(itself).T)] = -np.inf
            # A text with the same cosine ranks before the positive: equal vectors score 0.
            better = (cosines >= cosines[np.arange(len(own)), own][:, None]).sum(axis=1)
            gains[dim] = np.where(better <= 10, 1 / np.log2(1 + better), 0.0)
        return gains

    return Measure(f"nDCG@10 on {where}", values)


def _positives(examples: Examples, seed: int) -> Iterator[str]:
    """The positives of CORPUS examples at most."""
    rng = random.Random(f"corpus {seed}")
    for place in rng.sample(range(len(examples)), min(CORPUS, len(examples))):
        if positive := draw(*examples[place], rng).positive:
            yield positive


def unjudged(config: TrainConfig, examples: Examples) -> str:
    """Why nothing is held out of these examples, in words."""
    if config.objective is Objective.CLASSIFICATION:
        return f"{len(examples)} labels are too few to hold some out (from {MIN_LABELS:,} on)"
    if len(examples.of_kind(Kind.SENTENCE)) == len(examples):
        return "single sentences have no other text that judges them"
    return f"fewer than {MIN_ITEMS} examples can be held out"


def hold_out(examples: Examples, seed: int) -> Split:
    """Draw rows for judging from a tenth of the examples that have a positive or a label.

    What shares a text with a held-out example, but for hard negatives, is not trained on. Examples
    whose text many others have are not held out, and every label keeps an example to learn from.
    """
    rng = random.Random(f"hold out {seed}")
    labels = Counter(examples[int(i)][1][1] for i in examples.of_kind(Kind.LABELLED))
    room = round(SHARE * (len(examples) - len(examples.of_kind(Kind.SENTENCE))))
    if room < (MIN_LABELS * SHARE if labels else MIN_ITEMS):
        return Split(examples)
    most, places_of = room // MIN_ITEMS, _places_by_text(examples)
    held: set[int] = set()
    rows: list[Row] = []
    for place in map(int, np.random.default_rng(seed).permutation(len(examples))):
        kind, texts = examples[place]
        linked = {i for text in texts_that_match((kind, texts)) for i in places_of(text)}
        if kind is Kind.SENTENCE or len(linked) > min(most, room) or linked & held:
            continue
        lost = Counter(x[1] for k, x in (examples[i] for i in linked) if k is Kind.LABELLED)
        if any(labels[label] <= count for label, count in lost.items()):
            continue
        held |= linked
        labels -= lost
        room -= len(linked)
        rows.append(draw(kind, texts, rng))
        if room <= 0 or len(rows) == MAX_HELD_OUT:
            break
    return Split(examples.without(held), tuple(rows)) if len(rows) >= MIN_ITEMS else Split(examples)


def _places_by_text(examples: Examples) -> Callable[[str], Sequence[int]]:
    """Which examples have a text, as `identity` compares texts; 12 bytes for each text."""
    hashes = np.fromiter(
        (hash(identity(text)) for example in examples for text in texts_that_match(example)),
        np.int64,
    )
    counts = np.fromiter((len(texts_that_match(example)) for example in examples), np.int64)
    owners = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
    order = np.argsort(hashes, kind="stable")
    hashes, owners = hashes[order], owners[order]

    def places(text: str) -> Sequence[int]:
        number = hash(identity(text))
        start, end = (np.searchsorted(hashes, number, side) for side in ("left", "right"))
        found: list[int] = owners[start:end].tolist()
        return found

    return places
