"""Which step of a run is best: a score per prefix length, higher is better.

Scores come from a measure that the caller gives, from dev files, or from held-out examples: enough
to tell steps apart, with texts that are never trained on.
"""

import hashlib
import random
from array import array
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from searchengine.trainer.encoder import Encoder
from searchengine.trainer.errors import ConfigError, DataError
from searchengine.trainer.evaluation.geometry import alignment, uniformity
from searchengine.trainer.evaluation.labels import LabelledText, accuracy
from searchengine.trainer.evaluation.sts import (
    STS_COLUMNS,
    Remembered,
    ScoredPair,
    read_sts,
    sts,
)
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
# People's score, of 5, from which a pair means the same (SimCSE, arXiv 2104.08821, section 5).
SAME_MEANING_SCORE = 4.0
# Fewer would choose steps by chance: of 20, one more right answer is 5 points.
MIN_HELD_OUT = 20
SHARE, MAX_HELD_OUT = 0.1, 512


@dataclass(frozen=True, slots=True)
class Split:
    """Examples to train on, and rows to judge by; rows is () where too few could be held out.

    examples_held: how many examples are not trained on. A row is judged for each group of examples
    that share a text.
    """

    train: Examples
    rows: tuple[Row, ...] = ()
    examples_held: int = 0


@dataclass(frozen=True, slots=True)
class Judgement:
    """The scores of a step by prefix length; alignment and uniformity of the full width.

    alignment, uniformity: None without STS files; alignment also if no pair is scored 4 or more.
    Scores are Spearman's correlation on scored pairs, the accuracy on labels, and on other pairs,
    held out or of dev files, the share of anchors whose own positive is nearest. right: where
    scores are shares of anchors, which of them are right, (n,).
    """

    scores: Scores = field(default_factory=dict)
    alignment: float | None = None
    uniformity: float | None = None
    right: Mapping[int, NDArray[np.bool_]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Measure:
    """A measure of an encoder that comes with the call of `train`.

    name: in words, such as "nDCG@10 on scifact". scores: an encoder to scores by prefix length,
    higher is better.
    """

    name: str
    scores: Callable[[Encoder], Scores]


Judge = Callable[[Encoder], Judgement]


def make_judge(
    config: TrainConfig, examples: Examples, measure: Measure | None = None
) -> tuple[Judge | None, Split]:
    """The judge of a run, and what is held out from training.

    Without `dev` files and `measure` some examples are held out. None for sentences alone, or too
    few examples to hold enough out. Raises ConfigError for `dev` files beside a measure.
    """
    if measure is not None:
        if config.dev:
            raise ConfigError(f"dev files beside {measure.name}: choose one to judge the steps")
        scores = measure.scores
        return lambda encoder: Judgement(scores(encoder)), Split(examples)
    if config.dev:
        return _dev_judge(config), Split(examples)
    split = hold_out(examples, config.seed)
    if not split.rows:
        return None, split
    if config.objective is Objective.CLASSIFICATION:
        held_out = [(row.anchor, row.label) for row in split.rows]
        return lambda encoder: _judge_labels(encoder, held_out), split
    if config.objective is Objective.SIMILARITY:
        if len({row.score for row in split.rows}) == 1:  # no order to agree with
            return None, Split(examples)
        held_pairs = [(row.score, row.anchor, row.positive) for row in split.rows]
        return lambda encoder: Judgement(spearmans(encoder, held_pairs)), split
    return lambda encoder: _judge_anchors(top1_right(encoder, split.rows)), split


def _dev_judge(config: TrainConfig) -> Judge:
    """The judge by the dev files."""
    for folder in filter(Path.is_dir, config.dev):
        raise ConfigError(
            f"dev is {folder}, a folder: expected files; to judge by search quality, pass "
            "measure=searchengine.measure.judged_folder.retrieval(folder)"
        )
    if config.objective is Objective.CLASSIFICATION:
        labelled = read_labelled(config.dev, config.columns)
        return lambda encoder: _judge_labels(encoder, labelled)
    if dev_has_scores(config):
        pairs = read_sts(config.dev)
        return lambda encoder: judge_pairs(encoder, pairs)
    rows = read_dev_rows(config)
    return lambda encoder: _judge_anchors(top1_right(encoder, rows))


def measured_by(config: TrainConfig, measure: Measure | None = None) -> str:
    """What `make_judge` judges by, in words."""
    if measure is not None:
        return measure.name
    name = "spearman" if config.dev and dev_has_scores(config) else "top-1 accuracy"
    if config.objective is Objective.CLASSIFICATION:
        name = "accuracy"
    elif config.objective is Objective.SIMILARITY:
        name = "spearman"
    return f"{name} on {'dev' if config.dev else 'held-out examples'}"


def dev_has_scores(config: TrainConfig) -> bool:
    """Whether the dev files are STS files, by their columns; else they have pairs.

    Raises ConfigError if some have scores and others not.
    """
    if config.objective is Objective.SIMILARITY:
        return True
    scored = [path for path in config.dev if {*STS_COLUMNS} <= {*column_names(path)}]
    if scored and len(scored) < len(config.dev):
        raise ConfigError(
            f"of the dev files {len(scored)} have scored pairs (columns {', '.join(STS_COLUMNS)}), "
            f"such as {scored[0]}, and the others have none: give files of one kind"
        )
    return bool(scored)


def read_dev_rows(config: TrainConfig) -> list[Row]:
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
    if positives < MIN_HELD_OUT:
        raise DataError(
            f"different positives in the dev files: {positives}; expected {MIN_HELD_OUT} or more, "
            "as fewer would choose a step by chance"
        )
    return rows


def spearmans(encoder: Encoder | Remembered, pairs: Sequence[ScoredPair]) -> dict[int, float]:
    """Spearman's correlation of cosines and scores, by prefix length."""
    return {row.dim: row.spearman for row in sts(encoder, pairs)}


def judge_pairs(encoder: Encoder, pairs: Sequence[ScoredPair]) -> Judgement:
    """Spearman's correlation, and the geometry of the same vectors (arXiv 2005.10242)."""
    known = Remembered(encoder)
    scores = spearmans(known, pairs)
    same = [(a, b) for score, a, b in pairs if score >= SAME_MEANING_SCORE]
    distance = None
    if same:
        distance = alignment(known.encode([a for a, _ in same]), known.encode([b for _, b in same]))
    return Judgement(scores, distance, uniformity(known.rows))


def _judge_labels(encoder: Encoder, labelled: Sequence[LabelledText]) -> Judgement:
    return Judgement({row.dim: row.accuracy for row in accuracy(encoder, labelled)})


def _judge_anchors(right: Mapping[int, NDArray[np.bool_]]) -> Judgement:
    return Judgement({dim: float(found.mean()) for dim, found in right.items()}, right=right)


def top1_right(encoder: Encoder, rows: Sequence[Row]) -> dict[int, NDArray[np.bool_]]:
    """Whether the nearest positive of each anchor is its own, (n,), by prefix length.

    Equal positives count once, so a positive with the same text is no mistake.
    """
    positives = list(dict.fromkeys(row.positive for row in rows))
    place = {text: i for i, text in enumerate(positives)}
    expected = np.array([place[row.positive] for row in rows])
    queries = encoder.encode([row.anchor for row in rows], role="query")
    vectors = encoder.encode(positives, role="document")
    right = {}
    for dim in encoder.matryoshka_dims:
        a, b = queries[:, :dim], vectors[:, :dim]
        lengths = np.linalg.norm(b, axis=1)
        cosines = (a @ b.T) / np.maximum(lengths, 1e-12)  # the anchor's length changes no ranking
        right[dim] = cosines.argmax(axis=1) == expected
    return right


def unjudged(examples: Examples) -> str:
    """Why nothing is held out of these examples, in words."""
    if len(examples.of_kind(Kind.SENTENCE)) == len(examples):
        return "single sentences have no other text that judges them, as dev files of pairs would"
    return (
        f"fewer than {MIN_HELD_OUT} groups of examples without a common text in the tenth to hold "
        "out"
    )


def hold_out(examples: Examples, seed: int) -> Split:
    """Draw rows for judging from a tenth of the examples that have a positive or a label.

    Examples that share a text are held out together or not at all, but for hard negatives: a text
    that judges may be one in training, which tells nothing of its anchor. Every label keeps an
    example to learn from.
    """
    rng = random.Random(f"hold out {seed}")
    # A sentence alone has no positive of its own to be found.
    room = round(SHARE * (len(examples) - len(examples.of_kind(Kind.SENTENCE))))
    if room < MIN_HELD_OUT:
        return Split(examples)
    left = Counter(examples[int(i)][1][1] for i in examples.of_kind(Kind.LABELLED))
    groups = Groups(examples)
    held: set[int] = set()
    rows: list[Row] = []
    for place in map(int, np.random.default_rng(seed).permutation(len(examples))):
        group = groups.of(place, room)
        members = [examples[i] for i in group]
        taken = Counter(texts[1] for kind, texts in members if kind is Kind.LABELLED)
        if (
            not 0 < len(members) <= room
            or any(kind is Kind.SENTENCE for kind, _ in members)
            or any(left[label] <= count for label, count in taken.items())
        ):
            continue
        held.update(group)
        left -= taken
        room -= len(group)
        rows.append(draw(*members[0], rng))
        if room == 0 or len(rows) == MAX_HELD_OUT:
            break
    if len(rows) < MIN_HELD_OUT:
        return Split(examples)
    return Split(examples.without(held), tuple(rows), len(held))


class Groups:
    """Examples that are linked by a text, directly or through others; 16 bytes for each text.

    A hard negative links none: mined ones are the positives of others, and would link nearly all.
    """

    def __init__(self, examples: Examples):
        hashes, starts = array("q"), array("q", [0])
        for example in examples:
            hashes.extend(_hash(identity(text)) for text in texts_that_match(example))
            starts.append(len(hashes))
        self._starts = np.frombuffer(starts, dtype=np.int64)
        self._hashes = np.frombuffer(hashes, dtype=np.int64)
        owners = np.repeat(np.arange(len(examples), dtype=np.int32), np.diff(self._starts))
        order = np.argsort(self._hashes, kind="stable")
        self._sorted, self._owners = self._hashes[order], owners[order]
        self._seen = np.zeros(len(examples), dtype=bool)
        self._known: dict[int, list[int]] = {}  # groups by their first example, before it comes

    def of(self, place: int, most: int) -> list[int]:
        """The places of the group whose first example this is, in order.

        () for any other example, and for groups with more than `most`. So every group is drawn with
        the same probability, whatever its size.
        """
        if self._seen[place]:
            return self._known.pop(place, [])
        group, waiting = {place}, [place]
        followed: set[int] = set()  # texts: many members may share one
        while waiting:
            member = waiting.pop()
            texts = self._hashes[self._starts[member] : self._starts[member + 1]].tolist()
            for text in set(texts) - followed:
                followed.add(text)
                first, end = np.searchsorted(self._sorted, [text, text + 1])
                linked = set(self._owners[first:end].tolist()) - group
                # Examples linked to a group that was too large belong to that group.
                if len(group) + len(linked) > most or any(self._seen[i] for i in linked):
                    self._seen[[*group, *linked]] = True
                    return []
                group |= linked
                waiting += linked
        self._seen[list(group)] = True
        if place != min(group):
            self._known[min(group)] = sorted(group)
            return []
        return sorted(group)


def _hash(text: str) -> int:
    """A number of 63 bits: equal for equal texts, for others with negligible probability."""
    whole = hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=8).digest()
    return int.from_bytes(whole, "little") >> 1
