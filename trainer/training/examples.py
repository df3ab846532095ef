"""The examples of a run: read from files, kept on disk, drawn as the rows of batches.

The names of the columns decide what an example is (docs/training.md lists them). A sentence alone
is its own positive: two passes through the network differ by dropout (SimCSE, Gao et al., arXiv
2104.08821, section 4), or also by what the paper compares it with: deleted words, a crop, or the
next sentence. Back-translations and other augmented texts (CERT, Fang et al., arXiv 2005.12766)
are pairs like any others.

Files may be larger than memory: their examples are copied to a temporary file, from which any of
them can be read by its number. So an epoch is in random order over all of them, and a resumed run
continues with the next batch.
"""

import copy
import hashlib
import itertools
import json
import math
import os
import random
import re
import tempfile
import unicodedata
import warnings
import weakref
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import IO, Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from searchengine.trainer.errors import DataError, DataWarning, install_line
from searchengine.trainer.reading import open_text, table_rows
from searchengine.trainer.training.train_config import Augment, Objective, TrainConfig

# Known column names, in order of preference: an anchor and its positive, or one text.
PAIRS = (
    ("anchor", "positive"),
    ("query", "positive"),
    ("premise", "entailment"),
    ("sentence1", "sentence2"),
    ("question", "answer"),
    ("title", "text"),
)
CONTRASTIVE: tuple[tuple[str, ...], ...] = (*PAIRS, ("sentence",), ("text",))
COLUMNS = {
    Objective.CONTRASTIVE: CONTRASTIVE,
    Objective.CLASSIFICATION: (("text", "label"), ("sentence", "label")),
    Objective.SIMILARITY: tuple((*pair, "score") for pair in PAIRS),
}
NEGATIVE = re.compile(r"negative|negative_\d+|negatives|contradiction")
# Rows and bytes of Parquet at a time.
_ROWS, _BYTES = 1024, 1 << 16
# Share of examples that teach little, from which a warning names them.
_IDLE_SHARE = 0.1


class Kind(StrEnum):
    """How the texts of an example are related."""

    PAIR = "pair"  # anchor, positive
    TRIPLET = "triplet"  # anchor, positive, hard negatives
    SENTENCE = "sentence"  # one text, its own positive under dropout
    LABELLED = "labelled"  # a text, its label
    SCORED = "scored"  # anchor, positive, their score


KINDS = tuple(Kind)
# The texts of an example as they were read; a label or a score is the last of them.
Texts = tuple[str, ...]
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
            return Row(texts[0], _augmented(texts[0], augment, share, rng), one_text=True)
        case Kind.LABELLED:
            return Row(texts[0], label=texts[1])
        case Kind.SCORED:
            return Row(texts[0], texts[1], score=float(texts[2]))


def _augmented(text: str, augment: Augment, share: float, rng: random.Random) -> str:
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


def identity(text: str) -> str:
    """Letters and digits in lower case without accents; the text itself if it has none."""
    if text.isascii():
        return re.sub(r"[^a-z0-9]+", "", text.lower()) or text
    plain = unicodedata.normalize("NFKD", text.casefold())
    return "".join(c for c in plain if c.isalnum()) or text


def texts_without_label(example: Example) -> Texts:
    """The texts of an example, without its label or score."""
    kind, texts = example
    return texts[:-1] if kind in (Kind.LABELLED, Kind.SCORED) else texts


def texts_that_match(example: Example) -> Texts:
    """The texts of an example that belong together: without label, score and hard negatives."""
    kind, texts = example
    return texts[:2] if kind is Kind.TRIPLET else texts_without_label(example)


class Examples:
    """Examples in a temporary file, which is removed with its last reader.

    Each takes 13 bytes of memory. excluded: number left out because of the exclude and dev files.
    folder: where the file is; None for the system's temporary folder. Raises DataError if the disk
    is full.
    """

    def __init__(self, examples: Iterable[Example], folder: Path | None = None):
        self.excluded = 0
        ends, kinds = array("q", [0]), array("b")
        digest = hashlib.sha256()
        try:
            with tempfile.TemporaryFile(dir=folder) as file:
                for kind, texts in examples:
                    # ASCII: lone surrogates are written as escapes.
                    row = json.dumps([kind, *texts]).encode()
                    file.write(row)
                    digest.update(row)
                    ends.append(ends[-1] + len(row))
                    kinds.append(KINDS.index(kind))
                file.flush()
                self._file = os.dup(file.fileno())
        except OSError as error:
            raise DataError(
                f"{folder or tempfile.gettempdir()}: no room for a copy of the examples "
                f"({error.strerror})"
            ) from error
        weakref.finalize(self, os.close, self._file)
        self._ends = np.frombuffer(ends, dtype=np.int64)
        self._kinds = np.frombuffer(kinds, dtype=np.int8)
        self._rows = np.arange(len(kinds), dtype=np.int32)
        self._digest = digest.hexdigest()

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, place: int) -> Example:
        row = self._rows[place]
        start, end = int(self._ends[row]), int(self._ends[row + 1])
        # pread, not read: threads and forked processes share the file's position.
        kind, *texts = json.loads(os.pread(self._file, end - start, start))
        return Kind(kind), tuple(texts)

    def __iter__(self) -> Iterator[Example]:
        return (self[i] for i in range(len(self)))

    def of_kind(self, kind: Kind) -> NDArray[np.int64]:
        """The places of all examples of a kind, in order."""
        return np.flatnonzero(self._kinds[self._rows] == KINDS.index(kind))

    def without(self, places: Iterable[int]) -> Self:
        """The examples except those at these places, in the same file."""
        rest = copy.copy(self)
        rest._whole = self  # type: ignore[attr-defined]  # which closes the file
        rest._rows = np.delete(self._rows, sorted(places))
        return rest

    def digest(self, files: Iterable[Path] = ()) -> str:
        """sha256 (hex) of all examples in order and of files: the same in a resumed run."""
        digest = hashlib.sha256(self._digest.encode())
        for path in files:
            digest.update(path.read_bytes())
        return digest.hexdigest()


def read_examples(config: TrainConfig) -> Examples:
    """The examples of a run, without those with a sentence of the exclude files or a dev anchor.

    Sentences are compared by their letters and digits alone. Issues a DataWarning where a tenth of
    the examples or more teach little. Raises DataError, with file and line if it has one, also if
    nothing could be learnt from all of them.
    """
    files = map(read_file, config.exclude)
    forbidden = {identity(text) for file in files for _, texts in file for text in texts}
    for path in filter(Path.is_file, config.dev):
        known = {"sentence1", "sentence2", "score"} <= {*column_names(path)}
        rows = read_file(path, () if known else config.columns)
        forbidden |= {identity(texts[0]) for _, texts in rows}
    excluded = 0

    def allowed() -> Iterator[Example]:
        nonlocal excluded
        for path in config.train:
            examples = read_file(path, config.columns, config.objective)
            if config.augment is Augment.NEXT_SENTENCE:
                examples = _with_next(examples)
            for example in examples:
                texts = texts_without_label(example)
                if forbidden and not forbidden.isdisjoint(map(identity, texts)):
                    excluded += 1
                else:
                    yield example

    kept = Examples(allowed(), config.out.absolute().parent)
    kept.excluded = excluded
    if not kept:
        raise DataError(
            f"no examples are left: {excluded} have a sentence of the exclude or dev files, and "
            "next-sentence needs two sentences in a file"
        )
    _check_variety(kept)
    return kept


def _check_variety(examples: Examples) -> None:
    """Refuse examples from which nothing can be learnt, and warn of many that teach little."""
    hashes, judgements, echoes = array("q"), set[str](), 0
    for kind, texts in examples:
        hashes.append(hash(texts))
        if kind in (Kind.LABELLED, Kind.SCORED):
            judgements.add(texts[-1])
        elif kind in (Kind.PAIR, Kind.TRIPLET):
            echoes += texts[0].casefold() == texts[1].casefold()
    count = len(examples)
    repeats = count - len(np.unique(np.frombuffer(hashes, dtype=np.int64)))
    if count > 1 and repeats == count - 1:
        raise DataError(f"all {count} examples are equal: expected different ones")
    if count > 1 and len(judgements) == 1:
        raise DataError(
            f"all {count} examples have the label or score {judgements.pop()}: expected two or more"
        )
    if echoes == count:
        raise DataError(
            f"the positive of all {count} pairs is their anchor: name the columns of texts that "
            "belong together in `columns`, or train on the texts alone, in a column `sentence`"
        )
    if repeats + echoes >= _IDLE_SHARE * count:
        warnings.warn(
            f"of {count} examples, {repeats} repeat another and {echoes} have their anchor as "
            "positive: remove them, as they teach little",
            DataWarning,
            stacklevel=3,
        )


def _with_next(examples: Iterable[Example]) -> Iterator[Example]:
    """Sentences as pairs with the one that follows; other examples as they are."""
    for example, following in itertools.pairwise(itertools.chain(examples, [None])):
        assert example is not None
        kind, texts = example
        if kind is not Kind.SENTENCE:
            yield kind, texts
        elif following is not None and following[0] is Kind.SENTENCE:
            yield Kind.PAIR, (texts[0], following[1][0])


def read_labelled(paths: Iterable[Path], columns: Sequence[str] = ()) -> list[tuple[str, str]]:
    """The texts of all files with their labels. Raises DataError, with file and line."""
    rows = (row for path in paths for row in read_file(path, columns, Objective.CLASSIFICATION))
    return [(text, label) for _, (text, label) in rows]


def read_file(
    path: Path, columns: Sequence[str] = (), objective: Objective | None = None
) -> Iterator[Example]:
    """The examples of one file, read row by row. Raises DataError, also if there are none.

    objective: what is learnt from them; None: their texts are read, whatever columns are beside.
    TSV and CSV have a header line, and TSV no quoting; JSONL has one object per line. All are UTF-8
    and may be .gz. A Parquet file is a table with the same columns.
    """
    names = column_names(path)
    if not names:
        raise DataError(f"{path}: no examples")
    chosen = _choose_columns(path, names, columns, objective)
    for number, row in _rows(path, chosen):
        yield _example(f"{path}:{number}", row, chosen, objective)


def column_names(path: Path) -> tuple[str, ...]:
    """The columns of a file. Raises DataError.

    Objects of JSONL may lack columns that others have: all are read.
    """
    rows = _rows(path) if ".jsonl" in path.suffixes else itertools.islice(_rows(path), 1)
    return tuple(dict.fromkeys(name for _, row in rows for name in row))


def _choose_columns(
    path: Path, names: Sequence[str], columns: Sequence[str], objective: Objective | None
) -> tuple[str, ...]:
    """The columns to read: the named ones, or the first known ones that the file has.

    The label or the score is the last of them.
    """
    usual = known = COLUMNS[objective or Objective.CONTRASTIVE]
    judged = [name for name in ("score", "label") if name in names]
    if columns:
        fits = usual is CONTRASTIVE or len(columns) == len(usual[0])
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
            return (*chosen, *negatives)
    raise DataError(
        f"{path}: has the columns {', '.join(names)!r}, expected "
        f"{' or '.join(map(', '.join, known or usual))}: rename them or name them in `columns`; "
        "the name of a CSV file ends in .csv, of JSON lines in .jsonl"
    )


def _example(
    where: str, row: Mapping[str, Any], columns: Sequence[str], objective: Objective | None
) -> Example:
    """The example in these columns of a row. where: file and line. Raises DataError."""
    cells = [(name, row.get(name)) for name in columns]
    if objective is Objective.CLASSIFICATION:
        return Kind.LABELLED, (_text(where, *cells[0]), _label(where, *cells[1]))
    if objective is Objective.SIMILARITY:
        first, second, score = cells
        return Kind.SCORED, (_text(where, *first), _text(where, *second), _score(where, *score))
    texts = tuple(_text(where, name, value) for name, value in cells[:2])
    # An empty cell is no negative: the row may be a pair, or have fewer than others.
    negatives = [
        _text(where, name, item)
        for name, value in cells[2:]
        for item in (value if isinstance(value, list) else [value] if value else [])
    ]
    kind = Kind.TRIPLET if negatives else Kind.PAIR if len(texts) == 2 else Kind.SENTENCE
    return kind, (*texts, *negatives)


def _text(where: str, name: str, value: Any) -> str:
    if not isinstance(value, str) or not value.strip() or "\0" in value:
        raise DataError(f"{where}: {name} is {value!r}, expected text without NUL characters")
    return value


def _label(where: str, name: str, value: Any) -> str:
    if not isinstance(value, str | int) or not str(value).strip():
        raise DataError(f"{where}: {name} is {value!r}, expected text or a whole number")
    return str(value)


def _score(where: str, name: str, value: Any) -> str:
    try:
        score = float(value)
    except (TypeError, ValueError):
        score = math.nan
    if not math.isfinite(score):
        raise DataError(f"{where}: {name} is {value!r}, expected a number")
    return repr(score)


def _rows(path: Path, columns: Sequence[str] = ()) -> Iterator[tuple[int, dict[str, Any]]]:
    """Every row with its line, or its number in a table. Raises DataError.

    columns: the ones to read of a table, () for all.
    """
    try:
        if path.suffix == ".parquet":
            yield from enumerate(_parquet_rows(path, columns), 1)
            return
        read = _jsonl_rows if ".jsonl" in path.suffixes else _text_rows
        with open_text(path) as lines:
            yield from read(path, lines)
    except OSError as error:  # also where the path itself is refused: its name is too long, perhaps
        raise DataError(f"{path}: cannot be read: {error.strerror}") from error


def _text_rows(path: Path, lines: IO[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    rows = table_rows(path, lines)
    _, header = next(rows, (1, []))
    if "\0" in "".join(header):
        raise DataError(f"{path}: has NUL bytes, as UTF-16 has: convert the file to UTF-8")
    for number, row in rows:
        if row and len(row) != len(header):
            raise DataError(
                f"{path}:{number}: {len(row)} columns, expected {len(header)} ({', '.join(header)})"
            )
        if row:
            yield number, dict(zip(header, row, strict=True))


def _jsonl_rows(path: Path, lines: IO[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{path}:{number}: not a JSON object on one line: {error}") from error
        if not isinstance(row, dict):
            raise DataError(f"{path}:{number}: expected a JSON object, got {line.strip()[:40]!r}")
        yield number, row


def _parquet_rows(path: Path, columns: Sequence[str]) -> Iterator[dict[str, Any]]:
    try:
        import pyarrow.parquet

        # Reads row groups piece by piece: a file may have only one.
        pieces = {"pre_buffer": False, "buffer_size": _BYTES}
        chosen = list(columns) or None
        with pyarrow.parquet.ParquetFile(path, **pieces) as file:
            for batch in file.iter_batches(_ROWS, columns=chosen, use_threads=False):
                yield from batch.to_pylist()
    except ImportError as error:
        needed = install_line("formats")
        raise DataError(f"{path}: reading it needs {error.name}: {needed}") from error
    except Exception as error:  # of any type: a text is not UTF-8, a date is out of range
        raise DataError(f"{path}: cannot be read as a table: {error}") from error
