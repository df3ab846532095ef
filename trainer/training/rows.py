"""What a row of a training file is, and the anchor, positive and negatives that it gives a batch.

The names of the columns decide what an example is (docs/training.md lists them). A sentence alone
is its own positive: two passes through the network differ by dropout (SimCSE, Gao et al., arXiv
2104.08821, section 4), or also by what the paper compares it with: deleted words, a crop, or the
next sentence. Of several paraphrases every epoch draws another two. Back-translations and other
augmented texts (CERT, Fang et al., arXiv 2005.12766) are pairs like any others.
"""

import math
import random
import re
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, NamedTuple

from searchengine.trainer.errors import DataError

# The texts of an example as they were read; what they mean is its Kind. A label or scores are the
# last of them.
Texts = tuple[str, ...]

# Known column names, in order of preference: an anchor and its positive, or one text. Pairs may
# have columns of negatives, too.
KNOWN_COLUMNS: tuple[tuple[str, ...], ...] = (
    ("anchor", "positive"),
    ("query", "positive"),
    ("premise", "entailment"),
    ("sentence1", "sentence2"),
    ("question", "answer"),
    ("title", "text"),
    ("sentence",),
    ("text",),
)
NEGATIVE = re.compile(r"negative|negative_\d+|negatives|contradiction")
LABEL = "label"
SCORE = "score"


class Kind(StrEnum):
    """How the texts of an example are related."""

    PAIR = "pair"  # anchor, positive
    TRIPLET = "triplet"  # anchor, positive, hard negatives
    SENTENCE = "sentence"  # one text, its own positive under dropout
    PARAPHRASES = "paraphrases"  # two or more with the same meaning
    LABELLED = "labelled"  # a text, its label
    SCORED = "scored"  # anchor, positive, their score


class Augment(StrEnum):
    """How a sentence's positive differs from it, besides the dropout mask."""

    NONE = "none"  # the sentence itself
    DELETE_WORD = "delete-word"  # without one of its words
    DELETE = "delete"  # without a share of its words
    CROP = "crop"  # a run of its words, without a share of them
    NEXT_SENTENCE = "next-sentence"  # the next sentence in the file


class Reading(StrEnum):
    """What is read of a row besides its texts."""

    TEXTS = "texts"  # nothing; a column of labels or scores is refused
    LABELS = "labels"
    SCORES = "scores"
    IGNORE = "ignore"  # nothing; columns of labels and scores are passed over


Example = tuple[Kind, Texts]


class Row(NamedTuple):
    """One row of a batch.

    label: of a labelled text, which has no positive. one_text: anchor and positive are two views
    of one sentence. score: of a scored pair.
    """

    anchor: str
    positive: str = ""
    negatives: Texts = ()
    label: str = ""
    one_text: bool = False
    score: float = 0.0


Batch = list[Row]


def draw(
    kind: Kind,
    texts: Texts,
    rng: random.Random,
    augment: Augment = Augment.NONE,
    share: float = 0.1,
) -> Row:
    """The row that an example gives in this epoch; augment and share change sentences only."""
    match kind:
        case Kind.PAIR | Kind.TRIPLET:
            return Row(texts[0], texts[1], texts[2:])
        case Kind.SENTENCE:
            return Row(texts[0], augmented(texts[0], augment, share, rng), one_text=True)
        case Kind.PARAPHRASES:
            anchor, positive = rng.sample(texts, 2)
            return Row(anchor, positive)
        case Kind.LABELLED:
            return Row(texts[0], label=texts[1])
        case Kind.SCORED:
            return Row(texts[0], texts[1], score=float(texts[2]))


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


class Header(NamedTuple):
    """The columns of a file.

    place: the file, with its line of column names if it has one, for errors. first: the first value
    of every column. origin: column → the file and line where it begins.
    """

    place: str
    first: Mapping[str, Any]
    origin: Mapping[str, str]


def choose_columns(header: Header, columns: Sequence[str], reading: Reading) -> tuple[str, ...]:
    """The columns to read: the named ones, the known ones, or the only list of texts.

    The label or the scores are the last of them. Raises DataError.
    """
    place, row, origin = header
    if columns:
        if missing := [name for name in columns if name not in row]:
            _refuse_other_formats(header)
            raise DataError(f"{place}: no column {', '.join(missing)}: it has {', '.join(row)}")
        return tuple(columns)
    _refuse_other_formats(header)
    if reading is Reading.LABELS:
        return _label_columns(header)
    if reading is Reading.TEXTS:
        _refuse_judgements(origin)
    scored = reading is Reading.SCORES
    if scored and SCORE not in row:
        raise DataError(
            f"{place}: expected a column `{SCORE}` beside the texts, got {', '.join(row)}: rename "
            "it, or name all in `columns`, the score last"
        )
    for known in KNOWN_COLUMNS:
        if all(name in row for name in known) and (len(known) == 2 or not scored):
            negatives = [n for n in row if NEGATIVE.fullmatch(n)] if len(known) == 2 else []
            return (*known, *negatives, *([SCORE] if scored else []))
    lists = [name for name, value in row.items() if isinstance(value, list)]
    if len(lists) == 1 and not scored:
        return (lists[0],)
    raise DataError(
        f"{place}: cannot tell what to train on from the columns {', '.join(row)}: name them "
        "(anchor, positive, negative; sentence), or give `columns`"
    )


def _refuse_other_formats(header: Header) -> None:
    """Refuse files whose first line shows that they are JSON or CSV, by another name."""
    first, *others = header.first
    if not others and first.lstrip().startswith(("{", "[")):
        raise DataError(
            f"{header.place}: is JSON: training reads TSV, CSV, and JSONL (an object on each line) "
            "from a file whose name ends in .jsonl"
        )
    if not others and "," in first:
        raise DataError(f"{header.place}: is CSV: give the file a name that ends in .csv")


def _label_columns(header: Header) -> tuple[str, str]:
    """A text and its label."""
    names = header.first
    text = next((name for name in ("text", "sentence") if name in names), None)
    if text is None or LABEL not in names:
        raise DataError(
            f"{header.place}: expected the columns `text` and `label`, got {', '.join(names)}: "
            "rename them, or to train name them in `columns`, text first"
        )
    return text, LABEL


def _refuse_judgements(origin: Mapping[str, str]) -> None:
    """Refuse scores and labels that training would not read."""
    if SCORE in origin:
        raise DataError(
            f"{origin[SCORE]}: the column `{SCORE}` makes this a test of similarity, not training "
            "pairs: give it as `dev`, set objective=similarity to learn the scores, "
            "or name the columns to train on"
        )
    if LABEL in origin:
        raise DataError(
            f"{origin[LABEL]}: has a column `{LABEL}`, which a contrastive run does not read: "
            "set objective=classification to learn the labels, or name the columns to train on"
        )


def read_row(
    where: str, row: Mapping[str, Any], columns: tuple[str, ...], reading: Reading
) -> Example:
    """The example in these columns of a row. where: file and line. Raises DataError."""
    match reading:
        case Reading.LABELS:
            return _labelled(where, row, columns)
        case Reading.SCORES:
            return _scored(where, row, columns)
        case _:
            return _unjudged(where, row, columns)


def _labelled(where: str, row: Mapping[str, Any], columns: tuple[str, ...]) -> Example:
    if len(columns) != 2:
        raise DataError(f"{where}: columns is {', '.join(columns)}: expected a text and its label")
    text, label = row.get(columns[0]), row.get(columns[1])
    _check_text(where, columns[0], text)
    if not isinstance(label, str | int) or not str(label).strip():
        raise DataError(
            f"{where}: {columns[1]} is {label!r}, expected a label: text or a whole number"
        )
    return Kind.LABELLED, (str(text), str(label))


def _scored(where: str, row: Mapping[str, Any], columns: tuple[str, ...]) -> Example:
    """Anchor, positive and their score: a number, or text with one."""
    name = columns[-1]
    kind, texts = _unjudged(where, row, columns[:-1])
    if kind is not Kind.PAIR:
        raise DataError(f"{where}: has a {kind} beside {name}, expected a pair of texts")
    value = row.get(name)
    try:
        score = math.nan if isinstance(value, bool | list) else float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        score = math.nan
    if not math.isfinite(score):
        raise DataError(f"{where}: {name} is {value!r}, expected a number")
    return Kind.SCORED, (*texts, repr(score))


def _unjudged(where: str, row: Mapping[str, Any], columns: tuple[str, ...]) -> Example:
    values = [row.get(name) for name in columns]
    if len(values) == 1 and isinstance(values[0], list):
        all_texts = all(isinstance(value, str) and value.strip() for value in values[0])
        texts = tuple(dict.fromkeys(values[0])) if all_texts else ()
        if len(texts) < 2:
            raise DataError(f"{where}: {columns[0]} must list at least 2 different texts")
        return Kind.PARAPHRASES, texts
    for name, value in zip(columns[:2], values[:2], strict=True):
        _check_text(where, name, value)
    if len(values) == 1:
        return Kind.SENTENCE, (str(values[0]),)
    negatives: list[str] = []
    for name, value in zip(columns[2:], values[2:], strict=True):
        # An empty cell is no negative: the row may be a pair, or have fewer than others.
        for text in value if isinstance(value, list) else [value] if value else []:
            _check_text(where, name, text)
            negatives.append(text)
    kind = Kind.TRIPLET if negatives else Kind.PAIR
    return kind, (str(values[0]), str(values[1]), *negatives)


def _check_text(where: str, name: str, value: object) -> None:
    if not isinstance(value, str) or not value.strip():
        raise DataError(f"{where}: {name} is {value!r}, expected text")
