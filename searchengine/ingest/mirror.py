"""Keep a collection equal to a folder of files: once (`mirror`), or after each change (`watch`).

One pass adds and updates the documents of files that have changed, renames those of files that were
moved, and removes those of files that are gone. A document belongs to a folder if its `root` is
that folder, and to a file of it if its key is the path below the folder, perhaps with "#" and a
part of the file behind it. So documents of other folders, and those without a folder, are never
removed.
"""

from collections.abc import Collection as Container
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Event
from time import monotonic

from searchengine.backends.folder.collection import Collection
from searchengine.backends.folder.documents.store import Store
from searchengine.backends.terms import file_name
from searchengine.corpus.documents import Document, LeftOut
from searchengine.corpus.files import Unread, check_corpus, is_listed, read_corpus
from searchengine.corpus.formats.kinds import AS_THEY_ARE, FileChoice
from searchengine.corpus.tabular import Columns
from searchengine.corpus.text_files import OnBad
from searchengine.errors import (
    CollectionError,
    CorpusError,
    EmptyCorpus,
    EncoderMismatch,
    EncoderMissing,
    EndpointError,
)
from searchengine.ingest.ingestion import Ingestion, Item, Readers
from searchengine.ingest.settings import AddOptions, AddSummary
from searchengine.ingest.watching import RECENT, FolderState, Listing, Watcher

_CHUNK = 10_000  # keys looked up at a time


@dataclass(frozen=True, slots=True)
class Scope:
    """The folder to mirror.

    Attributes:
        root: the folder, absolute.
        key_prefix: text before the keys; other documents of the folder are not touched.
        files: paths below the folder of all its files.
        read: the files with documents that are passed to the ingestion.
        unsettled: those that were just being written; what they lose is removed by the next pass.
        allow_empty: remove documents even if none is left.
        choice: files to read as text, or to leave out.
    """

    root: Path
    key_prefix: str
    files: Container[str]
    read: Container[str]
    unsettled: Container[str] = ()
    allow_empty: bool = False
    choice: FileChoice = AS_THEY_ARE

    def file_of(self, key: str) -> str | None:
        """The file that a document of the folder comes from; None: it is gone."""
        path = key.removeprefix(self.key_prefix)
        while path not in self.files:
            path, part, _ = path.rpartition("#")
            if not part:
                return None
        return path


class Mirroring(Ingestion):
    """Ingestion of the files of a folder that have changed, and removal of those that are gone.

    A new document with the title and text of a document of a deleted file was moved: it takes its
    vectors, and what `update` has set.
    """

    def __init__(
        self,
        collection: Collection,
        documents: Iterable[Document],
        readers: Readers,
        options: AddOptions,
        scope: Scope,
    ) -> None:
        super().__init__(collection, documents, options, readers=readers)
        self._collection, self._scope = collection, scope
        self._missing: dict[bytes, list[str]] | None = None  # digest → keys without a file

    def run(self) -> AddSummary:
        """Commit until the documents end, then remove the documents of deleted files.

        Raises EmptyCorpus if no document would be left, and what Ingestion.run raises.
        """
        summary = super().run()
        removed = self._remove()
        return replace(summary, removed=max(0, removed - summary.moved))

    def _adopt_moved(self, items: Sequence[Item]) -> None:
        former = {}
        for item in items:
            if item.before is None and (key := self._former(item.document)) is not None:
                former[key] = item
        if not former:
            return
        known = self._backend.known([*former])
        for entry in self._backend.entries([*former]):
            item, state = former[entry.document.key], known.get(entry.document.key)
            if state is not None and entry.document.digest == state.digest == item.document.digest:
                item.kind, item.former = "moved", state
                item.spans, item.vectors = entry.spans, entry.vectors

    def _former(self, document: Document) -> str | None:
        """The key of the document of a deleted file that is this one."""
        if self._missing is None:
            self._missing = {}
            with self._collection.reader(self._identity) as store:
                rows = self._documents(store)
                missing = [key for _, key in rows if self._scope.file_of(key) is None]
            for start in range(0, len(missing), _CHUNK):
                known = self._backend.known(missing[start : start + _CHUNK])
                for key, state in known.items():
                    if state.vectors is None:  # else they came with it, from elsewhere
                        self._missing.setdefault(state.digest, []).append(key)
        keys, name = self._missing.get(document.digest, []), file_name(document.key)
        # A file's name is searched: with another one, the document is added again.
        former = next((key for key in keys if file_name(key) == name), None)
        if former is not None:
            keys.remove(former)
        return former

    def _remove(self) -> int:
        """Remove the documents of files that are gone; returns how many."""
        with self._collection.own_store(self._identity) as store:
            ids, total = self._gone(store)
            if not total and not self._scope.allow_empty:
                super()._check_not_empty()
            if not ids:
                return 0
            with self._collection.writing(store) as writer:
                ids, total = self._gone(store)
                if len(ids) == total and not self._scope.allow_empty:
                    raise EmptyCorpus(
                        f"{self._scope.root} has no documents left, so nothing was removed; to "
                        f"remove all its documents ({total}) from {self._backend.path}, add "
                        "--allow-empty"
                    )
                writer.changes.remove(ids)
            self._collection.merge_due(store, self._options.building)
        return len(ids)

    def _gone(self, store: Store) -> tuple[list[int], int]:
        """Ids of the documents to remove, and the number of documents of the folder."""
        rows = list(self._documents(store))
        gone = [i for i, key in rows if key not in self._seen and self._is_gone(key)]
        return gone, len(rows)

    def _is_gone(self, key: str) -> bool:
        """Whether a document that was not read in this pass is no longer in the folder."""
        file = self._scope.file_of(key)
        if file is not None:
            return file in self._scope.read and file not in self._scope.unsettled
        # Another process may have added a file that was not there when the folder was listed.
        path = key.removeprefix(self._scope.key_prefix)
        root, choice = self._scope.root, self._scope.choice
        return not any(is_listed(root, part, choice) for part in _files(path))

    def _documents(self, store: Store) -> Iterator[tuple[int, str]]:
        return store.keys_below(str(self._scope.root), self._scope.key_prefix)

    def _check_not_empty(self) -> None:
        """A pass may have nothing to add; `_remove` checks that something is left."""


def _files(path: str) -> Iterator[str]:
    """The paths of files that a document of this path below the folder may come from."""
    yield path
    while "#" in path:
        path = path.rpartition("#")[0]
        if path:
            yield path


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
        choice: files to read as text, or to leave out.
    """

    key_prefix: str = ""
    columns: Columns | None = None
    allow_empty: bool = False
    add: AddOptions = field(default_factory=AddOptions)
    choice: FileChoice = AS_THEY_ARE


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
        """Kind of change → number of documents, without zeros."""
        names = ("added", "changed", "metadata_updated", "moved", "removed")
        counts = {name: getattr(self.summary, name, 0) for name in names}
        return {name: count for name, count in counts.items() if count}


def mirror(
    collection: Collection,
    readers: Readers,
    folder: str | Path,
    options: MirrorOptions,
    unread: Unread,
    on_bad: OnBad | None,
) -> AddSummary:
    """Make a collection equal to a folder: SearchEngine.mirror."""
    state = FolderState(check_corpus(folder).resolve(), options.choice)
    files = state.look(unread)._replace(unsettled=set())
    return _pass(collection, readers, state, files, options, unread, on_bad)


def watch(
    collection: Collection,
    readers: Readers,
    folder: str | Path,
    options: MirrorOptions,
    stop: Event | None,
) -> Iterator[Pass]:
    """As `mirror`, again after each change of the folder: SearchEngine.watch."""
    options = replace(options, add=replace(options.add, skip_bad=True))
    state = FolderState(Path(folder).resolve(), options.choice)
    first, documents = True, _count(collection)
    problems: set[str] = set()  # since a pass succeeded: each is reported once
    named: set[str] = set()  # left out before: reported once
    with Watcher(state.folder, stop, options.choice) as watcher:
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
                summary = _pass(collection, readers, state, files, options, unread, on_bad)
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


def _count(collection: Collection) -> int:
    with collection.reading() as snapshot:
        return snapshot.store.count()


def _pass(
    collection: Collection,
    readers: Readers,
    state: FolderState,
    files: Listing,
    options: MirrorOptions,
    unread: Unread,
    on_bad: OnBad | None,
) -> AddSummary:
    """Read the changed files, and remove the documents of deleted ones."""
    documents = read_corpus(
        state.folder,
        on_bad,
        key_prefix=options.key_prefix,
        columns=options.columns,
        unread=unread,
        files=[state.folder / path for path in sorted(files.changed)],
        choice=options.choice,
    )
    scope = Scope(
        state.folder,
        options.key_prefix,
        files.files.keys(),
        set(files.changed),
        files.unsettled,
        options.allow_empty,
        options.choice,
    )
    with Mirroring(collection, documents, readers, options.add, scope) as mirroring:
        return mirroring.run()


def _into(left_out: LeftOut) -> OnBad:
    return lambda error: left_out.add(str(error))
