"""Training files to examples to batches.

TSV has a header line and no quoting; JSONL has one object per line; both may be .gz and are UTF-8.
What an example is follows from the names of its columns (docs/training.md lists them).
"""

import csv
import hashlib
import itertools
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
from trainer.reading import open_text
from trainer.training.data.columns import Example, Header, Reading, choose_columns, read_row
from trainer.training.data.positives import Augment, Drawn, Kind, Texts, draw

Batch = list[Drawn]


@dataclass(frozen=True, slots=True)
class Examples:
    """All examples of a run. excluded: number left out because of the exclude files."""

    examples: tuple[Example, ...]
    excluded: int = 0

    def __len__(self) -> int:
        return len(self.examples)

    def digest(self, files: Iterable[Path] = ()) -> str:
        """sha256 (hex) of the examples in order and of files: the same in a resumed run."""
        digest = hashlib.sha256()
        for path in files:
            digest.update(path.read_bytes())
        for kind, texts in self.examples:
            row = json.dumps([kind, *texts])  # ASCII: lone surrogates are written as escapes
            digest.update(row.encode())
        return digest.hexdigest()


def read_examples(
    paths: Iterable[Path],
    columns: Sequence[str] = (),
    exclude: Iterable[Path] = (),
    *,
    reading: Reading = Reading.TEXTS,
    expects: Sequence[Kind] = (),
    next_sentence: bool = False,
) -> Examples:
    """The examples of all files, without those that contain a sentence of the exclude files.

    Sentences are compared by their letters and digits alone. reading: what is read besides texts.
    expects: the kinds that a file may hold; () for any. next_sentence: sentences become pairs of
    one and what follows it. Raises DataError, with file and line where there is one.
    """
    forbidden = {identity(text) for path in exclude for text in sentences(path)}
    kept: list[Example] = []
    excluded = 0
    for path in paths:
        examples = list(read_file(path, columns, reading))
        if not examples:
            raise DataError(f"{path}: no examples")
        _check_kinds(path, examples, expects)
        if next_sentence:
            examples = list(_with_next(examples))
        allowed = [
            example
            for example in examples
            if not forbidden or forbidden.isdisjoint(map(identity, texts_without_label(example)))
        ]
        kept += allowed
        excluded += len(examples) - len(allowed)
    if not kept and not excluded:
        raise DataError("no sentence has another after it: next-sentence needs two in a file")
    if not kept:
        raise DataError(f"all {excluded} examples contain a sentence of the exclude files")
    labels = {texts[1] for kind, texts in kept if kind is Kind.LABELLED}
    if len(labels) == 1:
        raise DataError(
            f"all {len(kept)} examples have the label {min(labels)!r}: expected two labels or more"
        )
    return Examples(tuple(kept), excluded)


def read_labelled(paths: Iterable[Path], columns: Sequence[str] = ()) -> list[tuple[str, str]]:
    """The texts of all files with their labels. Raises DataError, with file and line."""
    rows = (row for path in paths for row in read_file(path, columns, Reading.LABELS))
    labelled = [(texts[0], texts[1]) for _, texts in rows]
    if not labelled:
        raise DataError(f"{', '.join(map(str, paths))}: no labelled texts")
    return labelled


def _check_kinds(path: Path, examples: Sequence[Example], expects: Sequence[Kind]) -> None:
    for kind, texts in examples if expects else ():
        if kind not in expects:
            raise DataError(
                f"{path}: holds a {kind} ({texts[0][:40]!r}), but {' or '.join(expects)} was "
                f"expected: give it such a file (docs/training.md lists the columns)"
            )


def _with_next(examples: Sequence[Example]) -> Iterator[Example]:
    """Sentences as pairs with the one that follows; other examples as they are."""
    for (kind, texts), (next_kind, following) in itertools.pairwise(examples):
        if kind is not Kind.SENTENCE:
            yield kind, texts
        elif next_kind is Kind.SENTENCE:
            yield Kind.PAIR, (texts[0], following[0])
    if examples[-1][0] is not Kind.SENTENCE:
        yield examples[-1]


def key(text: str) -> str:
    """Letters and digits in lower case without accents; [a-z0-9] for English."""
    if text.isascii():
        return re.sub(r"[^a-z0-9]+", "", text.lower())
    return "".join(c for c in unicodedata.normalize("NFKD", text.casefold()) if c.isalnum())


def identity(text: str) -> str:
    """Equal for equal texts: the key, or the text itself where it has no letters or digits."""
    return key(text) or text


def texts_without_label(example: Example) -> Texts:
    """The texts of an example, without its label or scores."""
    kind, texts = example
    return texts[:-1] if kind in (Kind.LABELLED, Kind.SCORED) else texts


def sentences(path: Path) -> Iterator[str]:
    """Every sentence of a file of examples or of scored pairs; each example's texts in turn."""
    for _, texts in read_file(path, reading=Reading.IGNORE):
        yield from texts


def read_file(
    path: Path, columns: Sequence[str] = (), reading: Reading = Reading.TEXTS
) -> Iterator[Example]:
    """The examples of one file."""
    with open_text(path) as lines:
        first: dict[str, Any] = {}  # the first value of every column
        origin: dict[str, str] = {}  # where every column begins: file and line
        rows: Iterable[tuple[int, dict[str, Any]]]
        if ".jsonl" in path.suffixes:
            # Objects may lack columns of others: the columns are those of all rows together.
            rows = list(_jsonl_rows(path, lines))
            for number, row in rows:
                first |= {name: value for name, value in row.items() if first.get(name) is None}
                origin = dict.fromkeys(row, f"{path}:{number}") | origin
            place = str(path)
        else:
            table = _tsv_rows(path, lines)
            head = list(itertools.islice(table, 1))
            first = head[0][1] if head else {}
            rows = itertools.chain(head, table)
            place = f"{path}:1"
            origin = dict.fromkeys(first, place)
        chosen: tuple[str, ...] = ()
        if first:
            chosen = choose_columns(Header(place, first, origin), columns, reading)
        for number, row in rows:
            yield read_row(f"{path}:{number}", row, chosen, reading)


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
            raise DataError(f"{path}:{number}: not a JSON object on one line: {error}") from error
        if not isinstance(row, dict):
            raise DataError(f"{path}:{number}: expected a JSON object, got {line.strip()[:40]!r}")
        yield number, row


def epoch_batches(
    examples: Examples,
    batch_size: int,
    seed: int,
    epoch: int,
    augment: Augment = Augment.NONE,
    augment_share: float = 0.1,
) -> list[Batch]:
    """All batches of one epoch, decided by (seed, epoch) alone; their number is always the same.

    A batch has examples of one kind, so that each of its rows has hard negatives or none has. No
    text is in two rows of a batch where the order can be changed to avoid it. A single row that is
    left over is dropped if it has no negatives.
    """
    rng = random.Random(f"epoch {seed} {epoch}")
    batches: list[Batch] = []
    for kind in Kind:
        of_kind = [texts for k, texts in examples.examples if k is kind]
        rows = [draw(kind, texts, rng, augment, augment_share) for texts in of_kind]
        rng.shuffle(rows)
        batches += [b for b in _fill(rows, batch_size) if len(b) > 1 or b[0].negatives]
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
            texts = {row.anchor, row.positive, *row.negatives} - {""}
            if seen.isdisjoint(texts):
                batch.append(row)
                seen |= texts
            else:
                repeats.append(row)
        # No other row is near: take repeats, which the loss masks, rather than a small batch.
        taken = size - len(batch)
        batch += repeats[:taken]
        waiting.extendleft(reversed(repeats[taken:]))
        yield batch
