"""The examples of a run, read from files of one kind as rows in memory.

The names of the columns decide what an example is (docs/training.md lists them). A sentence alone
is its own positive: two passes through the network differ by dropout (SimCSE, Gao et al., arXiv
2104.08821, section 4), or also by what the paper compares it with: deleted words, a crop, or the
next sentence. Back-translations and other augmented texts (CERT, Fang et al., arXiv 2005.12766)
are pairs like any others. Here is also which examples an update takes, and at what learning rate.
"""

import hashlib
import itertools
import json
import math
import random
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from searchengine.trainer.errors import ConfigError, DataError
from searchengine.trainer.reading import column_names, read_rows
from searchengine.trainer.training.train_config import Augment, Objective, TrainConfig

Texts = tuple[str, ...]
# Known column names, in order of preference: an anchor and its positive, or one text.
PAIRS: tuple[Texts, ...] = (
    ("anchor", "positive"),
    ("query", "positive"),
    ("premise", "entailment"),
    ("sentence1", "sentence2"),
    ("question", "answer"),
    ("title", "text"),
)
COLUMNS: Mapping[Objective, tuple[Texts, ...]] = {
    Objective.CONTRASTIVE: (*PAIRS, ("sentence",), ("text",)),
    Objective.CLASSIFICATION: (("text", "label"), ("sentence", "label")),
    Objective.SIMILARITY: tuple((*pair, "score") for pair in PAIRS),
}
# The columns' places in a Row, in their order; further ones of pairs hold negatives.
PLACES: Mapping[Objective, Texts] = {
    Objective.CONTRASTIVE: ("anchor", "positive"),
    Objective.CLASSIFICATION: ("anchor", "label"),
    Objective.SIMILARITY: ("anchor", "positive", "score"),
}
EXPECTED = {"label": "text or a whole number", "score": "a number"}
NEGATIVE = re.compile(r"negative|negative_\d+|negatives|contradiction")


class Row(NamedTuple):
    """One example.

    label: of a labelled text, which has no positive. score: of a scored pair. one_text: a single
    sentence, whose positive is another view of it.
    """

    anchor: str
    positive: str = ""
    negatives: Texts = ()
    label: str = ""
    score: float | None = None
    one_text: bool = False

    @property
    def matching(self) -> Texts:
        """The texts that belong together."""
        return (self.anchor,) if self.one_text or self.label else self[:2]

    @property
    def texts(self) -> Texts:
        """All texts, each once."""
        return self.matching + self.negatives

    @property
    def kind(self) -> str:
        """What the example is, in words; a run has examples of one kind."""
        if self.label:
            return "labelled texts"
        if self.score is not None:
            return "scored pairs"
        return "single sentences" if self.one_text else "pairs"


Batch = Sequence[Row]


@dataclass(frozen=True, slots=True)
class Split:
    """Examples to train on, those held out, and the number left out for exclude and dev files."""

    train: Batch
    rows: Batch = ()
    excluded: int = 0


def identity(text: str) -> str:
    """Letters and digits in lower case without accents; the text itself if it has none."""
    if text.isascii():
        return re.sub(r"[^a-z0-9]+", "", text.lower()) or text
    plain = unicodedata.normalize("NFKD", text.casefold())
    return "".join(c for c in plain if c.isalnum()) or text


def digest(rows: Iterable[Row], files: Iterable[Path] = ()) -> str:
    """sha256 (hex) of rows in their order and of files: the same in a resumed run."""
    result = hashlib.sha256()
    for row in rows:
        result.update(json.dumps(row).encode())  # ASCII: lone surrogates are written as escapes
    for path in files:
        result.update(path.read_bytes())
    return result.hexdigest()


def read_examples(config: TrainConfig) -> Split:
    """The examples of a run, without those with a sentence of the exclude files or a dev anchor.

    Sentences are compared by their letters and digits alone. Raises DataError, with file and line
    if it has one, also for files of several kinds, and if nothing could be learnt from all of them.
    """
    known = (row for path in config.exclude for row in read_file(path))
    forbidden = {identity(text) for row in known for text in row.texts}
    forbidden |= {identity(row.anchor) for row in read_dev(config)}
    files = []
    for path in config.train:
        rows = read_file(path, config.columns, config.objective)
        if config.augment is Augment.NEXT_SENTENCE and rows[0].one_text:
            rows = [Row(one.anchor, other.anchor) for one, other in itertools.pairwise(rows)]
        files.append((path, rows))
    examples = _joined(files)
    kept = [row for row in examples if forbidden.isdisjoint(map(identity, row.texts))]
    excluded = len(examples) - len(kept)
    if not kept:
        why = f"no examples are left: {excluded} have a sentence of the exclude or dev files"
        if config.augment is Augment.NEXT_SENTENCE:
            why += ", and next-sentence needs two sentences in a file"
        raise DataError(why)
    judgements = {row.label or row.score for row in kept}
    if config.objective is not Objective.CONTRASTIVE and len(judgements) == 1:
        raise DataError(
            f"all {len(kept)} examples have the label or score {judgements.pop()}: expected two or "
            "more"
        )
    return Split(kept, excluded=excluded)


def read_dev(config: TrainConfig) -> list[Row]:
    """The rows of the dev files: labelled texts, scored pairs, or pairs. Raises as `read_examples`.

    `columns` names the columns of a file that has all of them. Pairs with a `score` judge by it,
    whatever is learnt.
    """
    files = []
    for path in config.dev:
        names, columns, objective = column_names(path), config.columns, config.objective
        columns = columns if {*columns} <= {*names} else ()
        if objective is Objective.CONTRASTIVE and "score" in names:
            objective, columns = Objective.SIMILARITY, columns and (*columns[:2], "score")
        rows = read_file(path, columns, objective)
        if rows[0].one_text:
            raise DataError(
                f"{path}: holds single sentences, and dev files judge by pairs: give an anchor "
                "and its positive, or pairs with scores"
            )
        files.append((path, rows))
    return _joined(files)


def _joined(files: Sequence[tuple[Path, Sequence[Row]]]) -> list[Row]:
    """The rows of all files. Raises DataError if they are of several kinds."""
    kinds = {rows[0].kind: path for path, rows in files if rows}
    if len(kinds) > 1:
        (first, one), (second, other), *_ = kinds.items()
        raise DataError(f"{one} holds {first}, and {other} {second}: give files of one kind")
    return [row for _, rows in files for row in rows]


def read_labelled(paths: Iterable[Path]) -> list[tuple[str, str]]:
    """The texts of all files with their labels. Raises as `read_file`."""
    rows = (row for path in paths for row in read_file(path, (), Objective.CLASSIFICATION))
    return [(row.anchor, row.label) for row in rows]


def read_sts(paths: Iterable[Path]) -> list[tuple[float, str, str]]:
    """The scored pairs of all files: score and both texts. Raises as `read_file`."""
    rows = (row for path in paths for row in read_file(path, (), Objective.SIMILARITY))
    return [(row.score or 0.0, row.anchor, row.positive) for row in rows]


def read_file(
    path: Path, columns: Sequence[str] = (), objective: Objective | None = None
) -> list[Row]:
    """The rows of one file. Raises DataError, also if there are none.

    objective: what is learnt from them; None: their texts are read, whatever columns are beside.
    """
    chosen = _choose_columns(path, columns, objective)
    places = PLACES[objective or Objective.CONTRASTIVE]
    rows = []
    for number, cells in read_rows(path):
        where, texts = f"{path}:{number}", list[tuple[str, Any]]()
        for name in chosen[len(places) :]:  # an empty cell is no negative
            cell = cells.get(name) or []
            texts += [(name, text) for text in (cell if isinstance(cell, list) else [cell])]
        known = zip(places, chosen, strict=False)
        values = {place: _cell(where, name, cells.get(name), place) for place, name in known}
        if len(chosen) == 1:
            values |= {"positive": values["anchor"], "one_text": True}
        rows.append(Row(**values, negatives=tuple(_cell(where, *text) for text in texts)))
    return rows


def _choose_columns(path: Path, columns: Sequence[str], objective: Objective | None) -> list[str]:
    """The columns to read: the named ones, or the first known ones that the file has."""
    names = column_names(path)
    if not names:
        raise DataError(f"{path}: no examples")
    usual = known = COLUMNS[objective or Objective.CONTRASTIVE]
    judged = [name for name in ("score", "label") if name in names]
    if columns:
        fits = objective in (None, Objective.CONTRASTIVE) or len(columns) == len(usual[0])
        known = (tuple(columns),) if fits else ()
    elif judged and objective is Objective.CONTRASTIVE:
        raise DataError(
            f"{path}: has a column `{judged[0]}`, which a contrastive run does not read: set "
            "objective (similarity learns scores, classification labels), give the file as `dev`, "
            "or name the columns to train on in `columns`"
        )
    for chosen in known:
        if {*chosen} <= {*names}:
            negatives = filter(NEGATIVE.fullmatch, names) if chosen in PAIRS and not columns else ()
            return [*chosen, *negatives]
    raise DataError(
        f"{path}: has the columns {', '.join(names)!r}, expected "
        f"{' or '.join(map(', '.join, known or usual))}: rename them or name them in `columns`; "
        "the name of a CSV file ends in .csv, of JSON lines in .jsonl"
    )


def _cell(where: str, name: str, value: Any, place: str = "negative") -> Any:
    """The value of a cell, by its place in a Row. where: file and line. Raises DataError."""
    if place == "score":
        try:
            if math.isfinite(score := float(value)):
                return score
        except (TypeError, ValueError):
            pass
    elif place == "label":
        if isinstance(value, str | int) and str(value).strip():
            return str(value)
    elif isinstance(value, str) and value.strip() and "\0" not in value:
        return value
    expected = EXPECTED.get(place, "text without NUL characters")
    raise DataError(f"{where}: {name} is {value!r}, expected {expected}")


# Of labels at least as many updates or passes, by the fewer: few labels make short epochs.
LABEL_UPDATES, LABEL_EPOCHS = 80, 40


class BatchPlan:
    """The batches of every update: they follow from the seed and its number alone.

    An epoch has every example once, each time in another order. Its last batch may be smaller; a
    single row is left out, as there is nothing to contrast it with.
    """

    def __init__(self, config: TrainConfig, examples: Batch):
        self.config = config
        self.examples = examples
        self._order = lru_cache(2)(self._ordered)
        size = config.batch_size
        full, rest = divmod(len(examples), size)
        self.per_epoch = full + (rest > 1)
        if self.per_epoch == 0:
            raise ConfigError("one example is no batch: give two or more")
        labels = config.objective is Objective.CLASSIFICATION
        least = min(LABEL_UPDATES, LABEL_EPOCHS * self.per_epoch) if labels else 0
        self.steps = config.max_steps or max(config.epochs * self.per_epoch, least)

    def at(self, step: int) -> Batch:
        """The batch of an update, without those before it."""
        epoch, number = divmod(step, self.per_epoch)
        config, first = self.config, number * self.config.batch_size
        order = self._order(epoch)[first : first + config.batch_size]
        rows = [self.examples[place] for place in order]
        if config.augment is Augment.NONE or not rows[0].one_text:
            return rows
        rng = random.Random(f"rows {config.seed} {epoch} {number}")
        views = (augmented(row.anchor, config.augment, config.augment_share, rng) for row in rows)
        return [row._replace(positive=view) for row, view in zip(rows, views, strict=True)]

    def _ordered(self, epoch: int) -> list[int]:
        """The places of all examples in random order; labelled texts in twos of a label, so that a
        batch has many labels, and another text of each."""
        rng = random.Random(f"order {self.config.seed} {epoch}")
        generator = np.random.default_rng(rng.getrandbits(64))
        order: list[int] = generator.permutation(len(self.examples)).tolist()
        if self.config.objective is not Objective.CLASSIFICATION:
            return order
        by_label: dict[str, list[int]] = {}
        for place in order:
            by_label.setdefault(self.examples[place].label, []).append(place)
        twos = [x[i : i + 2] for x in by_label.values() for i in range(0, len(x), 2)]
        rng.shuffle(twos)
        return [place for two in twos for place in two]

    def learning_rate(self, step: int) -> float:
        """Linear from 0 to the peak over the warm-up, then linear to 0."""
        warm, peak = round(self.config.warmup_ratio * self.steps), self.config.learning_rate
        if step < warm:
            return peak * (step + 1) / warm
        return peak * (self.steps - step) / max(1, self.steps - warm)


def augmented(text: str, augment: Augment, share: float, rng: random.Random) -> str:
    """The text with words left out; at least one word stays."""
    words = text.split()
    count = 1 if augment is Augment.DELETE_WORD else round(share * len(words))
    count = min(count, len(words) - 1)
    match augment:
        case Augment.DELETE_WORD | Augment.DELETE if count > 0:
            out = set(rng.sample(range(len(words)), count))
            return " ".join(word for i, word in enumerate(words) if i not in out)
        case Augment.CROP if count > 0:
            start = math.floor(rng.random() * (count + 1))
            return " ".join(words[start : start + len(words) - count])
        case _:
            return text
