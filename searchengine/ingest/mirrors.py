"""Keep a collection equal to a folder of files: once (`mirror`), or after each change (`watch`)."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Event
from time import monotonic

from searchengine.backends.contract import Backend
from searchengine.backends.embedded import Embedded
from searchengine.corpus.columns import Columns
from searchengine.corpus.documents import LeftOut
from searchengine.corpus.files import check_corpus, read_corpus
from searchengine.corpus.folder import Unread
from searchengine.corpus.lines import OnBad
from searchengine.encoders.of_collection import CollectionEncoder
from searchengine.errors import (
    CollectionError,
    CorpusError,
    EncoderMismatch,
    EncoderMissing,
    EndpointError,
    QueryError,
)
from searchengine.ingest.encoding.folder import EncodedFolder
from searchengine.ingest.encoding.reader import EncodedReader
from searchengine.ingest.folder_state import RECENT, FolderState, Listing
from searchengine.ingest.mirror import Mirroring, Scope
from searchengine.ingest.passages import PassageReader
from searchengine.ingest.settings import AddOptions, AddSummary, CollectionSettings

RETRY = 1.0
"""Seconds to wait after a pass that failed."""
_SHARE, _LONGEST = 4, 60.0
"""The same, in times that it took, and at most: it encodes again what a full disk did not take."""


@dataclass(frozen=True, slots=True)
class MirrorOptions:
    """How to mirror a folder.

    Attributes:
        key_prefix: text before the keys, which are the paths below the folder.
        columns: the fields of records; None: `_id`, `title` and `text`.
        allow_empty: remove all documents of the folder if it has none; otherwise that raises.
        add: as for `add`; skip_bad leaves out malformed records.
    """

    key_prefix: str = ""
    columns: Columns | None = None
    allow_empty: bool = False
    add: AddOptions = field(default_factory=AddOptions)


@dataclass(frozen=True, slots=True)
class Pass:
    """What a pass of `watch` has done.

    Attributes:
        summary: numbers of documents; None if the pass failed.
        documents: documents in the collection.
        unread: files that could not be read, or are of other kinds.
        malformed: messages of records that were left out.
        problem: why the pass failed, in a sentence; it is tried again.
    """

    summary: AddSummary | None
    documents: int
    unread: Unread
    malformed: LeftOut
    problem: str = ""

    @property
    def changes(self) -> dict[str, int]:
        """What was done → number of documents, where there are any."""
        names = ("added", "changed", "metadata_updated", "moved", "removed")
        counts = {name: getattr(self.summary, name, 0) for name in names}
        return {name: count for name, count in counts.items() if count}


def passage_reader(
    collection: Backend, encoder: CollectionEncoder, encoded: str | Path | None = None
) -> PassageReader:
    """Cuts and encodes documents, or takes their vectors from a folder of `encode`.

    Raises QueryError without an encoder."""
    folder = None if encoded is None else EncodedFolder(Path(encoded))
    collection.follow()  # the folder may have been replaced, with other settings
    stored = collection.settings
    settings = CollectionSettings.from_stored(stored)
    if not settings.encodes:
        raise QueryError(
            f"{collection.path} has no encoder; pass the vectors of the documents: "
            "add(documents, vectors)"
        )
    try:
        loaded = encoder.load(stored)
    except EncoderMismatch:
        if not encoder.is_past(stored):
            raise
        return passage_reader(collection, encoder, encoded)  # reindexed meanwhile
    if folder is None:
        return PassageReader(loaded, settings.passages, stored)
    return EncodedReader(folder, loaded, settings.passages, stored)


Reader = Callable[[], PassageReader]


def mirror(
    collection: Embedded,
    reader: Reader,
    folder: str | Path,
    options: MirrorOptions,
    unread: Unread,
    on_bad: OnBad | None,
) -> AddSummary:
    """Make the documents of a folder those of the collection: SearchEngine.mirror."""
    state = FolderState(check_corpus(folder).resolve())
    files = state.look(unread)._replace(unsettled=set())
    return _pass(collection, reader, state, files, options, unread, on_bad)


def watch(
    collection: Embedded,
    reader: Reader,
    folder: str | Path,
    options: MirrorOptions,
    stop: Event | None,
) -> Iterator[Pass]:
    """As `mirror`, again after each change of the folder: SearchEngine.watch."""
    from searchengine.ingest.watching import Watcher

    options = replace(options, add=replace(options.add, skip_bad=True))
    state = FolderState(Path(folder).resolve())
    first, documents = True, _count(collection)
    problems: set[str] = set()  # since a pass succeeded: each is reported once
    named: set[str] = set()  # left out before: reported once
    with Watcher(state.folder, stop) as watcher:
        while not watcher.stopped:
            watcher.follow()
            began = monotonic()
            summary, unread, malformed = None, Unread(), LeftOut()
            settled, problem = False, ""
            try:
                collection.refresh()  # also the encoder, and to let go of SQLite's log
                files = state.look(unread, collection.store.identity)
                # A pass that failed may have stored files that are gone by now.
                if not (first or problems or state.has_changed(files)):
                    watcher.wait()
                    continue
                on_bad = _into(malformed)
                summary = _pass(collection, reader, state, files, options, unread, on_bad)
                settled = state.done(files)
            except (EncoderMismatch, EncoderMissing):
                raise
            except (CollectionError, CorpusError, EndpointError, OSError) as error:
                if collection.closed:
                    raise
                problem = str(error)
            with suppress(CollectionError, OSError):
                documents = _count(collection)
            retry = max(RETRY, min(_SHARE * (monotonic() - began), _LONGEST))
            done = Pass(summary, documents, unread, malformed, problem)
            left_out = {*unread.failed.first, *malformed.first}
            news = problem not in problems if problem else first or problems
            if news or done.changes or not left_out <= named:
                yield done
            first, named = first and summary is None, left_out or named
            problems = {*problems, problem} if problem else set()
            watcher.wait(None if settled else retry if problem else RECENT)


def _count(collection: Embedded) -> int:
    with collection.reading() as snapshot:
        return snapshot.store.count()


def _pass(
    collection: Embedded,
    reader: Reader,
    state: FolderState,
    files: Listing,
    options: MirrorOptions,
    unread: Unread,
    on_bad: OnBad | None,
) -> AddSummary:
    """Read the files that have changed, and remove what is gone."""
    documents = read_corpus(
        state.folder,
        on_bad,
        key_prefix=options.key_prefix,
        record_keys=collection.settings.get("record_keys", "content"),
        columns=options.columns,
        unread=unread,
        files=[state.folder / path for path in sorted(files.changed)],
    )
    scope = Scope(
        state.folder,
        options.key_prefix,
        files.files.keys(),
        set(files.changed),
        files.unsettled,
        options.allow_empty,
    )
    with Mirroring(collection, documents, reader, options.add, scope) as mirroring:
        return mirroring.run()


def _into(left_out: LeftOut) -> OnBad:
    return lambda error: left_out.add(str(error))
