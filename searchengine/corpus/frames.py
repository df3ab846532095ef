"""Tables of other libraries → rows, for `add`: none of them need be installed.

pandas and polars DataFrames; Arrow tables, datasets and readers of record batches; Hugging Face
datasets, streamed ones too. Fields of a row that are missing (None) are left out.
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Any, Protocol

from searchengine.corpus.columns import IDS
from searchengine.errors import CorpusError, QueryError

_KEPT = {"title", "text", *IDS}  # fields of the document itself, which may be None
_ROWS = 1024  # of an Arrow batch that are in memory as Python objects


class DataFrame(Protocol):
    """A table of pandas or polars, one document per row."""

    @property
    def columns(self) -> Any: ...


def rows_of(records: Any) -> Iterable[object]:
    """The rows of a table as mappings; any other iterable as it is.

    Raises QueryError for what is neither, and CorpusError for two columns of one name.
    """
    if isinstance(records, Mapping) and any(hasattr(v, "features") for v in records.values()):
        raise QueryError(f"add takes one split of a dataset: dataset[{next(iter(records))!r}]")
    if isinstance(records, str | Mapping):
        raise QueryError("add takes an iterable of documents; put one document into a list")
    rows = _rows(records)
    if rows is not None:
        return map(_without_missing, rows)
    if isinstance(records, Iterable):
        return records
    raise QueryError(
        "add takes an iterable of documents, a pandas or polars DataFrame, an Arrow table or a "
        f"Hugging Face dataset, got {type(records).__name__}"
    )


def _rows(table: Any) -> Any:
    """The rows of a table as mappings; None if it is no table of a kind known here."""
    if hasattr(table, "to_batches"):  # Arrow: a table or dataset
        return chain.from_iterable(map(_batch_rows, table.to_batches()))
    if hasattr(table, "read_next_batch"):  # Arrow: a reader of record batches
        return chain.from_iterable(map(_batch_rows, table))
    if hasattr(table, "features") and hasattr(table, "column_names"):  # Hugging Face
        return iter(table)
    is_polars = hasattr(table, "iter_rows")
    if not is_polars and not (hasattr(table, "to_dict") and hasattr(table, "columns")):
        return None
    if len(set(table.columns)) < len(table.columns):
        raise CorpusError("a column name occurs twice in the DataFrame; rename one of the two")
    return table.iter_rows(named=True) if is_polars else table.to_dict(orient="records")


def _batch_rows(batch: Any) -> Iterator[dict[str, Any]]:
    for start in range(0, batch.num_rows, _ROWS):
        yield from batch.slice(start, _ROWS).to_pylist()


def _without_missing(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row without metadata that is None: in a table every row has every column."""
    return {name: value for name, value in row.items() if value is not None or name in _KEPT}
