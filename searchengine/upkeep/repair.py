"""Repair a damaged collection: texts are in SQLite, so every vector can be encoded again.

Intact segments stay as they are. The documents of the others are encoded into one new segment, in
one commit: a killed process leaves the state before it. They are encoded while the write lock is
held, because another writer could move the passages meanwhile; readers go on.
"""

from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from searchengine.backends.folder.collection import Collection
from searchengine.backends.folder.documents.store import SegmentRow, Store
from searchengine.backends.folder.folders import remove_unnamed
from searchengine.backends.folder.writer import Writer, writing
from searchengine.encoders.loading import (
    EncoderArgument,
    check_built_by,
    load_built_by,
    load_given,
)
from searchengine.errors import CollectionBusy, CollectionError
from searchengine.indexer.building.build import Progress
from searchengine.indexer.segment import Segment
from searchengine.ingest.passages import PassageReader
from searchengine.ingest.pipeline import encoded, in_batches
from searchengine.ingest.settings import CollectionSettings
from searchengine.ingest.spool import Spool
from searchengine.trainer.runtimes.config import RuntimeConfig
from searchengine.upkeep import check, salvage
from searchengine.upkeep.reconcile import Plan, Report, reconcile

_BATCH = 512  # documents encoded at a time


@dataclass(frozen=True, slots=True)
class Repair:
    """The report of a repair.

    Attributes:
        path: the collection.
        dry_run: whether changes were only planned.
        documents, passages, segments: numbers checked.
        found, mended, lost: messages: damage, repairs, and data that cannot be recovered.
        encoded: documents encoded again; in a dry run, documents to encode.
        whole: whether `verify` passes now.
        complaint: the error of `verify`; None if it passes.
    """

    path: str
    dry_run: bool
    documents: int
    passages: int
    segments: int
    found: tuple[str, ...]
    mended: tuple[str, ...]
    lost: tuple[str, ...]
    encoded: int
    whole: bool
    complaint: str | None


def repair(
    path: str | Path,
    encoder: EncoderArgument | None = None,
    *,
    dry_run: bool = False,
    wait: float = 0,
    runtime: RuntimeConfig | None = None,
    progress: Progress | None = None,
) -> Repair:
    """Check all of a collection and repair what is damaged.

    Args:
        path: the collection's folder; its segments need not be readable.
        encoder: as for SearchEngine.open. It is loaded only if something must be encoded.
        dry_run: change nothing.
        wait: seconds to wait for another writer before CollectionBusy.
        runtime: what runs the encoder.
        progress: progress callback: step, documents just encoded, documents in all.

    Raises:
        CollectionError: there is no collection, or documents.db cannot be read at all.
        CollectionBusy: another process is writing. EncoderMismatch: another encoder.
    """
    path = Path(path).absolute()
    database = path / "documents.db"
    report = Report()
    if dry_run and salvage.is_unfinished(database):
        report.found.append(f"{database} is missing: a repair was interrupted; repair it again")
        return _result(path, report, None, 0, dry_run)
    if salvage.finish(database):
        report.mended.append(f"{database}: an interrupted repair was completed")
    if not database.is_file():
        raise CollectionError(f"{database} is missing, so {path} is not a collection")
    damage = salvage.complaint(database, read_only=dry_run)
    if damage is None:
        try:
            plan = _trial(path, database)
        except CollectionError as error:
            if not salvage.is_damage(error.__cause__):
                raise
            damage = str(error.__cause__)
    if damage is not None:
        report.found.append(f"{database} is damaged ({damage})")
        if dry_run:
            readable = salvage.readable_documents(database)
            report.found.append(f"{readable} of its documents can be read")
            return _result(path, report, None, 0, dry_run)
        saved = salvage.salvage(database)
        report.lost += saved.lost
        report.mended.append(
            f"{database}: {saved.copied['documents']} documents were copied into a new file, the "
            "damaged one is kept as documents.db.damaged"
        )
        plan = _trial(path, database)
    if plan.report.found and not dry_run:
        plan = _mend(path, database, encoder, bool(plan.documents), wait, runtime, progress)
    report.found += plan.report.found
    report.lost += plan.report.lost
    report.mended += [] if dry_run else plan.report.mended
    return _result(path, report, plan.counts, len(plan.documents), dry_run)


def _result(
    path: Path, report: Report, counts: tuple[int, int, int] | None, encoded: int, dry_run: bool
) -> Repair:
    complaint = None
    try:
        collection = Collection(path)
        try:
            check.verify(collection)
        finally:
            collection.close()
    except CollectionBusy:
        raise
    except CollectionError as error:
        complaint = str(error)
    return Repair(
        str(path),
        dry_run,
        *(counts or (0, 0, 0)),
        tuple(report.found),
        tuple(report.mended),
        tuple(report.lost),
        encoded,
        complaint is None,
        complaint,
    )


def _trial(path: Path, database: Path) -> Plan:
    """Plan the repair on a copy of the tables: takes no lock and changes nothing."""
    with TemporaryDirectory() as scratch:
        copy = Path(scratch) / "documents.db"
        with Store(database, readers=1) as store:
            store.copy_to(copy)
        with Store(copy) as store, store.transaction():
            plan = reconcile(path, store)
        plan.close()
    return plan


def _mend(
    path: Path,
    database: Path,
    encoder: EncoderArgument | None,
    needs_encoder: bool,
    wait: float,
    runtime: RuntimeConfig | None,
    progress: Progress | None,
) -> Plan:
    with Store(database) as store:
        reader = None

        def load_reader() -> PassageReader:
            settings = store.settings()
            described = settings["encoder"]
            if encoder is None:
                loaded = load_built_by(described, path, runtime)
            else:
                loaded = load_given(encoder, runtime, described.get("layers"))
            check_built_by(loaded, described, path)
            cut = CollectionSettings.from_stored(settings).passages
            return PassageReader(loaded, cut, settings)

        if needs_encoder:
            reader = load_reader()  # before the lock is taken: it can take seconds
        (path / "segments").mkdir(exist_ok=True)
        opened: dict[SegmentRow, Segment] = {}
        with writing(path, store, opened.__getitem__, wait) as writer:
            plan = reconcile(path, store)
            opened.update(plan.opened)
            if plan.documents:
                if reader is None or reader.settings != store.settings():  # changed meanwhile
                    reader = load_reader()
                with closing(Spool(path)) as spool:
                    _encode(writer, plan, reader, spool, progress)
                    if spool.rows:
                        writer.append(spool.vectors([(0, spool.rows)]))
        plan.close()
        for segment in writer.opened.values():
            segment.close()
        with suppress(CollectionBusy):
            remove_unnamed(path, store, writer.before)
    return plan


def _encode(
    writer: Writer, plan: Plan, reader: PassageReader, spool: Spool, progress: Progress | None
) -> None:
    """Write the passages of the documents again, and spool their vectors."""
    passage = writer.changes.next_passage()
    ids = sorted(plan.documents)
    texts = (writer.store.documents(batch) for batch in in_batches(ids, _BATCH))
    for batch, block in zip(in_batches(ids, _BATCH), encoded(reader, texts), strict=True):
        documents = dict(zip(batch, block.documents, strict=True))
        writer.changes.cut_again(documents, block.spans, passage)
        passage += sum(map(len, block.spans))
        for vectors in block.batches:
            spool.add_vectors(vectors)
        if progress is not None:
            progress("Encoding", len(batch), len(ids))
