"""Encode all documents of a living collection by another encoder, and swap once.

    start     one transaction names the work in `pending` and reserves a space of passage ids
    encode    blocks of documents, beside the old vectors; one transaction records each block
    build     a segment of the blocks, without the write lock
    catch up  encode what was added or changed meanwhile, until little is left
    swap      encode the rest, and replace encoder, settings and segments in one transaction
    remove    the former passages

Until the swap everybody reads and writes with the former encoder. A document that is changed or
deleted loses its new passages together with the old ones, so what must be encoded is every document
without a new passage. A killed process loses one block at most: the next call goes on.
"""

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from searchengine.backends.folder.collection import Collection
from searchengine.backends.folder.documents import pending, terms
from searchengine.backends.folder.documents.changes import Changes
from searchengine.backends.folder.documents.pending import Kind, Work
from searchengine.backends.folder.documents.schema import SPACE
from searchengine.backends.folder.documents.store import Store
from searchengine.backends.folder.folders import beside, checksum, os_errors, segment_errors
from searchengine.backends.folder.merging import Merging
from searchengine.backends.folder.mode import CHOSEN, Mode
from searchengine.backends.folder.pending import Owner, who
from searchengine.backends.folder.writer import TUNED, Writer
from searchengine.corpus.analyzer import Tokenizer
from searchengine.corpus.documents import Document
from searchengine.encoders.loading import check_built_by
from searchengine.encoders.protocol import TextEncoder
from searchengine.errors import CollectionBusy, CollectionError, EncoderMismatch
from searchengine.indexer.building.build import Progress
from searchengine.indexer.config import RotationKind, SegmentConfig
from searchengine.indexer.segment import Segment
from searchengine.ingest.passages import PassageConfig, PassageReader
from searchengine.ingest.settings import (
    CollectionSettings,
    default_prefix,
    default_rotation,
    trained_blocks,
)
from searchengine.upkeep.blocks import Block, Blocks, check_text
from searchengine.upkeep.check import check_texts

REST = 64
"""Documents that may be encoded while the write lock is held."""
ROUNDS = 20
"""Times to catch up. Then the rest is encoded with the lock, however much it is."""


_SPACES = "".join(filter(str.isspace, map(chr, range(0x3001))))
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
    config["bounds"] = min(config["bounds"], encoder.dim)
    if TUNED in stored:
        config |= {"shortlist": 0, "effort": 0, "stages": []}
    config["rotation"], config["blocks"] = _rotation(before.config.rotation, encoder), []
    return CollectionSettings.for_encoder(
        encoder, config, passages, None if before.analyzer is None else str(before.analyzer)
    )


def _rotation(before: RotationKind, encoder: TextEncoder) -> RotationKind:
    """The present rotation, unless it would undo what the encoder has learnt, or cannot be."""
    suits = default_rotation(encoder)
    if before is RotationKind.BLOCKS:
        return before if trained_blocks(encoder) else suits
    return before if before is RotationKind.IDENTITY or suits is RotationKind.PCA else suits


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
        blocks: what is encoded.
        settings: of the collection after the swap.
        progress: progress callback: step, documents or rows just done, total.
        segments: the folders of built segments, each with its number of rows.
    """

    collection: Collection
    store: Store
    owner: Owner
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
        """Start a reindex, or go on with the pending one. What is encoded stays when this ends.

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
                    yield cls(collection, store, owner, blocks, settings, progress)
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
        """Encode what has changed since; returns how many documents."""
        changed = self.blocks.changed()
        for block in self.blocks.of(changed):
            self._record(block, len(changed))
        return len(changed)

    def _record(self, block: Block, total: int) -> None:
        with Merging(self.collection, self.store).slice():
            self.blocks.record(block)
        self._report("Encoding", len(block.documents), total)

    def swap(self) -> None:
        """Make the new vectors those of the collection, in one commit."""
        for _ in range(ROUNDS):
            self._build()
            if self._catch_up() > REST:
                continue
            try:
                return self._swap(REST)
            except _More:
                self._catch_up()
        self._build()
        self._swap(None)

    def _swap(self, limit: int | None) -> None:
        work = self.blocks.work
        with self.collection.writing(self.store, max(self.collection.wait, 60.0)) as writer:
            left = self.blocks.changed()
            if limit is not None and len(left) > limit:
                raise _More
            for block in self.blocks.of(left):
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
            self._set(writer)
        Merging(self.collection, self.store).end(self.owner)

    def _set(self, writer: Writer) -> None:
        for name, value in self.blocks.work.details["settings"].items():
            writer.changes.set(name, value)
        stored = self.store.settings()
        words = stored["tokenizer"] != Tokenizer.NONE
        if words and "mode" in stored and not stored.get(CHOSEN):  # it suited the former encoder
            writer.changes.set("mode", Mode.HYBRID)
        writer.changes.unset("weight")
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
        largest = Segment.open(self.segments[0][0]) if self.segments else None
        with os_errors(path), segment_errors(path):
            Segment.build(
                folder,
                self.blocks.vectors(done),
                SegmentConfig.from_dict(described["index"]),
                rotation_of=largest,
                provenance={"encoder": described["encoder"]["fingerprint"]},
                progress=self.progress,
                words=terms.writer(self.store.read, lambda: self.blocks.documents()[done:]),
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
                _check_same(path, work, encoder, described)
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
    for row in store.scan(sql, [_SPACES]):
        check_text(path, Document(*row))


def _check_same(path: Path, work: Work, encoder: TextEncoder, described: Mapping[str, Any]) -> None:
    """Raise CollectionError if a pending reindex is another one."""
    planned = work.details["settings"]
    source = planned["encoder"]["source"] or planned["encoder"].get("name") or "another encoder"
    advice = f"finish that one, or drop it: searchengine reindex {path} --discard"
    try:
        check_built_by(encoder, planned["encoder"], path)
    except EncoderMismatch as error:
        raise EncoderMismatch(
            f"a reindex of {path} by {source} is pending, got {_name(encoder)}; {advice}"
        ) from error
    if planned["passages"] != described["passages"]:
        raise CollectionError(
            f"a reindex of {path} with passages {planned['passages']} is pending, "
            f"got {described['passages']}; {advice}"
        )


def _name(encoder: TextEncoder) -> str:
    return encoder.source or encoder.name or encoder.fingerprint


def _remove_leftovers(folder: Path, work: Work) -> None:
    """Remove files of a killed process that no transaction names."""
    kept = {
        f"{block['file']}{suffix}" for block in work.details["blocks"] for suffix in Blocks.FILES
    }
    for entry in folder.iterdir():
        if entry.name not in kept:
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
