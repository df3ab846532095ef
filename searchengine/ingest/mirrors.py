"""What an engine offers to keep a collection equal to a folder: `mirror` and `watch`."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Event
from time import monotonic

from searchengine.backends.folder.collection import Local
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


class Mirrors(Local):
    """Keeps an open collection equal to a folder of files."""

    _encoder: CollectionEncoder

    def _reader(self, encoded: str | Path | None = None) -> PassageReader:
        """Cuts and encodes documents, or takes their vectors from a folder of `encode`.

        Raises QueryError without an encoder."""
        folder = None if encoded is None else EncodedFolder(Path(encoded))
        self.collection.follow()  # the folder may have been replaced, with other settings
        stored = self.collection.settings
        settings = CollectionSettings.from_stored(stored)
        if not settings.encodes:
            raise QueryError(
                f"{self.collection.path} has no encoder; pass the vectors of the documents: "
                "add(documents, vectors)"
            )
        try:
            encoder = self._encoder.load(stored)
        except EncoderMismatch:
            if not self._encoder.is_past(stored):
                raise
            return self._reader(encoded)  # reindexed meanwhile
        if folder is None:
            return PassageReader(encoder, settings.passages, stored)
        return EncodedReader(folder, encoder, settings.passages, stored)

    def mirror(
        self,
        folder: str | Path,
        options: MirrorOptions | None = None,
        *,
        unread: Unread | None = None,
        on_bad: OnBad | None = None,
    ) -> AddSummary:
        """Add the files of a folder, and remove the documents of those that are gone.

        Afterwards its documents are those of a new collection of the folder. Documents of other
        folders, and those without a folder, are not touched. A document whose file was moved keeps
        its vectors. A file that cannot be read has no documents.

        Args:
            folder: files, as `searchengine index` reads them.
            options: see MirrorOptions.
            unread: counts the files that are skipped or cannot be read.
            on_bad: called with the error of every malformed record; None: the rest of its file is
                left out, and `unread` has the message.

        Raises EmptyCorpus (nothing would be left), CorpusError (missing folder), and as `add`.
        """
        options = MirrorOptions() if options is None else options
        unread = Unread() if unread is None else unread
        state = FolderState(check_corpus(folder).resolve())
        files = state.look(unread)._replace(unsettled=set())
        return self._pass(state, files, options, unread, on_bad)

    def watch(
        self,
        folder: str | Path,
        options: MirrorOptions | None = None,
        *,
        stop: Event | None = None,
    ) -> Iterator[Pass]:
        """As `mirror`, again after each change of the folder, until `stop` is set.

        Each look at the folder, at least one in ten seconds, shows the newest commit too.

        Yields the first pass, and then each one that has changed something, left out a file or
        record, or failed. A pass that fails is tried again until it succeeds, whether the folder
        or the collection is away, empty, busy, damaged, full or not writable, or the encoder's
        endpoint fails. Malformed records are left out. Needs watchfiles.

        Raises EncoderMismatch and EncoderMissing, which waiting does not mend, and CollectionError
        for a collection that is closed or on a server.
        """
        from searchengine.ingest.watching import Watcher

        options = MirrorOptions() if options is None else options
        options = replace(options, add=replace(options.add, skip_bad=True))
        state, collection = FolderState(Path(folder).resolve()), self.local
        first, documents = True, self._count()
        problems: set[str] = set()  # since a pass succeeded: each is reported once
        named: set[str] = set()  # what was left out, so that a second reading is no news
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
                    summary = self._pass(state, files, options, unread, on_bad)
                    settled = state.done(files)
                except (EncoderMismatch, EncoderMissing):
                    raise
                except (CollectionError, CorpusError, EndpointError, OSError) as error:
                    if collection.closed:
                        raise
                    problem = str(error)
                with suppress(CollectionError, OSError):
                    documents = self._count()
                retry = max(RETRY, min(_SHARE * (monotonic() - began), _LONGEST))
                done = Pass(summary, documents, unread, malformed, problem)
                left_out = {*unread.failed.first, *malformed.first}
                news = problem not in problems if problem else first or problems
                if news or done.changes or not left_out <= named:
                    yield done
                first, named = first and summary is None, left_out or named
                problems = {*problems, problem} if problem else set()
                watcher.wait(None if settled else retry if problem else RECENT)

    def _count(self) -> int:
        with self.collection.reading() as snapshot:
            return snapshot.store.count()

    def _pass(
        self,
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
            record_keys=self.collection.settings.get("record_keys", "content"),
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
        with Mirroring(self.local, documents, self._reader, options.add, scope) as mirroring:
            return mirroring.run()


def _into(left_out: LeftOut) -> OnBad:
    return lambda error: left_out.add(str(error))
