"""Encode all documents of a living collection by another encoder, and swap once.

    start     one transaction names the work in `pending` and reserves a space of passage ids
    encode    blocks of documents, beside the old vectors; one transaction records each block
    build     a segment of the blocks, without the write lock
    catch up  encode what was added or changed meanwhile, until little is left
    swap      encode the rest, and replace encoder, settings and segments in one transaction
    remove    the former passages

Until the swap everybody reads and writes with the former encoder. A document that is changed or
deleted loses its new passages together with the old ones, so what must be encoded is every document
without a new passage. A killed process loses one block at most: the next call goes on."""

import shutil
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np

from searchengine.backends.contract import Ids, Span
from searchengine.backends.folder import pending
from searchengine.backends.folder.collection import Collection
from searchengine.backends.folder.documents.changes import Changes
from searchengine.backends.folder.documents.schema import SPACE
from searchengine.backends.folder.documents.store import Store
from searchengine.backends.folder.folders import beside, checksum, os_errors, segment_errors
from searchengine.backends.folder.merging import Merging
from searchengine.backends.folder.pending import Kind, Owner, Work, who
from searchengine.backends.folder.words import writer
from searchengine.backends.folder.writer import TUNED, Writer
from searchengine.backends.mode import CHOSEN, WEIGHT, Mode
from searchengine.corpus.analyzer import Tokenizer
from searchengine.corpus.documents import Document
from searchengine.encoders.loading import (
    CollectionEncoder,
    EncoderArgument,
    check_built_by,
    load_built_by,
    load_given,
    title,
)
from searchengine.encoders.protocol import TextEncoder, Vectors
from searchengine.errors import CollectionBusy, CollectionError, EncoderMismatch, QueryError
from searchengine.indexer.arrays import BLOCK_ROWS
from searchengine.indexer.building.build import Progress
from searchengine.indexer.config import SegmentConfig
from searchengine.indexer.segment import Segment
from searchengine.indexer.storage.durable import sha256, sync_file, sync_folder
from searchengine.ingest import pipeline
from searchengine.ingest.languages import default_of, stored_texts
from searchengine.ingest.passages import PassageConfig, PassageReader
from searchengine.ingest.pipeline import encoded, in_batches
from searchengine.ingest.settings import (
    CollectionSettings,
    default_prefix,
)
from searchengine.trainer.runtimes.runtime_config import RuntimeConfig
from searchengine.upkeep.question_map import QUERY_MAP
from searchengine.upkeep.verify import check_texts

_CHUNK = 10_000  # ids a statement
_NEW = (
    "EXISTS (SELECT 1 FROM passages WHERE document = documents.id AND passages.id BETWEEN ? AND ?)"
)


@dataclass(frozen=True, slots=True)
class Block:
    """Encoded documents, not recorded yet.

    Attributes:
        file: the name of its files, without an ending.
        documents: id → document, as it was encoded.
        spans: the passages of each.
        supplied: whether a document came with vectors.
        sha256: of its files, in the order of Blocks.FILES.
    """

    file: str
    documents: dict[int, Document]
    spans: Sequence[Sequence[Span]]
    supplied: bool
    sha256: Sequence[str]


def check_text(path: Path | str, document: Document) -> None:
    """Raise CollectionError for a document of a collection that has nothing to encode."""
    if not document.full_text:
        raise CollectionError(
            f"{path}: the document {document.key!r} came with vectors and without text, so no "
            "encoder can encode it; add it with a text, or delete it, and reindex again"
        )


class Blocks:
    """The blocks of a reindex: those recorded, and those to come.

    Attributes:
        work: the row of `pending`, as it was last recorded.
        rows: number of recorded rows.
        supplied: whether a document came with vectors, which are replaced now.
    """

    FILES = (".npy", ".documents.npy")

    def __init__(
        self,
        store: Store,
        folder: Path,
        work: Work,
        reader: PassageReader,
        dim: int,
    ) -> None:
        self.work = work
        self._store, self._folder, self._reader, self._dim = store, folder, reader, dim
        self._path = folder.parent.parent
        self._range = work.first, work.last
        self._checked: set[Path] = set()
        self._last = -1  # all documents up to this id were encoded once

    @property
    def rows(self) -> int:
        """Number of recorded rows."""
        return sum(block["rows"] for block in self.work.details["blocks"])

    @property
    def supplied(self) -> bool:
        """Whether a document came with vectors of its own."""
        return bool(self.work.details["supplied"])

    def check(self) -> None:
        """Check all files. Raises CollectionError for one that is missing or damaged."""
        for block in self.work.details["blocks"]:
            for suffix in self.FILES:
                self._file(block, suffix)

    def left(self) -> int:
        """Number of documents that lack new passages; reads all ids."""
        sql = f"SELECT count(*) FROM documents WHERE NOT {_NEW}"
        return int(self._store.scan(sql, self._range)[0][0])

    def unencoded(self) -> Iterator[Block]:
        """Encode all documents that lack new passages, in their order; each is to be recorded."""
        sql = f"SELECT id FROM documents WHERE id > ? AND NOT {_NEW} ORDER BY id LIMIT ?"
        size = pipeline.LARGEST_BLOCK[0]
        while read := self._store.read(sql, (self._last, *self._range, size)):
            ids = [row[0] for row in read]
            yield from self.encode(ids)
            self._last = ids[-1]

    def changed(self) -> list[int]:
        """Ids of documents that were added or changed since `unencoded` ended, ascending.

        Their new passages left tombstones, or their ids are larger: no id is used again.
        """
        dead = self._dead()
        candidates = set(self.documents()[dead].tolist()) if dead.size else set()
        sql = "SELECT id FROM documents WHERE id > ?"
        candidates |= set(self._store.numbers(sql, (self._last,)).tolist())
        ids, ordered = [], sorted(candidates)
        for start in range(0, len(ordered), _CHUNK):
            chunk = ordered[start : start + _CHUNK]
            marks = ", ".join("?" * len(chunk))
            sql = f"SELECT id FROM documents WHERE id IN ({marks}) AND NOT {_NEW} ORDER BY id"
            ids += [row[0] for row in self._store.read(sql, (*chunk, *self._range))]
        return ids

    def encode(self, ids: Sequence[int]) -> Iterator[Block]:
        """Encode these documents in blocks; those deleted meanwhile are left out."""
        read: deque[tuple[list[int], bool]] = deque()  # of blocks that are being encoded

        def blocks() -> Iterator[list[Document]]:
            for part in self._blocks(ids):
                documents, supplied = self._read(part)
                read.append((list(documents), supplied))
                yield list(documents.values())

        for block in encoded(self._reader, blocks()):
            yield self._written(block, *read.popleft())

    def _blocks(self, ids: Sequence[int]) -> Iterator[list[int]]:
        """The ids of each block, as far as they are stored."""
        for part in in_batches(ids, pipeline.LARGEST_BLOCK[0]):
            marks = ", ".join("?" * len(part))
            sql = (
                "SELECT id, length(title) + length(text) FROM documents "
                f"WHERE id IN ({marks}) ORDER BY id"
            )
            block: list[int] = []
            characters = 0
            for number, length in self._store.read(sql, part):
                if block and characters + length > pipeline.LARGEST_BLOCK[1]:
                    yield block
                    block, characters = [], 0
                block.append(number)
                characters += length
            if block:
                yield block

    def record(self, block: Block) -> None:
        """Store the passages of a block, within a transaction.

        Documents that were changed or deleted while they were encoded leave tombstones.
        """
        store, first = self._store, self.work.first + self.rows
        marks = ", ".join("?" * len(block.documents))
        sql = f"SELECT id, digest FROM documents WHERE id IN ({marks})"
        stored = dict(store.read(sql, list(block.documents)))
        placed: list[tuple[int, int, Span]] = []
        dead: list[int] = []
        number = first
        for (i, document), spans in zip(block.documents.items(), block.spans, strict=True):
            for span in spans:
                if stored.get(i) == document.digest:
                    placed.append((number, i, span))
                else:
                    dead.append(number)
                number += 1
        pending.place(store, placed)
        pending.bury(store, dead)
        recorded = {"file": block.file, "rows": number - first, "sha256": list(block.sha256)}
        blocks = [*self.work.details["blocks"], recorded]
        supplied = self.supplied or block.supplied
        self.work = pending.note(store, self.work, blocks=blocks, supplied=supplied)

    def vectors(self, first: int = 0) -> Iterator[Vectors]:
        """The recorded rows from `first` on, which begins a block, in blocks."""
        done = 0
        for block in self.work.details["blocks"]:
            if done >= first:
                rows = np.load(self._file(block, self.FILES[0]), mmap_mode="r")
                for start in range(0, len(rows), BLOCK_ROWS):
                    yield np.asarray(rows[start : start + BLOCK_ROWS])
            done += block["rows"]

    def documents(self) -> Ids:
        """The document of each recorded row."""
        blocks = self.work.details["blocks"]
        files = [np.load(self._file(block, self.FILES[1])) for block in blocks]
        return np.concatenate(files) if files else np.empty(0, np.int64)

    def live_documents(self) -> Ids:
        """The document of each recorded row; −1 for those changed or deleted since."""
        documents = self.documents()
        documents[self._dead()] = -1
        return documents

    def _dead(self) -> Ids:
        """The recorded rows whose documents were changed or deleted since."""
        sql = "SELECT passage FROM tombstones WHERE passage BETWEEN ? AND ?"
        return self._store.numbers(sql, self._range) - self.work.first

    def _file(self, block: Mapping[str, Any], suffix: str) -> Path:
        """A file of a recorded block, checked once."""
        file = self._folder / f"{block['file']}{suffix}"
        if file not in self._checked:
            try:
                intact = sha256(file) == block["sha256"][self.FILES.index(suffix)]
                what = "damaged"
            except OSError as error:
                intact, what = False, f"not readable ({error.strerror or error})"
            if not intact:
                raise CollectionError(
                    f"{file} of the pending reindex is {what}; drop it: "
                    f"searchengine reindex {self._path} --discard"
                )
            self._checked.add(file)
        return file

    def _read(self, ids: Sequence[int]) -> tuple[dict[int, Document], bool]:
        """Id → document, and whether one came with vectors."""
        marks = ", ".join("?" * len(ids))
        sql = (
            "SELECT id, key, text, title, vectors NOT NULL FROM documents "
            f"WHERE id IN ({marks}) ORDER BY id"
        )
        read = self._store.read(sql, ids)
        documents = {
            i: Document(key, text, title, origin="reindex") for i, key, text, title, _ in read
        }
        for document in documents.values():
            check_text(self._path, document)
        return documents, any(supplied for *_, supplied in read)

    def _written(self, block: pipeline.Block, ids: Sequence[int], supplied: bool) -> Block:
        """Write the files of an encoded block."""
        name = uuid4().hex
        rows, numbers = (self._folder / f"{name}{suffix}" for suffix in self.FILES)
        repeats = [len(cut) for cut in block.spans]
        shape = {"descr": "<f4", "fortran_order": False, "shape": (sum(repeats), self._dim)}
        # Not mapped into memory: a full disk would then end the process by a signal.
        with os_errors(self._path), rows.open("wb") as file:
            np.save(numbers, np.repeat(np.array(ids, np.int64), repeats))
            np.lib.format.write_array_header_1_0(file, shape)
            for vectors in block.batches:
                file.write(np.ascontiguousarray(vectors, "<f4").data)
        with os_errors(self._path):
            for path in (rows, numbers):
                sync_file(path)
            sync_folder(self._folder)
            checksums = sha256(rows), sha256(numbers)
        documents = dict(zip(ids, block.documents, strict=True))
        return Block(name, documents, block.spans, supplied, checksums)


REST = 64
"""Documents that may be encoded while the write lock is held."""
ROUNDS = 20
"""Times to catch up. Then the rest is encoded with the lock, however much it is."""


SPACES = "".join(filter(str.isspace, map(chr, range(0x3001))))
"""All that str.strip removes: SQLite's trim knows only the space."""


class _More(Exception):
    """More documents are left than should be encoded with the write lock."""


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


def chooses_mode(stored: Mapping[str, Any]) -> bool:
    """Whether a reindex chooses the default mode again: the present one suited the former encoder.

    Not if a user has chosen it, or there are no words. `stored`: the settings.
    """
    return stored["tokenizer"] != Tokenizer.NONE and "mode" in stored and not stored.get(CHOSEN)


def current(store: Store) -> Work | None:
    """The reindex that is pending; None if there is none."""
    works = pending.works(store)
    return next((work for work in works if work.kind is Kind.REINDEX), None)


def discard(collection: Collection) -> bool:
    """Drop a pending reindex with all that it has encoded; False if there is none."""
    with collection.own_store() as store:
        with store.transaction(collection.wait):
            work = current(store)
            if work is None:
                return False
            owner = _taken(collection.path, work)
            pending.give_up(store, work)
        try:
            Merging(collection, store).end(owner)
        finally:
            owner.release()
    return True


def _taken(path: Path, work: Work) -> Owner:
    owner = Owner(path, work.folder)
    if not owner.take():
        raise CollectionBusy(
            f"{path} is being reindexed by another process ({work.details['by']}); "
            "wait until it has finished, or end it"
        )
    return owner


@dataclass(slots=True)
class Reindexing:
    """The work on one collection by one process; see `opened`.

    Attributes:
        collection: the collection, opened without an encoder.
        store: a connection for writing.
        owner: of the folder of this work.
        encoder: the other encoder.
        blocks: what is encoded.
        settings: of the collection after the swap.
        progress: progress callback: step, documents or rows just done, total.
        segments: the folders of built segments, each with its number of rows.
    """

    collection: Collection
    store: Store
    owner: Owner
    encoder: TextEncoder
    blocks: Blocks
    settings: CollectionSettings
    progress: Progress | None = None
    segments: list[tuple[Path, int]] = field(default_factory=list)

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
        """Start a reindex, or continue the pending one. An interruption loses no encoded documents.

        Raises:
            CollectionBusy: another process is reindexing, or writing.
            CollectionError: a reindex by another encoder is pending, or with other passages; or a
                document has vectors and no text.
        """
        collection = Collection(path, wait)
        try:
            with collection.own_store() as store:
                owner, work, settings = _begun(collection, store, encoder, passages)
                try:
                    reader = PassageReader(encoder, settings.passages)
                    blocks = Blocks(store, owner.folder, work, reader, encoder.dim)
                    blocks.check()
                    yield cls(collection, store, owner, encoder, blocks, settings, progress)
                finally:
                    owner.release()
        finally:
            collection.close()

    def encode(self) -> None:
        """Encode every document that lacks new passages."""
        total = self.store.counts()[0]
        self._report("Encoding", total - self.blocks.left(), total)
        for block in self.blocks.unencoded():
            self._record(block, total)

    def _catch_up(self) -> int:
        """Encode the documents changed since; returns their number."""
        changed = self.blocks.changed()
        for block in self.blocks.encode(changed):
            self._record(block, len(changed))
        return len(changed)

    def _record(self, block: Block, total: int) -> None:
        with Merging(self.collection, self.store).slice():
            self.blocks.record(block)
        self._report("Encoding", len(block.documents), total)

    def swap(self) -> None:
        """Replace the collection's vectors by the new ones, in one commit."""
        default = default_of(self.encoder, stored_texts(self.store))
        for _ in range(ROUNDS):
            self._build()
            if self._catch_up() > REST:
                continue
            try:
                return self._swap(REST, default)
            except _More:
                self._catch_up()
        self._build()
        self._swap(None, default)

    def _swap(self, limit: int | None, default: tuple[Mode, float]) -> None:
        work = self.blocks.work
        with self.collection.writing(self.store, max(self.collection.wait, 60.0)) as writer:
            remaining = self.blocks.changed()
            if limit is not None and len(remaining) > limit:
                raise _More
            for block in self.blocks.encode(remaining):
                self.blocks.record(block)
            if self.blocks.changed():  # nobody else writes now
                check_texts(self.store)
                raise self.store.damaged("documents cannot be given passages")
            self._build()
            former = self.store.segments()
            for row in former:
                pending.enter(self.store, Kind.REMOVE, row.ends, self.owner.name, {})
            writer.changes.remove_segments(former, keep_tombstones=True)
            pending.leave(self.store, work)
            base = work.first
            for folder, rows in self.segments:
                writer.adopt(folder, base)
                base += rows
            self._set(writer, default)
        Merging(self.collection, self.store).end(self.owner)

    def _set(self, writer: Writer, default: tuple[Mode, float]) -> None:
        for name, value in self.blocks.work.details["settings"].items():
            writer.changes.set(name, value)
        stored, (mode, weight) = self.store.settings(), default
        writer.changes.unset("weight")
        writer.changes.unset(QUERY_MAP)
        if chooses_mode(stored):
            writer.changes.set("mode", mode)
            if weight != WEIGHT:
                writer.changes.set("weight", weight)
        writer.changes.unset(TUNED)
        if self.blocks.supplied:
            writer.changes.forget_vectors()

    def _build(self) -> None:
        """Build a segment of the blocks that are in none."""
        done = sum(rows for _, rows in self.segments)
        rows = self.blocks.rows - done
        if not rows:
            return
        path, folder = self.collection.path, self.owner.folder / f"segment-{len(self.segments)}"
        described = self.blocks.work.details["settings"]
        first = self.blocks.work.first + done
        with os_errors(path), segment_errors(path):
            Segment.build(
                folder,
                self.blocks.vectors(done),
                SegmentConfig.from_dict(described["index"]),
                provenance={"encoder": described["encoder"]["fingerprint"]},
                progress=self.progress,
                words=writer(self.store, lambda: self.blocks.live_documents()[done:]),
                passages=lambda rows: self.store.columns(np.arange(first, first + rows)),
            ).close()
            # Its checksums are computed and remembered now, not while others wait.
            Segment.open(folder, checksum=checksum).close()
        self.segments.append((folder, rows))

    def _report(self, step: str, done: int, total: int) -> None:
        if self.progress is not None:
            self.progress(step, done, total)


def _begun(
    collection: Collection,
    store: Store,
    encoder: TextEncoder,
    passages: PassageConfig | bool | None,
) -> tuple[Owner, Work, CollectionSettings]:
    path, owner = collection.path, None
    stored = store.settings()
    settings = settings_for(encoder, stored, passages)
    described = settings.as_stored(encoder)
    del described["mode"]  # collections of older versions have none
    try:
        with store.transaction(collection.wait), beside(path, store), os_errors(path):
            work = current(store)
            if work is None:
                _check_texts(path, store)
                first = Changes(store).take("spaces") * SPACE
                owner = Owner.new(path)
                details = {"settings": described, "blocks": [], "supplied": False, **who()}
                ends = first, first + SPACE - 1
                work = pending.enter(store, Kind.REINDEX, ends, owner.name, details)
            else:
                check_same(path, work.details["settings"], encoder, described)
                owner = _taken(path, work)
                owner.folder.mkdir(parents=True, exist_ok=True)
                # The same encoder may come from another folder or URL than before.
                planned = {**work.details["settings"], "encoder": described["encoder"]}
                work = pending.note(store, work, settings=planned, **who())
        _remove_leftovers(owner.folder, work)
    except BaseException:
        if owner is not None:
            owner.release()
        raise
    return owner, work, settings


def _check_texts(path: Path, store: Store) -> None:
    """Raise CollectionError for a document that cannot be encoded, by its key."""
    sql = (
        "SELECT key, text, title FROM documents WHERE trim(title, ?1) = '' AND trim(text, ?1) = '' "
        "AND vectors NOT NULL ORDER BY id LIMIT 1"
    )
    for row in store.scan(sql, [SPACES]):
        check_text(path, Document(*row))


def check_same(
    path: Path | str,
    planned: Mapping[str, Any],
    encoder: TextEncoder,
    described: Mapping[str, Any],
) -> None:
    """Raise CollectionError if a pending reindex, to the settings `planned`, is another one."""
    source, got = (
        identity["source"] or identity.get("name") or identity["fingerprint"]
        for identity in (planned["encoder"], described["encoder"])
    )
    advice = f"finish that one, or drop it: searchengine reindex {path} --discard"
    try:
        check_built_by(encoder, planned["encoder"], path)
    except EncoderMismatch as error:
        raise EncoderMismatch(
            f"a reindex of {path} by {source} is pending, got {got}; {advice}"
        ) from error
    if planned["passages"] != described["passages"]:
        raise CollectionError(
            f"a reindex of {path} with passages {planned['passages']} is pending, "
            f"got {described['passages']}; {advice}"
        )


def _remove_leftovers(folder: Path, work: Work) -> None:
    """Remove files of a killed process that no transaction names."""
    settings_kept = {
        f"{block['file']}{suffix}" for block in work.details["blocks"] for suffix in Blocks.FILES
    }
    for entry in folder.iterdir():
        if entry.name not in settings_kept:
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()


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
    path, wait = collection.path, collection.wait
    with Reindexing.opened(path, chosen, passages, wait, progress) as reindexing:
        reindexing.encode()
        expected = present.expect(chosen, runtime)
        reindexing.swap()
    collection.refresh()
    present.settle(expected)


def _chosen(
    collection: Collection, encoder: EncoderArgument | None, runtime: RuntimeConfig | None
) -> TextEncoder:
    """The encoder to change to; None: that of the pending reindex."""
    if encoder is not None:
        return load_given(encoder, runtime)
    path = collection.path
    with collection.own_store() as store:
        work = current(store)
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
