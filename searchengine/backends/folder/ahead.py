"""A segment that is built before the transaction that adds it, while others go on writing.

Its graph and its words file take most of the time of a large commit. They are built in a folder of
pending work, from the rows that the commit is expected to add. Should another writer change what
that depends on meanwhile, the segment is dropped, and the transaction builds its own.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from searchengine.backends.folder.documents import terms
from searchengine.backends.folder.documents.store import Store
from searchengine.backends.folder.folders import beside, checksum, os_errors, segment_errors
from searchengine.backends.folder.pending import Owner
from searchengine.backends.folder.writer import Ahead, WritableView, way_to_build
from searchengine.errors import CollectionError
from searchengine.indexer.building.build import Blocks, Progress
from searchengine.indexer.segment import Segment

MIN_ROWS = 1000
"""Rows from which it is worth while: fewer, with their words, take 0.1 s."""


@contextmanager
def built_ahead(
    view: WritableView,
    store: Store,
    made_by: Mapping[str, Any],
    rows: int,
    vectors: Callable[[], Blocks],
    texts: Callable[[], Iterable[terms.Text]],
    progress: Progress | None = None,
) -> Iterator[Ahead | None]:
    """Build a segment that `Writer.append` can take; it is removed at the end if it was not.

    None: it is small, or the first of the collection, for which nothing is chosen yet.

    Args:
        view, store: the collection, and its connection for writing.
        made_by: the settings by which they were made.
        rows: number of vectors.
        vectors: returns the vectors, (rows, D) in all.
        texts: returns the texts of their documents.
        progress: progress callback, as for `add`.

    Raises as `Writer.append`; also CollectionBusy and EncoderMismatch, as `WritableView.writing`.
    """
    if rows < MIN_ROWS:
        yield None
        return
    way, largest = way_to_build(store, rows)
    view.check_made_by(made_by, store)
    if largest is None:
        yield None
        return
    with store.transaction(view.wait), beside(view.path, store), os_errors(view.path):
        owner = Owner.new(view.path)
    folder, ahead = owner.folder / "segment", None
    try:
        try:
            with os_errors(view.path), segment_errors(view.path):
                Segment.build(
                    folder,
                    vectors(),
                    way.config,
                    provenance=way.provenance,
                    progress=progress,
                    rotation_of=view.opened([largest])[largest],
                    words=terms.writer_of(way.analyzer, lambda: (rows, texts())),
                ).close()
                # Its checksums are computed and remembered now, not while others wait.
                Segment.open(folder, checksum=checksum).close()
            ahead = Ahead(folder, way)
        except CollectionError:
            if largest in store.segments():
                raise
            # Another process has merged the one whose rotation was to be shared.
        yield ahead
    finally:
        owner.clear()
