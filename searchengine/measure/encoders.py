"""Encoders compared on the same documents, questions and judgements."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from searchengine.corpus.documents import Document
from searchengine.encoders.protocol import TextEncoder
from searchengine.engine import SearchEngine
from searchengine.errors import QueryError
from searchengine.measure.judgements import Qrels
from searchengine.measure.metrics import RetrievalRow, Setting
from searchengine.measure.retrieval import Task, exact, task

CHANCE = 0.05
"""The greatest p of a difference that counts as shown."""


@contextmanager
def encoded(
    documents: Iterable[Document],
    encoder: TextEncoder,
    config: Mapping[str, Any] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Iterator[SearchEngine]:
    """A collection of the documents, which is removed afterwards; arguments as SearchEngine's."""
    with (
        TemporaryDirectory(prefix="searchengine-") as scratch,
        SearchEngine.create(Path(scratch) / "collection", encoder, config) as engine,
    ):
        engine.add(documents, progress=progress)
        yield engine


@contextmanager
def by_encoders(
    encoders: Mapping[str, TextEncoder],
    documents: Callable[[], Iterable[Document]],
    queries: Mapping[str, str],
    qrels: Qrels,
    *,
    exclude_self: bool | None = None,
    progress: Callable[[str, int], None] | None = None,
) -> Iterator[tuple[SearchEngine, Task, list[Setting]]]:
    """Rank all documents at full width by each encoder, in a collection that is then removed.

    Within the block: a collection of the documents, the questions that were judged, and a setting
    for each encoder, in their order.

    Args:
        encoders: by the names of their settings; at least one.
        documents: gives the documents, once for each encoder.
        queries, qrels, exclude_self: as for evaluate.retrieval.task.
        progress: called with the name of an encoder and the number of documents just encoded.

    Raises QueryError for one encoder under two names, and what `add`, `task` and `exact` raise.
    """
    names: dict[str, str] = {}  # by fingerprint
    for name, encoder in encoders.items():
        if (other := names.setdefault(encoder.fingerprint, name)) != name:
            raise QueryError(f"{other} and {name} are the same encoder; name two that differ")
    settings: list[Setting] = []
    for i, (name, encoder) in enumerate(encoders.items(), start=1):
        with encoded(documents(), encoder, progress=_named(progress, name)) as engine:
            judged = task(engine, queries, qrels, exclude_self)
            settings.append(exact(engine, judged, name))
            if i == len(encoders):
                yield engine, judged, settings


def conclusion(row: RetrievalRow) -> str | None:
    """What the comparison of a row with its baseline shows, in a sentence; None: it has none.

    A difference is shown if p is at most CHANCE and the interval leaves 0 out.
    """
    if row.comparison is None or row.p is None:
        return None
    comparison = row.comparison
    p = "p < 0.001" if row.p < 0.001 else f"p = {row.p:.3f}"
    name, low, high = row.setting.name, comparison.low, comparison.high
    if row.p > CHANCE or low <= 0 <= high:
        ends = f" ({low:+.3f} to {high:+.3f})" if row.intervals else ""
        return (
            f"{name} and {row.baseline}: no difference beyond chance, "
            f"{comparison.difference:+.3f}{ends}, {p}"
        )
    better = "better" if comparison.difference > 0 else "worse"
    least, most = sorted((abs(low), abs(high)))
    ends = f" ({least:.3f}–{most:.3f})" if row.intervals else ""
    return f"{name} is {better} than {row.baseline} by {abs(comparison.difference):.3f}{ends}, {p}"


def _named(
    progress: Callable[[str, int], None] | None, name: str
) -> Callable[[int, int], None] | None:
    if progress is None:
        return None
    return lambda documents, _: progress(name, documents)
