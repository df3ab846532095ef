"""Evaluation files: TSV with a header line and no quoting, UTF-8, plain or .gz."""

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path

from trainer.errors import DataError
from trainer.reading import open_text

Cells = list[str]


def read_table(
    path: Path, columns: Sequence[str], optional: Sequence[str] = ()
) -> Iterator[tuple[int, Cells]]:
    """Line number and cells of each line that is not empty, the cells in the order of `columns`.

    columns: names that the header must hold. optional: names whose cells follow; "" where the
    header lacks one. Raises DataError, with file and line, for a column or a cell that is missing
    and for a file without rows behind its header.
    """
    with open_text(path) as lines:
        rows = csv.reader(lines, delimiter="\t", quoting=csv.QUOTE_NONE)
        header = next(rows, [])
        if missing := [name for name in columns if name not in header]:
            raise DataError(
                f"{path}:1: no column {', '.join(missing)}: expected a header line with "
                f"{', '.join(columns)}, got {', '.join(header) or 'an empty file'}"
            )
        at = [header.index(name) if name in header else None for name in (*columns, *optional)]
        width = 1 + max(place for place in at if place is not None)
        empty = True
        for row in filter(None, rows):
            if len(row) < width:
                raise DataError(
                    f"{path}:{rows.line_num}: {len(row)} columns, expected at least {width}"
                )
            empty = False
            yield rows.line_num, ["" if place is None else row[place] for place in at]
        if empty:
            raise DataError(f"{path}: no rows behind the header line")
