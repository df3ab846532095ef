"""Keep a collection equal to a folder of files: once (`mirror`), or after each change (`watch`).

One pass adds and updates the documents of files that have changed, and removes those of files that
are gone. A document belongs to a folder if its `root` is that folder, and to a file of it if its
key is the path below the folder, perhaps with "#" and a part of the file behind it. So documents of
other folders, and those without a folder, are never removed.
"""

import shlex
import time
from collections.abc import Callable, Container, Hashable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from threading import Event

from searchengine.backends.folder.collection import Collection
from searchengine.corpus.contents import Columns, suffix_of
from searchengine.corpus.files import Unread, check_corpus, folder_files, read_corpus
from searchengine.corpus.formats import KINDS
from searchengine.errors import (
    CollectionError,
    CorpusError,
    EmptyCorpus,
    EncoderMismatch,
    EncoderMissing,
    EndpointError,
)
from searchengine.ingest.ingestion import AddOptions, AddSummary, Ingestion, Readers

LOOK = 0.5
"""Least seconds between two looks at a folder that does not change, or two passes that fail."""
_SHARE, _LONGEST = 20, 60.0
"""The same, in times that one took, and at most: it encodes again what a full disk did not take."""
RECENT = 2.0
"""Seconds in which a file system may give two writes the same time."""
Stamp = tuple[int, int, int, int]
"""Inode, size, and times of a file, of which one changes when it is written again."""


@dataclass(frozen=True, slots=True)
class MirrorOptions(AddOptions):
    """How to mirror a folder: the options of `add`, and of the files.

    Attributes:
        key_prefix: text before the keys, which are the paths below the folder.
        columns: the fields of records; None: `_id`, `title` and `text`.
        gitignore: leave out files that a .gitignore names.
    """

    key_prefix: str = ""
    columns: Columns | None = None
    gitignore: bool = True


@dataclass(frozen=True, slots=True)
class Pass:
    """What a pass of `watch` has done.

    Attributes:
        summary: numbers of documents; None if the pass failed.
        documents: documents in the collection.
        unread: files and records that were left out.
        problem: why the pass failed, in a sentence; it is tried again.
    """

    summary: AddSummary | None
    documents: int
    unread: Unread
    problem: str = ""

    @property
    def changes(self) -> dict[str, int]:
        """Kind of change → number of documents, without zeros."""
        names = ("added", "changed", "metadata_updated", "removed")
        counts = {name: getattr(self.summary, name, 0) for name in names}
        return {name: count for name, count in counts.items() if count}


class FolderSync:
    """A folder, and which of its files the collection has read: `look`, `run`, `settle`.

    Attributes:
        folder: absolute.
        files: path below the folder of every file → its stamp, when it was looked at.
        changed: the files that were not read as they are.
        unsettled: those that were just being written; what they lose is removed by the next pass.
    """

    def __init__(
        self, collection: Collection, readers: Readers, folder: Path, options: MirrorOptions
    ) -> None:
        self.folder, self.files = folder, dict[str, Stamp]()
        self.changed, self.unsettled = set[str](), set[str]()
        self._collection, self._readers, self._options = collection, readers, options
        self._read: dict[str, Stamp | None] = {}  # None: to be read again
        self._reader: Hashable = None  # the collection that has read them

    def look(self, unread: Unread) -> bool:
        """List the files; False if none has appeared, changed or gone.

        A backup that was put in the place of the collection has not read what the one before has:
        every file has changed. `unread` counts files that are not read. Raises CorpusError.
        """
        check_corpus(self.folder)
        if not self.folder.is_dir():
            raise CorpusError(f"{self.folder} is not a folder; name the folder to mirror")
        now = time.time()
        stamps = {path: _stamp(self.folder / path) for path in self._list(unread)}
        self.files = {path: stamp for path, stamp in stamps.items() if stamp}
        if is_other := self._reader != (identity := self._collection.identity):
            self._read, self._reader = {}, identity
        self.changed = {p for p, stamp in self.files.items() if self._read.get(p) != stamp}
        # A file just written may be written again without another time: it is read again later.
        times = {path: self.files[path][3] / 1e9 for path in self.changed}
        self.unsettled = {path for path, written in times.items() if abs(now - written) < RECENT}
        return is_other or bool(self.changed) or self.files.keys() != self._read.keys()

    def _list(self, unread: Unread) -> set[str]:
        """The paths of the files that are there now. Raises CorpusError."""
        files = folder_files(self.folder, unread, self._options.gitignore)
        if unread.failed.count:  # nobody can tell which files of that folder are gone
            raise CorpusError(unread.failed.first[0])
        return {path.relative_to(self.folder).as_posix() for path in files}

    def settle(self) -> bool:
        """Note that the changed files were read; True if nobody was writing to them."""
        written = {p for p in self.changed if _stamp(self.folder / p) != self.files[p]}
        again = self.unsettled | written
        self._read = {p: None if p in again else stamp for p, stamp in self.files.items()}
        return not again

    def run(self, unread: Unread) -> AddSummary:
        """Read the changed files, and remove the documents of deleted ones.

        Raises EmptyCorpus if no document would be left.
        """
        options = self._options
        documents = read_corpus(
            self.folder,
            unread,
            key_prefix=options.key_prefix,
            columns=options.columns,
            files=[self.folder / path for path in sorted(self.changed)],
            gitignore=options.gitignore,
        )
        ingestion = Ingestion(self._collection, documents, options, self._readers)
        summary = ingestion.run(may_be_empty=True)
        keys = self._keys()
        gone = [key for key in keys if key not in ingestion.seen and self._is_gone(key, set)]
        if not keys:
            ingestion.check_not_empty()
        if gone and len(gone) == len(keys):
            command = ["searchengine", "delete", str(self._collection.path), keys[0]]
            raise EmptyCorpus(
                f"{self.folder} has no documents left, so nothing was removed; to remove all "
                f"{len(keys)}: {shlex.join(command)} …"
            )
        if not gone:
            return summary
        # Another process may have added a file that was not there when the folder was listed.
        is_gone = partial(self._is_gone, there=cache(lambda: self._list(Unread())))
        removed = self._collection.delete(gone, None, is_gone)
        return replace(summary, removed=removed)

    def _keys(self) -> list[str]:
        """The keys of the documents of the folder."""
        with self._collection.reading(newest=True) as snapshot:
            below = snapshot.store.keys_below(str(self.folder), self._options.key_prefix)
            return [key for _, key in below]

    def _is_gone(self, key: str, there: Callable[[], Container[str]]) -> bool:
        """Whether a document not read in this pass is no longer in the folder, or `there`."""
        paths = [*self._paths(key)]
        if file := next((path for path in paths if path in self.files), None):
            is_read = file in self.changed and file not in self.unsettled
            return is_read and not KINDS[suffix_of(Path(file))].missing
        return not any(path in there() for path in paths)

    def _paths(self, key: str) -> Iterator[str]:
        """The paths of the files that a document with this key may come from."""
        path = key.removeprefix(self._options.key_prefix)
        while path:
            yield path
            path = path.rpartition("#")[0]


def _stamp(path: Path) -> Stamp | None:
    with suppress(OSError):
        stat = path.stat()
        return stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns
    return None


def mirror(
    collection: Collection,
    readers: Readers,
    folder: str | Path,
    options: MirrorOptions,
    unread: Unread,
) -> AddSummary:
    """Make a collection equal to a folder: SearchEngine.mirror."""
    sync = FolderSync(collection, readers, check_corpus(folder).resolve(), options)
    sync.look(unread)
    sync.unsettled = set()
    return sync.run(unread)


def watch(
    collection: Collection,
    readers: Readers,
    folder: str | Path,
    options: MirrorOptions,
    stop: Event | None,
) -> Iterator[Pass]:
    """As `mirror`, again after each change of the folder: SearchEngine.watch."""
    options, stop = replace(options, skip_bad=True), stop or Event()
    try:
        sync = FolderSync(collection, readers, Path(folder).resolve(), options)
    except (OSError, RuntimeError, ValueError) as error:
        raise CorpusError(f"{folder} cannot be watched ({error}); name another folder") from error
    documents = 0
    problem: str | None = None  # of the pass before; None: there was none
    named: set[str] = set()  # left out before: reported once
    while not stop.is_set():
        began, before, settled = time.monotonic(), problem, False
        summary, unread = None, Unread(skip_bad=True)
        try:
            collection.refresh()  # also the encoder, and to let go of SQLite's log
            # A pass that failed may have stored files that are gone by now.
            is_due = sync.look(unread) or problem != ""
            if is_due:
                summary = sync.run(unread)
                settled, problem = sync.settle(), ""
        except (EncoderMismatch, EncoderMissing):
            raise
        except (CollectionError, CorpusError, EndpointError, OSError) as error:
            if collection.closed:
                raise
            is_due, problem = True, str(error)
        pause = min(max(LOOK, _SHARE * (time.monotonic() - began)), _LONGEST)
        if is_due:
            with suppress(CollectionError, OSError), collection.reading() as snapshot:
                documents = snapshot.count()
            done = Pass(summary, documents, unread, problem or "")
            left_out = {*unread.failed.first, *unread.bad.first}
            if problem != before or done.changes or not left_out <= named:
                yield done
            named = left_out or named
            pause = LOOK if settled else pause if problem else RECENT
        stop.wait(pause)
