"""Encode all documents of a living collection by another encoder, and swap once.

    start   a new collection in the folder of a pending work, which one transaction names
    encode  add the documents that it lacks: commits as of any `add`, so a killed process loses
            little, and the next call goes on
    swap    under the write lock, add documents changed meanwhile; the same transaction replaces
            passages, segments and settings

Until the swap everybody reads and writes with the former encoder, and afterwards readers keep their
commit until they refresh. Texts are compared by their checksums, so nothing has to be noted of what
others change. Segments are linked into the collection, so the new one stays whole until the commit.
On a server the new collection is in a schema beside, and its tables take the others' place.
"""

import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from searchengine.backends.contract import Backend
from searchengine.backends.entries import entries, keys_of
from searchengine.backends.folder.collection import Collection
from searchengine.backends.folder.folders import (
    Owner,
    folder_of,
    os_errors,
    segment_errors,
    segments_folder,
)
from searchengine.backends.folder.store import Changes, Kind, SegmentRow, Store, Work
from searchengine.backends.folder.writer import TUNED, BuiltSegment, Writer, build_plan
from searchengine.backends.mode import CHOSEN, WEIGHT
from searchengine.backends.opening import in_folder, is_url
from searchengine.corpus.analyzer import Analyzer, Tokenizer
from searchengine.corpus.documents import Document
from searchengine.encoders.loading import (
    CollectionEncoder,
    EncoderArgument,
    has_built,
    load_built_by,
    load_given,
)
from searchengine.encoders.protocol import TextEncoder
from searchengine.errors import (
    CollectionBusy,
    CollectionError,
    EmptyCorpus,
    EncoderMismatch,
    QueryError,
)
from searchengine.indexer.building.build import Progress
from searchengine.ingest.ingestion import AddOptions, add
from searchengine.ingest.languages import default_of
from searchengine.ingest.passages import PassageConfig, PassageReader
from searchengine.ingest.pipeline import in_batches
from searchengine.ingest.settings import CollectionSettings, default_prefix
from searchengine.trainer.runtimes.runtime_config import RuntimeConfig
from searchengine.upkeep.copies import link_segment
from searchengine.upkeep.tuning import QUERY_MAP
from searchengine.upkeep.verify import check_texts

if TYPE_CHECKING:
    from searchengine.backends.postgresql.collection import PostgresCollection

REST = 64
"""Documents that may be encoded while the write lock is held."""
ROUNDS = 20
"""Times to catch up. Then the rest is encoded with the lock, however much it is."""
_PATIENCE = 60.0  # seconds to wait for other writers at least, when all is encoded
_READ = 500  # documents read at a time
_NO_TEXT = "title = '' and text = ''"
_DROP = "drop it: searchengine reindex {} --discard"
_LINKED = "linked"  # the folder of the segments that the swap moves
# All that str.strip removes: SQLite's trim knows only the space.
_SPACES = "".join(filter(str.isspace, map(chr, range(0x3001))))


def reindex(
    collection: Backend,
    present: CollectionEncoder,
    encoder: EncoderArgument | None,
    passages: PassageConfig | bool | None,
    runtime: RuntimeConfig | None,
    progress: Progress | None,
) -> None:
    """Encode all documents by another encoder, and use it from now on: SearchEngine.reindex.

    `present`: the encoder of the collection, which becomes the other one."""
    if is_url(collection.path):
        server: Any = collection
        _on_server(server, present, encoder, passages, runtime, progress)
        return
    folder = in_folder(collection)
    with folder.open_store() as store:
        pending_work = _pending(store)
    planned = None if pending_work is None else pending_work.details["settings"]
    chosen = _chosen(folder.path, planned, encoder, runtime)
    with Reindexing.opened(folder.path, chosen, passages, folder.wait, progress) as work:
        work.encode()
        expected = present.expect(chosen, runtime)
        work.swap()
    folder.refresh()
    present.settle(expected)


def discard(collection: Backend) -> bool:
    """Drop the pending reindex and the vectors it has encoded; False without one."""
    if is_url(collection.path):
        server: Any = collection
        return bool(server.discard())
    folder = in_folder(collection)
    with folder.open_store() as store, store.transaction(folder.wait):
        if (work := _pending(store)) is None:
            return False
        owner = _taken(folder.path, work)
        Changes(store).end_work(work)
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
        with closing(Collection(path, wait)) as collection, collection.open_store() as store:
            chosen = settings_for(encoder, store.settings(), passages)
            settings = chosen.as_stored(encoder)
            del settings["mode"]  # chosen at the swap, by the texts
            reader = PassageReader(encoder, settings)
            owner = _claim(collection, store, encoder, settings)
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
            mode, weight = default_of(self.reader.encoder, snapshot)
        for row in self.target.segments:  # reads them all, while nobody waits
            self._linked(row)
        wait = max(self.collection.wait, _PATIENCE)
        with self.collection.writing(self.store, wait) as writer:
            self._catch_up()
            if self._catch_up():  # nobody else writes now
                _check_encodable(self.store)
                raise self.store.damaged("documents cannot be given passages")
            self._adopt(writer)
            for name, value in self.settings.items():
                writer.changes.set(name, value)
            for name in ("weight", QUERY_MAP, TUNED):
                writer.changes.unset(name)
            stored = self.store.settings()
            # The present mode suited the former encoder, unless a user has chosen it.
            if stored["tokenizer"] != Tokenizer.NONE and not stored.get(CHOSEN):
                writer.changes.set("mode", mode)
                if weight != WEIGHT:
                    writer.changes.set("weight", weight)
            # That of the new words, whatever others have chosen meanwhile.
            writer.changes.set("tokenizer", self.target.settings["tokenizer"])
            writer.changes.forget_vectors()
        self.owner.clear()

    def _catch_up(self) -> int:
        """Encode the documents that are new or changed, drop deleted ones; returns how many."""
        with self._both() as tables:
            changed = tables.scan(
                "SELECT stored.key FROM stored.documents AS stored LEFT JOIN documents USING (key) "
                "WHERE documents.digest IS NOT stored.digest ORDER BY stored.id"
            )
            gone = tables.scan(
                "SELECT key FROM documents WHERE key NOT IN (SELECT key FROM stored.documents)"
            )
        if gone:
            self.target.delete([key for (key,) in gone], None)
        keys = [key for (key,) in changed]
        encode_stored(self.collection, keys, self.target, lambda: self.reader, self.progress)
        return len(changed) + len(gone)

    @contextmanager
    def _both(self) -> Iterator[Store]:
        """The tables of the new collection, with those of the collection as `stored`."""
        with Store(self.target.path / "documents.db", readers=1) as tables:
            tables.read("ATTACH ? AS stored", [f"{self.store.path.as_uri()}?mode=ro"])
            yield tables

    def _adopt(self, writer: Writer) -> None:
        """Replace the passages and segments; documents keep their ids."""
        for table in ("segments", "passages", "tombstones", "pending"):
            self.store.execute(f"DELETE FROM {table}")
        with self._both() as tables:
            for row in tables.segments():
                shift = writer.changes.next_passage() - row.base
                passages = tables.scan(
                    "SELECT passages.id + ?, stored.id, start, end FROM passages "
                    "JOIN documents ON documents.id = document "
                    "JOIN stored.documents AS stored USING (key) "
                    "WHERE passages.id BETWEEN ? AND ?",
                    (shift, *row.ends),
                )
                sql = "SELECT passage + ? FROM tombstones WHERE passage BETWEEN ? AND ?"
                deleted = tables.scan(sql, (shift, *row.ends))
                with self.store.writing() as connection:
                    sql = "INSERT INTO passages (id, document, start, end) VALUES (?, ?, ?, ?)"
                    connection.executemany(sql, passages)
                    connection.executemany("INSERT INTO tombstones (passage) VALUES (?)", deleted)
                built = BuiltSegment(self._linked(row), build_plan(self.store, None))
                writer.append((), ahead=built)

    def _linked(self, row: SegmentRow) -> Path:
        """A segment of the new collection in another folder, without the file of its passages."""
        parent = self.owner.folder / _LINKED
        source = folder_of(self.target.path, row.id)
        if (parent / source.name).exists():
            return parent / source.name
        (segment,) = self.target.open_segments([row]).values()
        with os_errors(self.collection.path), segment_errors(self.target.path):
            parent.mkdir(exist_ok=True)
            return link_segment(source, segment, parent, passages=False)


def encode_stored(
    source: Backend,
    keys: Sequence[str],
    target: Backend,
    readers: Callable[[], PassageReader],
    progress: Progress | None,
) -> None:
    """Add stored documents to a collection by ordinary ingestion: cut, encoded and committed."""

    def report(documents: int, _: int) -> None:
        if progress is not None and documents:
            progress("Encoding", documents, len(keys))

    options = AddOptions(progress=report, building=progress)
    with suppress(EmptyCorpus):  # others have deleted them meanwhile
        add(target, _documents(source, keys), options, readers=readers)


def _documents(source: Backend, keys: Sequence[str]) -> Iterator[Document]:
    """The stored ones of these documents, as they were last added."""
    for batch in in_batches(keys, _READ):
        with source.reading(newest=True) as snapshot:
            known = snapshot.known(batch)
            states = [known[key] for key in batch if key in known]
            documents = snapshot.documents([state.id for state in states])
        for document, state in zip(documents, states, strict=True):
            fields = json.loads(state.added)
            yield replace(document, metadata=fields, root=state.root or "", origin="reindex")


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
        is_default = before.passages == PassageConfig()
        passages = True if is_default else before.passages or False
    config, dim = before.config.as_dict(), int(stored["encoder"]["dim"])
    # The default and the full width follow the vectors, the default first.
    widths = {dim: encoder.dim, default_prefix(dim): default_prefix(encoder.dim)}
    config["prefix"] = min(widths.get(config["prefix"], config["prefix"]), encoder.dim)
    config["stages"] = [stage for stage in config["stages"] if stage[0] <= encoder.dim]
    if TUNED in stored:
        config |= {"shortlist": 0, "effort": 0, "stages": []}
    return CollectionSettings.for_encoder(encoder, config, passages, before.analyzer)


def _claim(
    collection: Collection, store: Store, encoder: TextEncoder, settings: Mapping[str, Any]
) -> Owner:
    """Name the work in a transaction, or take the pending one; returns its owner."""
    path, owner = collection.path, None
    if _pending(store) is None:  # before anything is encoded
        _check_encodable(store)
    try:
        with store.transaction(collection.wait), segments_folder(path, store), os_errors(path):
            if (work := _pending(store)) is None:
                owner = Owner.new(path)
                Changes(store).start_work(Kind.REINDEX, owner.name, {"settings": settings})
            else:
                _check_same(path, work.details["settings"], encoder, settings)
                owner = _taken(path, work)
                # The same encoder may come from another folder or URL than before.
                Changes(store).continue_work(work, settings=settings)
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
        path = store.path.parent
        raise CollectionError(
            f"the pending reindex of {path} is damaged ({error}); {_DROP.format(path)}"
        ) from error


def _pending(store: Store) -> Work | None:
    """The pending reindex, or None."""
    return next((work for work in store.works() if work.kind is Kind.REINDEX), None)


def _taken(path: Path, work: Work) -> Owner:
    owner = Owner(path, work.folder)
    if not owner.take():
        raise CollectionBusy(
            f"{path} is being reindexed by another process ({work.details['by']}); "
            "wait until it has finished, or end it"
        )
    return owner


def _check_encodable(store: Store) -> None:
    """Raise CollectionError for a document without text, or with one that was altered."""
    check_texts(store)
    sql = "SELECT key FROM documents WHERE trim(title || text, ?) = '' ORDER BY id LIMIT 1"
    for (key,) in store.scan(sql, [_SPACES]):
        raise _no_text(store.path.parent, key)


def _no_text(path: Path | str, key: str) -> CollectionError:
    return CollectionError(
        f"{path}: the document {key!r} came with vectors and without text, so no encoder can "
        "encode it; add it with a text, or delete it, and reindex again"
    )


def _check_same(
    path: Path | str, planned: Mapping[str, Any], encoder: TextEncoder, settings: Mapping[str, Any]
) -> None:
    """Raise EncoderMismatch if a pending reindex, to the settings `planned`, is another one."""
    if not has_built(encoder, planned["encoder"]) or planned["passages"] != settings["passages"]:
        source, got = (
            f"{name['source'] or name.get('name') or name['fingerprint']}, passages {cut}"
            for name, cut in ((each["encoder"], each["passages"]) for each in (planned, settings))
        )
        raise EncoderMismatch(
            f"a reindex of {path} by {source} is pending, got {got}; finish that one, or "
            f"{_DROP.format(path)}"
        )


def _chosen(
    path: Path | str,
    planned: Mapping[str, Any] | None,
    encoder: EncoderArgument | None,
    runtime: RuntimeConfig | None,
) -> TextEncoder:
    """The encoder to change to; None: that of the pending reindex, whose settings are `planned`."""
    if encoder is not None:
        return load_given(encoder, runtime)
    if planned is None:
        raise QueryError(
            f"no reindex of {path} is pending; name the encoder to change to: "
            "--encoder PATH or encoder=…"
        )
    return load_built_by(planned["encoder"], f"the pending reindex of {path}", runtime)


# ----------------------------------------------------------------------------------- on a server


def _on_server(
    collection: "PostgresCollection",
    present: CollectionEncoder,
    encoder: EncoderArgument | None,
    passages: PassageConfig | bool | None,
    runtime: RuntimeConfig | None,
    progress: Progress | None,
) -> None:
    """As `reindex`."""
    path, planned = collection.path, collection.pending()
    chosen = _chosen(path, planned, encoder, runtime)
    settings = settings_for(chosen, collection.settings, passages).as_stored(chosen)
    del settings["mode"]  # chosen at the swap, by the texts
    if planned is not None:
        _check_same(path, {"passages": None, **planned}, chosen, settings)
    reader = PassageReader(chosen, settings)
    with collection.reading(newest=True) as snapshot:
        fields = snapshot.sizes()["fields"]
        mode, weight = default_of(chosen, snapshot)
        for key in keys_of(snapshot, snapshot.ids_after(-1, _NO_TEXT, 1).tolist()):
            raise _no_text(path, key)
    with collection.beside(settings) as target:
        for _ in range(ROUNDS):
            if _follow(collection, target, reader, progress) <= REST:
                break
        target.configure({}, fields=fields)
        target.upsert((), finished=0)  # builds the index of vectors

        def finish() -> None:
            _follow(collection, target, reader, progress)
            for key, _, _ in collection.differing(target):  # nobody else writes now
                raise _no_text(path, key)
            kept = {**collection.settings, "weight": None, QUERY_MAP: None, "shortlist": None}
            if kept["tokenizer"] != Tokenizer.NONE and not kept.get(CHOSEN):
                kept |= {"mode": mode, "weight": None if weight == WEIGHT else weight}
            target.configure({**kept, **settings})

        expected = present.expect(chosen, runtime)
        collection.replace_by(target, finish)
    present.settle(expected)


def _follow(
    collection: "PostgresCollection",
    target: "PostgresCollection",
    reader: PassageReader,
    progress: Progress | None,
) -> int:
    """Encode the documents that are new or changed, drop deleted ones; returns how many."""
    differing = collection.differing(target)
    gone = [key for key, is_stored, _ in differing if not is_stored]
    changed = [
        key for key, is_stored, has_text_changed in differing if is_stored * has_text_changed
    ]
    if gone:
        target.delete(gone, None)
    encode_stored(collection, changed, target, lambda: reader, progress)
    # Then metadata as stored, with those that were last added.
    others = [key for key, _, has_changed in collection.differing(target) if not has_changed]
    for keys in in_batches(others, _READ):
        patches = [replace(e, spans=(), vectors=e.vectors[:0]) for e in entries(collection, keys)]
        target.upsert((), metadata=patches)
    return len(gone) + len(changed)
