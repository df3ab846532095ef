"""Training files to examples to batches.

TSV has a header line and no quoting; JSONL has one object per line; both may be .gz and are UTF-8.
What an example is follows from the names of its columns (docs/training.md lists them).
"""

import csv
import hashlib
import json
import random
import re
import unicodedata
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from trainer.errors import DataError
from trainer.positives import Drawn, Kind, Texts, draw
from trainer.reading import open_text

# Column names that say what they are, the most telling first.
KNOWN_COLUMNS: tuple[tuple[str, ...], ...] = (
    ("anchor", "positive", "negative"),
    ("anchor", "positive"),
    ("query", "positive", "negative"),
    ("query", "positive"),
    ("premise", "entailment", "contradiction"),
    ("premise", "entailment"),
    ("sentence1", "sentence2"),
    ("title", "text"),
    ("sentence",),
    ("text",),
)
KINDS = {1: Kind.SENTENCE, 2: Kind.PAIR, 3: Kind.TRIPLET}
Example = tuple[Kind, Texts]
Batch = list[Drawn]


@dataclass(frozen=True, slots=True)
class Examples:
    """All examples of a run. excluded: how many the exclude files took out."""

    examples: tuple[Example, ...]
    excluded: int = 0

    def __len__(self) -> int:
        return len(self.examples)

    def digest(self) -> str:
        """sha256 (hex) of the examples in order: what a resumed run must find unchanged."""
        digest = hashlib.sha256()
        for kind, texts in self.examples:
            row = json.dumps([kind, *texts])  # ASCII: lone surrogates are written as escapes
            digest.update(row.encode())
        return digest.hexdigest()


def read_examples(
    paths: Iterable[Path], columns: Sequence[str] = (), exclude: Iterable[Path] = ()
) -> Examples:
    """The examples of all files, without those that contain a sentence of the exclude files.

    Sentences are compared by their letters and digits alone. Raises DataError, with file and line
    where there is one.
    """
    forbidden = {key(text) for path in exclude for text in sentences(path)}
    kept, excluded = [], 0
    for path in paths:
        found = list(read_file(path, columns))
        if not found:
            raise DataError(f"{path}: no examples")
        fine = [e for e in found if not forbidden or forbidden.isdisjoint(map(key, e[1]))]
        kept += fine
        excluded += len(found) - len(fine)
    if not kept:
        raise DataError(f"all {excluded} examples contain a sentence of the exclude files")
    return Examples(tuple(kept), excluded)


def key(text: str) -> str:
    """Letters and digits in lower case without accents; [a-z0-9] for English."""
    if text.isascii():
        return re.sub(r"[^a-z0-9]+", "", text.lower())
    return "".join(c for c in unicodedata.normalize("NFKD", text.casefold()) if c.isalnum())


def sentences(path: Path) -> Iterator[str]:
    """Every sentence of a file of examples or of scored pairs; each example's texts in turn."""
    for _, texts in read_file(path, scored=True):
        yield from texts


def read_file(
    path: Path, columns: Sequence[str] = (), *, scored: bool = False
) -> Iterator[Example]:
    """The examples of one file. scored: accept a `score` column, and do not read it."""
    with open_text(path) as lines:
        rows = _jsonl_rows(path, lines) if ".jsonl" in path.suffixes else _tsv_rows(path, lines)
        chosen: tuple[str, ...] | None = None
        for number, row in rows:
            if chosen is None:
                chosen = _choose(path, row, columns, scored)
            yield _example(f"{path}:{number}", row, chosen)


def _tsv_rows(path: Path, lines: IO[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    rows = csv.reader(lines, delimiter="\t", quoting=csv.QUOTE_NONE)
    try:
        header = next(rows, None)
        if not header:
            raise DataError(f"{path}:1: expected a header line with column names, got nothing")
        for row in rows:
            if len(row) != len(header):
                if not row:
                    continue
                raise DataError(
                    f"{path}:{rows.line_num}: {len(row)} columns, expected {len(header)} "
                    f"({', '.join(header)})"
                )
            yield rows.line_num, dict(zip(header, row, strict=True))
    except csv.Error as error:
        raise DataError(f"{path}:{rows.line_num}: not a line of TSV: {error}") from error


def _jsonl_rows(path: Path, lines: IO[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise DataError(f"{path}:{number}: not JSON: {error}") from error
        if not isinstance(row, dict):
            raise DataError(f"{path}:{number}: expected a JSON object, got {line.strip()[:40]!r}")
        yield number, row


def _choose(
    path: Path, row: dict[str, Any], columns: Sequence[str], scored: bool
) -> tuple[str, ...]:
    """The columns to read: those asked for, the known ones, or the only list of texts."""
    if columns:
        if missing := [name for name in columns if name not in row]:
            raise DataError(f"{path}:1: no column {', '.join(missing)}: it has {', '.join(row)}")
        return tuple(columns)
    if "score" in row and not scored:
        raise DataError(
            f"{path}:1: the column `score` makes this a test of similarity, not training pairs: "
            "give it as `dev`, or name the columns to train on"
        )
    for known in KNOWN_COLUMNS:
        if all(name in row for name in known):
            return known
    lists = [name for name, value in row.items() if isinstance(value, list)]
    if len(lists) == 1:
        return (lists[0],)
    raise DataError(
        f"{path}:1: cannot tell what to train on from the columns {', '.join(row)}: name them "
        "(anchor, positive, negative), or give `columns`"
    )


def _example(where: str, row: dict[str, Any], columns: tuple[str, ...]) -> Example:
    values = [row.get(name) for name in columns]
    if len(values) == 1 and isinstance(values[0], list):
        texts = tuple(dict.fromkeys(values[0])) if _all_texts(values[0]) else ()
        if len(texts) < 2:
            raise DataError(f"{where}: {columns[0]} must list at least 2 different texts")
        return Kind.PARAPHRASES, texts
    if len(values) == 3 and not values[2]:
        values.pop()  # a triplet without its negative is a pair
    for name, value in zip(columns, values, strict=False):
        if not isinstance(value, str) or not value.strip():
            raise DataError(f"{where}: {name} is {value!r}, expected text")
    return KINDS[len(values)], tuple(map(str, values))


def _all_texts(values: list[Any]) -> bool:
    return all(isinstance(value, str) and value.strip() for value in values)


def hold_out(
    examples: Examples, seed: int, share: float = 0.1, at_most: int = 512
) -> tuple[Examples, list[Drawn]]:
    """Some examples with a positive of their own, drawn for judging, and the rest for training.

    Where fewer than 2 can be spared, none are.
    """
    rng = random.Random(f"hold out {seed}")
    fit = [i for i, (kind, _) in enumerate(examples.examples) if kind is not Kind.SENTENCE]
    count = min(at_most, round(share * len(fit)))
    if count < 2:
        return examples, []
    held = sorted(rng.sample(fit, count))
    drawn = [draw(*examples.examples[i], rng) for i in held]
    out = set(held)
    rest = tuple(e for i, e in enumerate(examples.examples) if i not in out)
    return Examples(rest, examples.excluded), drawn


def epoch_batches(examples: Examples, batch_size: int, seed: int, epoch: int) -> list[Batch]:
    """All batches of one epoch, decided by (seed, epoch) alone; their number is always the same.

    A batch has examples of one kind, so that each of its rows has a hard negative or none has. No
    text stands in two rows of a batch where the order can be changed to avoid it. A single pair
    that is left over is dropped: alone it has nothing to be told apart from.
    """
    rng = random.Random(f"epoch {seed} {epoch}")
    batches: list[Batch] = []
    for kind in Kind:
        rows = [draw(kind, texts, rng) for k, texts in examples.examples if k is kind]
        rng.shuffle(rows)
        batches += [b for b in _fill(rows, batch_size) if len(b) > 1 or b[0].negative is not None]
    rng.shuffle(batches)
    return batches


def _fill(rows: Sequence[Drawn], size: int) -> Iterator[Batch]:
    """Batches of `size` in order; a row that repeats a text of the batch waits for the next."""
    waiting = deque(rows)
    while waiting:
        batch: Batch = []
        seen: set[str] = set()
        repeats: list[Drawn] = []
        while waiting and len(batch) < size and len(repeats) < 2 * size:
            row = waiting.popleft()
            texts = {text for text in row if text is not None}
            if seen.isdisjoint(texts):
                batch.append(row)
                seen |= texts
            else:
                repeats.append(row)
        # Nothing fresh in reach: take repeats, which the loss masks, rather than a small batch.
        taken = size - len(batch)
        batch += repeats[:taken]
        waiting.extendleft(reversed(repeats[taken:]))
        yield batch
