"""Encode all documents of a living collection by another encoder, and swap once.

    start   a new collection in the folder of a pending work, which one transaction names
    encode  add the documents that it lacks: commits as of any `add`, so a killed process loses
            little, and the next call goes on
    swap    under the write lock, add documents changed meanwhile; the same transaction replaces
            passages, segments and settings

Until the swap everybody reads and writes with the former encoder, and afterwards readers keep their
commit until they refresh. Texts are compared by their checksums, so nothing has to be noted of what
others change. Segments are linked into the collection, so the new one stays whole until the commit.
"""

import shutil
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np

from searchengine.backends.contract import Entry, Ids
from searchengine.backends.folder import pending
from searchengine.backends.folder.collection import Collection
from searchengine.backends.folder.folders import beside, folder_of, os_errors, segment_errors
from searchengine.backends.folder.pending import Kind, Owner, Work
from searchengine.backends.folder.store import SegmentRow, Store
from searchengine.backends.folder.writer import TUNED, Writer
from searchengine.backends.mode import CHOSEN, WEIGHT
from searchengine.corpus.analyzer import Analyzer, Tokenizer
from searchengine.corpus.documents import Document
from searchengine.encoders.loading import (
    CollectionEncoder,
    EncoderArgument,
    has_built,
    load_built_by,
    load_given,
    title,
)
from searchengine.encoders.protocol import TextEncoder
from searchengine.errors import CollectionBusy, CollectionError, EncoderMismatch, QueryError
from searchengine.indexer.building.build import Progress
from searchengine.indexer.segment import Segment
from searchengine.ingest import ingestion, pipeline
from searchengine.ingest.languages import default_of
from searchengine.ingest.passages import PassageConfig, PassageReader
from searchengine.ingest.settings import CollectionSettings, default_prefix
from searchengine.trainer.runtimes.runtime_config import RuntimeConfig
from searchengine.upkeep.copies import link_segment
from searchengine.upkeep.question_map import QUERY_MAP
from searchengine.upkeep.verify import check_texts

REST = 64
"""Documents that may be encoded while the write lock is held."""
ROUNDS = 20
"""Times to catch up. Then the rest is encoded with the lock, however much it is."""
_PATIENCE = 60.0  # seconds to wait for other writers at least, when all is encoded
_READ = 64  # documents read by a statement
_LINKED = "linked"  # the folder of the segments that the swap moves
# All that str.strip removes: SQLite's trim knows only the space.
_SPACES = "".join(filter(str.isspace, map(chr, range(0x3001))))


def reindex(
    collection: Collection,
    present: CollectionEncoder,
    encoder: EncoderArgument | None,
    passages: PassageConfig | bool | None,
    runtime: RuntimeConfig | None,
    progress: Progress | None,
) -> None:
    """Encode all documents by another encoder, and use it from now on: SearchEngine.reindex.

    `present`: the encoder of the collection, which becomes the other one."""
    chosen = _chosen(collection, encoder, runtime)
    with Reindexing.opened(collection.path, chosen, passages, collection.wait, progress) as work:
        work.encode()
        expected = present.expect(chosen, runtime)
        work.swap()
    collection.refresh()
    present.settle(expected)


def discard(collection: Collection) -> bool:
    """Drop the pending reindex and the vectors it has encoded; False without one."""
    with collection.own_store() as store, store.transaction(collection.wait):
        if (work := _current(store)) is None:
            return False
        owner = _taken(collection.path, work)
        pending.leave(store, work)
        owner.clear()
    return True


@dataclass(frozen=True, slots=True)
class Reindexing:
    """The work on one collection by one process; see `opened`.

    Attributes:
        collection: the collection, opened without an encoder.
        store: a connection to it, for writing.
        owner: of the folder of this work.
        target: the new collection, in that folder.
        reader: cuts and encodes for it.
        settings: what the swap stores.
        progress: progress callback: step, documents or rows just done, total.
    """

    collection: Collection
    store: Store
    owner: Owner
    target: Collection
    reader: PassageReader
    settings: Mapping[str, Any]
    progress: Progress | None

    @classmethod
    @contextmanager
    def opened(
        cls,
        path: Path,
        encoder: TextEncoder,
        passages: PassageConfig | bool | None,
        wait: float,
        progress: Progress | None,
    ) -> Iterator["Reindexing"]:
        """Start a reindex, or continue the pending one.

        Raises:
            CollectionBusy: another process is reindexing, or writing.
            CollectionError: a reindex by another encoder is pending, or with other passages; or a
                document has vectors and no text, or a text that was altered.
        """
        with closing(Collection(path, wait)) as collection, collection.own_store() as store:
            chosen = settings_for(encoder, store.settings(), passages)
            settings = chosen.as_stored(encoder)
            del settings["mode"]  # chosen at the swap, by the texts
            reader = PassageReader(encoder, chosen.passages)
            owner = _started(collection, store, encoder, settings)
            try:
                with closing(_target(owner, store, settings)) as target:
                    yield cls(collection, store, owner, target, reader, settings, progress)
            finally:
                owner.release()

    def encode(self) -> None:
        """Encode every document that the new collection lacks, until few are left."""
        for _ in range(ROUNDS):
            if self._catch_up() <= REST:
                break
        with self.target.reading(newest=True) as snapshot:  # fewer segments, as after an `add`
            finished = snapshot.count()
        self.target.upsert((), finished=finished, progress=self.progress)

    def swap(self) -> None:
        """Replace the collection's vectors by the new ones, in one commit."""
        with self.collection.reading(newest=True) as snapshot:
            default = default_of(self.reader.encoder, snapshot)
        for row in self.target.segments:  # reads them all, while nobody waits
            self._linked(row)
        wait = max(self.collection.wait, _PATIENCE)
        with self.collection.writing(self.store, wait) as writer:
            self._catch_up()
            if self._catch_up():  # nobody else writes now
                raise self.store.damaged("documents cannot be given passages")
            self._adopt(writer)
            for name, value in self.settings.items():
                writer.changes.set(name, value)
            for name in ("weight", QUERY_MAP, TUNED):
                writer.changes.unset(name)
            stored, (mode, weight) = self.store.settings(), default
            # The present mode suited the former encoder, unless a user has chosen it.
            if stored["tokenizer"] != Tokenizer.NONE and not stored.get(CHOSEN):
                writer.changes.set("mode", mode)
                if weight != WEIGHT:
                    writer.changes.set("weight", weight)
            writer.changes.forget_vectors()
        self.owner.clear()

    def _catch_up(self) -> int:
        """Encode the documents that are new or changed, drop deleted ones; returns how many."""
        with self._both() as tables:
            changed = tables.numbers(
                "SELECT stored.id FROM stored.documents AS stored LEFT JOIN documents USING (key) "
                "WHERE documents.digest IS NOT stored.digest ORDER BY stored.id"
            ).tolist()
            deleted = tables.scan(
                "SELECT key FROM documents WHERE key NOT IN (SELECT key FROM stored.documents)"
            )
        if deleted:
            self.target.delete([key for (key,) in deleted], None)
        entries, begun = list[Entry](), monotonic()
        for block in pipeline.encoded(self.reader, self._documents(changed)):
            parts = zip(block.documents, block.spans, block.parts, strict=True)
            entries += [Entry(document, tuple(cut), rows) for document, cut, rows in parts]
            if self.progress is not None:
                self.progress("Encoding", len(block.documents), len(changed))
            is_late = monotonic() - begun >= ingestion.SECONDS
            if is_late or sum(len(entry.spans) for entry in entries) >= ingestion.MOST[0]:
                self.target.upsert(entries, progress=self.progress)
                entries, begun = [], monotonic()
        if entries:
            self.target.upsert(entries, progress=self.progress)
        return len(changed) + len(deleted)

    @contextmanager
    def _both(self) -> Iterator[Store]:
        """The tables of the new collection, with those of the collection as `stored`."""
        with Store(self.target.path / "documents.db", readers=1) as tables:
            tables.read("ATTACH ? AS stored", [f"{self.store.path.as_uri()}?mode=ro"])
            yield tables

    def _documents(self, ids: list[int]) -> Iterator[list[Document]]:
        """The stored ones of these documents, in blocks to encode."""
        most, characters = pipeline.LARGEST_BLOCK
        block: list[Document] = []
        for part in pipeline.in_batches(ids, min(most, _READ)):
            marks = ", ".join("?" * len(part))
            sql = f"SELECT key, text, title, ifnull(root, '') FROM documents WHERE id IN ({marks})"
            for key, text, title_, root in self.store.read(f"{sql} ORDER BY id", part):
                document = Document(key, text, title_, origin="reindex", root=root)
                _check_text(self.collection.path, document)
                block.append(document)
                characters -= len(title_) + len(text)
            if len(block) >= most or characters <= 0:
                yield block
                block, characters = [], pipeline.LARGEST_BLOCK[1]
        if block:
            yield block

    def _adopt(self, writer: Writer) -> None:
        """Replace the passages and segments; documents keep their ids."""
        with self._both() as tables:
            sql = (
                "SELECT documents.id, stored.id FROM documents "
                "JOIN stored.documents AS stored USING (key) ORDER BY documents.id"
            )
            ids = np.array(tables.scan(sql), np.int64).reshape(-1, 2).T
            first = writer.changes.next_passage()
            for table in ("segments", "passages", "tombstones", "pending"):
                self.store.execute(f"DELETE FROM {table}")
            for row in tables.segments():
                columns = tables.columns(np.arange(row.base, row.base + row.rows))
                live = columns[0] >= 0
                columns[0, live] = ids[1, np.searchsorted(ids[0], columns[0, live])]
                self._move(writer, row, columns, first + row.base)

    def _linked(self, row: SegmentRow) -> Path:
        """A segment of the new collection in another folder, without the file of its passages."""
        parent = self.owner.folder / _LINKED
        source = folder_of(self.target.path, row.id)
        if (parent / source.name).exists():
            return parent / source.name
        (segment,) = self.target.opened([row]).values()
        with os_errors(self.collection.path), segment_errors(self.target.path):
            parent.mkdir(exist_ok=True)
            return link_segment(source, segment, parent, passages=False)

    def _move(self, writer: Writer, row: SegmentRow, columns: Ids, base: int) -> None:
        """Store a segment and its passages, `columns` (3, rows), where −1 becomes a tombstone."""
        ids, live = np.arange(base, base + row.rows), columns[0] >= 0
        with self.store.writing() as connection:
            connection.executemany(
                "INSERT INTO passages (id, document, start, end) VALUES (?, ?, ?, ?)",
                zip(ids[live].tolist(), *columns[:, live].tolist(), strict=True),
            )
            connection.executemany(
                "INSERT INTO tombstones (passage) VALUES (?)", ((i,) for i in ids[~live].tolist())
            )
        built = self._linked(row)
        with os_errors(self.collection.path):
            Segment.add_passages(built, lambda _: columns)
        writer.adopt(built, base)


def settings_for(
    encoder: TextEncoder, stored: Mapping[str, Any], passages: PassageConfig | bool | None = None
) -> CollectionSettings:
    """The settings of a collection after it is encoded by another encoder.

    Args:
        encoder: the other encoder.
        stored: the present settings. What follows from the width of the vectors is chosen again,
            and so are an operating point that was tuned and a rotation that does not suit.
        passages: as for SearchEngine.create; None: as they are, cut where the encoder can.

    Raises CollectionError as CollectionSettings.for_encoder.
    """
    before = CollectionSettings.from_stored(stored)
    if passages is None:
        passages = before.passages or False
        if before.passages == PassageConfig():
            passages = True
    config, dim = before.config.as_dict(), int(stored["encoder"]["dim"])
    if config["prefix"] == default_prefix(dim):
        config["prefix"] = default_prefix(encoder.dim)
    elif config["prefix"] == dim:
        config["prefix"] = encoder.dim
    config["prefix"] = min(config["prefix"], encoder.dim)
    config["stages"] = [stage for stage in config["stages"] if stage[0] <= encoder.dim]
    if TUNED in stored:
        config |= {"shortlist": 0, "effort": 0, "stages": []}
    return CollectionSettings.for_encoder(encoder, config, passages, before.analyzer)


def _started(
    collection: Collection, store: Store, encoder: TextEncoder, settings: Mapping[str, Any]
) -> Owner:
    """Name the work in a transaction, or take the pending one; its owner."""
    path, owner = collection.path, None
    if _current(store) is None:  # before anything is encoded
        check_texts(store)
        sql = "SELECT key, title FROM documents WHERE trim(title || text, ?) = '' ORDER BY id"
        for key, title_ in store.scan(f"{sql} LIMIT 1", [_SPACES]):
            _check_text(path, Document(key, "", title_))
    try:
        with store.transaction(collection.wait), beside(path, store), os_errors(path):
            if (work := _current(store)) is None:
                owner = Owner.new(path)
                pending.enter(store, Kind.REINDEX, owner.name, {"settings": settings})
            else:
                _check_same(path, work.details["settings"], encoder, settings)
                owner = _taken(path, work)
                # The same encoder may come from another folder or URL than before.
                pending.note(store, work, settings=settings)
    except BaseException:
        if owner is not None:
            owner.release()
        raise
    return owner


def _target(owner: Owner, store: Store, settings: Mapping[str, Any]) -> Collection:
    """The new collection, with the documents encoded before."""
    with os_errors(owner.folder):
        owner.folder.mkdir(exist_ok=True)
        shutil.rmtree(owner.folder / _LINKED, ignore_errors=True)  # of a killed process
    if not (owner.folder / "documents.db").exists():
        tokenizer = Analyzer.parse(store.settings()["tokenizer"])
        return Collection.create(owner.folder, {**settings}, tokenizer)
    try:
        return Collection(owner.folder)
    except CollectionError as error:
        raise CollectionError(
            f"the pending reindex of {store.path.parent} is damaged ({error}); drop it: "
            f"searchengine reindex {store.path.parent} --discard"
        ) from error


def _current(store: Store) -> Work | None:
    """The pending reindex, or None."""
    return next((work for work in pending.works(store) if work.kind is Kind.REINDEX), None)


def _taken(path: Path, work: Work) -> Owner:
    owner = Owner(path, work.folder)
    if not owner.take():
        raise CollectionBusy(
            f"{path} is being reindexed by another process ({work.details['by']}); "
            "wait until it has finished, or end it"
        )
    return owner


def _check_text(path: Path, document: Document) -> None:
    """Raise CollectionError for a document of a collection that has nothing to encode."""
    if not document.full_text:
        raise CollectionError(
            f"{path}: the document {document.key!r} came with vectors and without text, so no "
            "encoder can encode it; add it with a text, or delete it, and reindex again"
        )


def _check_same(
    path: Path, planned: Mapping[str, Any], encoder: TextEncoder, settings: Mapping[str, Any]
) -> None:
    """Raise CollectionError if a pending reindex, to the settings `planned`, is another one."""
    source, got = (
        identity["source"] or identity.get("name") or identity["fingerprint"]
        for identity in (planned["encoder"], settings["encoder"])
    )
    advice = f"finish that one, or drop it: searchengine reindex {path} --discard"
    if not has_built(encoder, planned["encoder"]):
        raise EncoderMismatch(f"a reindex of {path} by {source} is pending, got {got}; {advice}")
    if planned["passages"] != settings["passages"]:
        raise CollectionError(
            f"a reindex of {path} with passages {planned['passages']} is pending, "
            f"got {settings['passages']}; {advice}"
        )


def _chosen(
    collection: Collection, encoder: EncoderArgument | None, runtime: RuntimeConfig | None
) -> TextEncoder:
    """The encoder to change to; None: that of the pending reindex."""
    if encoder is not None:
        return load_given(encoder, runtime)
    path = collection.path
    with collection.own_store() as store:
        work = _current(store)
    if work is None:
        raise QueryError(
            f"no reindex of {path} is pending; name the encoder to change to: "
            "--encoder PATH or encoder=…"
        )
    identity = work.details["settings"]["encoder"]
    try:
        return load_built_by(identity, path, runtime)
    except CollectionError as error:
        reason = f" ({error.__cause__})" if error.__cause__ else ""
        raise CollectionError(
            f"the pending reindex of {path} is by {title(identity)}, which cannot be "
            f"loaded{reason}; name it: --encoder PATH or encoder=…, or drop it: "
            f"searchengine reindex {path} --discard"
        ) from error
