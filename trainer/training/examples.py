"""The examples of a run, on disk: memory does not grow with their texts.

Before training, the examples of all files are copied to a temporary file, from which any of them
can be read by its number. So an epoch is in random order over all of them, and a resumed run
continues with the next batch, however large the files are.
"""

import hashlib
import itertools
import json
import os
import tempfile
from array import array
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Self, overload

import numpy as np
from numpy.typing import NDArray

from searchengine.trainer.errors import DataError
from searchengine.trainer.training.example_files import (
    identity,
    read_file,
    sentences,
    texts_without_label,
)
from searchengine.trainer.training.rows import Example, Kind, Reading

KINDS = tuple(Kind)


class _Descriptor:
    """An open file, closed with the last that refers to it."""

    def __init__(self, number: int):
        self.number = number

    def __del__(self) -> None:
        os.close(self.number)


class Examples(Sequence[Example]):
    """Examples in a temporary file, which is removed with its last reader.

    Each takes 9 bytes of memory. excluded: number left out because of the exclude files. folder:
    where the file is; None for the system's temporary folder. Raises DataError if the disk is full.
    """

    def __init__(self, examples: Iterable[Example], excluded: int = 0, folder: Path | None = None):
        self.excluded = excluded
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
                self._file = _Descriptor(os.dup(file.fileno()))
        except OSError as error:
            raise DataError(
                f"{folder or tempfile.gettempdir()}: no room for a copy of the examples "
                f"({error.strerror})"
            ) from error
        self._ends = np.frombuffer(ends, dtype=np.int64)
        self._kinds = np.frombuffer(kinds, dtype=np.int8)
        self._rows: NDArray[np.int64] | None = None
        self._digest = digest.hexdigest()

    def __len__(self) -> int:
        return len(self._kinds) if self._rows is None else len(self._rows)

    @overload
    def __getitem__(self, place: int) -> Example: ...

    @overload
    def __getitem__(self, place: slice) -> list[Example]: ...

    def __getitem__(self, place: int | slice) -> Example | list[Example]:
        if isinstance(place, slice):
            return [self[i] for i in range(*place.indices(len(self)))]
        if not -len(self) <= place < len(self):
            raise IndexError(place)
        row = place % len(self) if self._rows is None else int(self._rows[place])
        start, end = int(self._ends[row]), int(self._ends[row + 1])
        # pread, not read: threads and forked processes share the file's position.
        kind, *texts = json.loads(os.pread(self._file.number, end - start, start))
        return Kind(kind), tuple(texts)

    def __iter__(self) -> Iterator[Example]:
        return (self[i] for i in range(len(self)))

    @property
    def mean_bytes(self) -> float:
        """Mean size of an example in the file."""
        return float(self._ends[-1]) / max(1, len(self._kinds))

    def of_kind(self, kind: Kind) -> NDArray[np.int64]:
        """The places of all examples of a kind, in order."""
        kinds = self._kinds if self._rows is None else self._kinds[self._rows]
        return np.flatnonzero(kinds == KINDS.index(kind))

    def has(self, kind: Kind) -> bool:
        """Whether an example is of this kind."""
        return len(self.of_kind(kind)) > 0

    def without(self, places: Iterable[int]) -> Self:
        """The examples except those at these places, in the same file."""
        rows = np.arange(len(self._kinds)) if self._rows is None else self._rows
        rest = object.__new__(type(self))
        vars(rest).update(vars(self))
        rest._rows = np.delete(rows, np.array(sorted(places), dtype=np.int64))
        return rest

    def digest(self, files: Iterable[Path] = ()) -> str:
        """sha256 (hex) of all examples in order and of files: the same in a resumed run."""
        digest = hashlib.sha256(self._digest.encode())
        for path in files:
            digest.update(path.read_bytes())
        return digest.hexdigest()


def read_examples(
    paths: Iterable[Path],
    columns: Sequence[str] = (),
    exclude: Iterable[Path] = (),
    *,
    reading: Reading = Reading.TEXTS,
    expects: Sequence[Kind] = (),
    next_sentence: bool = False,
    folder: Path | None = None,
) -> Examples:
    """The examples of all files, without those that contain a sentence of the exclude files.

    Sentences are compared by their letters and digits alone. reading: what is read besides texts.
    expects: the kinds that a file may hold; () for any. next_sentence: a sentence becomes a pair
    with the next one. folder: see `Examples`. Raises DataError, with file and line if it has one.
    """
    forbidden = {identity(text) for path in exclude for text in sentences(path)}
    excluded = 0
    labels: set[str] = set()

    def allowed() -> Iterator[Example]:
        nonlocal excluded
        for path in paths:
            examples = _checked(path, read_file(path, columns, reading), expects)
            for example in _with_next(examples) if next_sentence else examples:
                texts = texts_without_label(example)
                if forbidden and not forbidden.isdisjoint(map(identity, texts)):
                    excluded += 1
                    continue
                if example[0] is Kind.LABELLED:
                    labels.add(example[1][1])
                yield example

    kept = Examples(allowed(), folder=folder)
    kept.excluded = excluded
    if not kept and not excluded:
        raise DataError("no sentence has another after it: next-sentence needs two in a file")
    if not kept:
        raise DataError(f"all {excluded} examples contain a sentence of the exclude files")
    if len(labels) == 1:
        raise DataError(
            f"all {len(kept)} examples have the label {min(labels)!r}: expected two labels or more"
        )
    return kept


def _checked(path: Path, examples: Iterable[Example], expects: Sequence[Kind]) -> Iterator[Example]:
    """The same examples. Raises DataError if there are none, or one is of another kind."""
    empty = True
    for kind, texts in examples:
        empty = False
        if expects and kind not in expects:
            raise DataError(
                f"{path}: holds a {kind} ({texts[0][:40]!r}), but {' or '.join(expects)} was "
                f"expected: give it such a file (docs/training.md lists the columns)"
            )
        yield kind, texts
    if empty:
        raise DataError(f"{path}: no examples")


def _with_next(examples: Iterable[Example]) -> Iterator[Example]:
    """Sentences as pairs with the one that follows; other examples as they are."""
    for example, following in itertools.pairwise(itertools.chain(examples, [None])):
        assert example is not None
        kind, texts = example
        if kind is not Kind.SENTENCE:
            yield example
        elif following is not None and following[0] is Kind.SENTENCE:
            yield Kind.PAIR, (texts[0], following[1][0])
