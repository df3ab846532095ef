"""Encode all documents of a living collection by another encoder, and swap once.

    beside  a new collection: in a folder that of a pending work, which one transaction names; on a
            server in a schema beside
    encode  add the documents that it lacks: commits as of any `add`, so a killed process loses
            little, and the next call goes on
    swap    while nobody else writes, add documents changed meanwhile; the same transaction puts the
            new vectors and settings in the place of the former ones

Until the swap everybody reads and writes with the former encoder, and afterwards readers keep their
commit until they refresh. Texts are compared by their checksums, so nothing has to be noted of what
others change.
"""

import json
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, cast
from uuid import uuid4

from searchengine.backends.contract import Backend, has_words
from searchengine.backends.entries import documents as stored_documents
from searchengine.backends.folder.collection import Collection
from searchengine.backends.folder.folders import Scratch, folder_errors, folder_of, segments_folder
from searchengine.backends.folder.store import Changes, Store, Work
from searchengine.backends.folder.writer import TUNED, Writer
from searchengine.backends.mode import CHOSEN, WEIGHT
from searchengine.backends.opening import in_folder, is_url
from searchengine.corpus.analyzer import Analyzer
from searchengine.corpus.documents import Document
from searchengine.encoders.loading import (
    QUERY_MAP,
    CollectionEncoder,
    EncoderArgument,
    has_built,
    load_given,
    title,
)
from searchengine.encoders.protocol import TextEncoder
from searchengine.errors import CollectionBusy, CollectionError, EmptyCorpus, EncoderMismatch
from searchengine.indexer.building import Progress
from searchengine.ingest.defaults import default_of
from searchengine.ingest.ingestion import AddOptions, add
from searchengine.ingest.passages import PassageConfig, PassageReader
from searchengine.ingest.pipeline import in_batches
from searchengine.ingest.settings import CollectionSettings, default_prefix
from searchengine.trainer.runtimes.runtime_config import RuntimeConfig
from searchengine.upkeep.copies import link_segment
from searchengine.upkeep.verify import altered_text

_ROUNDS = 3  # the first takes hours, and the last leaves what others change in some seconds
_PATIENCE = 60.0  # seconds to wait for other writers at least, when all is encoded
_READ = 500  # documents read at a time
_DROP = "drop it: searchengine reindex {} --discard"


def reindex(
    collection: Backend,
    present: CollectionEncoder,
    encoder: EncoderArgument,
    passages: PassageConfig | bool | None,
    runtime: RuntimeConfig | None,
    progress: Progress | None,
) -> None:
    """Encode all documents by another encoder, and use it from now on: SearchEngine.reindex.

    `present`: the encoder of the collection, which becomes the other one."""
    place, path = place_of(collection), collection.path
    chosen = load_given(encoder, runtime)
    with collection.reading(newest=True) as snapshot:
        settings = settings_for(chosen, snapshot.settings, passages).as_stored(chosen)
    del settings["mode"]  # chosen at the swap, by the texts
    reader = PassageReader(chosen, settings)
    _check_encodable(collection)  # before anything is encoded
    with place.beside(settings) as target:
        _check_same(path, target.settings, chosen, settings)
        follow = partial(_follow, collection, place, target, reader, progress)
        encoded = sum(follow() for _ in range(_ROUNDS))
        target.upsert((), finished=encoded, progress=progress)
        present.expect(chosen)
        with collection.reading(newest=True) as snapshot:
            mode, weight = default_of(chosen, snapshot)

        def finish() -> Mapping[str, Any]:
            while rest := follow():
                if rest == follow():  # though nobody else writes now
                    _check_encodable(collection)
                    (key, _), *_ = place.differing(target)
                    raise altered_text(path, key)
            with collection.reading(newest=True) as snapshot:
                stored = snapshot.settings
            values = {**settings, "tokenizer": target.settings["tokenizer"]}
            values |= dict.fromkeys(("weight", QUERY_MAP, TUNED))
            # The present mode suited the former encoder, unless a user has chosen it.
            if has_words(stored) and not stored.get(CHOSEN):
                values |= {"mode": mode, "weight": None if weight == WEIGHT else weight}
            return values

        place.replace_by(target, finish)
        present.settle()


def place_of(collection: Backend) -> "FolderPlace":
    """Where the new collection of a reindex is."""
    if is_url(collection.path):  # has the same members
        return cast(FolderPlace, collection)
    return FolderPlace(in_folder(collection))


def _follow(
    source: Backend,
    place: "FolderPlace",
    target: Collection,
    reader: PassageReader,
    progress: Progress | None,
) -> int:
    """Encode documents that are new or changed, and drop deleted ones; returns how many."""
    differing = place.differing(target)
    if gone := [key for key, is_stored in differing if not is_stored]:
        target.delete(gone, None)
    changed = [key for key, is_stored in differing if is_stored]
    encode_stored(source, changed, target, reader, progress)
    return len(differing)


class FolderPlace:
    """Where a reindex keeps the new collection of a folder, and how that replaces the present one.

    Segments are linked into the collection, so the new one stays whole until the commit. Documents
    keep their ids and metadata; the swap replaces passages, segments and settings.
    """

    def __init__(self, collection: Collection) -> None:
        self._collection = collection
        self._owner: Scratch | None = None  # of the folder of the new collection

    @contextmanager
    def beside(self, settings: Mapping[str, Any]) -> Iterator[Collection]:
        """The new collection: that of the pending reindex, or one that is created.

        One process at a time has it. Raises CollectionBusy.
        """
        path = self._collection.path
        with self._collection.open_store() as store, ExitStack() as stack:
            transaction = store.transaction(self._collection.wait)
            with transaction, segments_folder(path, store), folder_errors(path, changing=True):
                if (work := next(iter(store.works()), None)) is None:
                    # `pending` stays: another process may be about to make a lock in it.
                    owner = Scratch(path / "pending" / uuid4().hex)
                    owner.make()
                else:
                    owner, settings = _taken(path, work), work.details["settings"]
                self._owner = owner
                stack.callback(owner.release)
                Changes(store).name_work(owner.folder.name, settings)
            with folder_errors(owner.folder, changing=True):
                owner.folder.mkdir(exist_ok=True)
            tokenizer = Analyzer.parse(store.settings()["tokenizer"])
            with closing(self._opened(owner.folder, settings, tokenizer)) as target:
                yield target

    def _opened(self, folder: Path, settings: Mapping[str, Any], tokenizer: Analyzer) -> Collection:
        """The new collection, with the documents encoded before."""
        if not (folder / "documents.db").exists():
            return Collection.create(folder, {**settings}, tokenizer)
        try:
            return Collection(folder)
        except CollectionError as error:
            path = self._collection.path
            way_out = _DROP.format(shlex.quote(str(path)))
            raise CollectionError(
                f"the pending reindex of {path} is damaged ({error}); {way_out}"
            ) from error

    def differing(self, target: Collection) -> list[tuple[str, bool]]:
        """The documents that the new collection lacks, has too many or with another text.

        Key, and whether it is stored in the present one.
        """
        sql = (
            "SELECT stored.key, 1, stored.id FROM stored.documents AS stored "
            "LEFT JOIN documents USING (key) WHERE documents.digest IS NOT stored.digest UNION ALL "
            "SELECT key, 0, id FROM documents "
            "WHERE key NOT IN (SELECT key FROM stored.documents) ORDER BY 3"
        )
        with self._both(target) as tables:
            return [row[:2] for row in tables.scan(sql)]

    def replace_by(self, target: Collection, finish: Callable[[], Mapping[str, Any]]) -> None:
        """Put the new collection in the place of the present one, in one commit.

        `finish`: called while nobody else writes, on a server maybe several times. Brings the new
        collection up to date; returns the settings to store, where None removes one.
        """
        wait = max(self._collection.wait, _PATIENCE)
        with self._collection.writing(wait=wait) as writer:
            values = finish()
            self._adopt(writer, target)
            writer.changes.configure(values)
            # Vectors come from the encoder, whatever came with documents before.
            writer.store.execute("UPDATE documents SET vectors = NULL WHERE vectors NOT NULL")
        assert self._owner is not None
        self._owner.clear()

    def discard(self) -> bool:
        """Drop the pending reindex; whether there was one. Raises CollectionBusy."""
        with self._collection.open_store() as store, store.transaction(self._collection.wait):
            if (work := next(iter(store.works()), None)) is None:
                return False
            owner = _taken(self._collection.path, work)
            Changes(store).end_work(work.folder)
            owner.clear()
        return True

    @contextmanager
    def _both(self, target: Collection) -> Iterator[Store]:
        """The tables of the new collection, with those of the present one as `stored`."""
        with Store(target.path / "documents.db", readers=1) as tables:
            path = self._collection.path / "documents.db"
            tables.read("ATTACH ? AS stored", [f"{path.as_uri()}?mode=ro"])
            yield tables

    def _adopt(self, writer: Writer, target: Collection) -> None:
        """Replace the passages and segments; documents keep their ids."""
        store = writer.store
        for table in ("segments", "passages", "tombstones", "pending"):
            store.execute(f"DELETE FROM {table}")
        with self._both(target) as tables:
            shift = (writer.changes.next_id("passages"),)
            passages = tables.scan(
                "SELECT passages.id + ?, stored.id, start, end FROM passages JOIN documents "
                "ON documents.id = document JOIN stored.documents AS stored USING (key)",
                shift,
            )
            deleted = tables.scan("SELECT passage + ? FROM tombstones", shift)
        with store.writing() as connection:
            sql = "INSERT INTO passages (id, document, start, end) VALUES (?, ?, ?, ?)"
            connection.executemany(sql, passages)
            connection.executemany("INSERT INTO tombstones (passage) VALUES (?)", deleted)
        for row, segment in target.open_segments([*target.segments]).items():
            with folder_errors(store.path.parent, changing=True), folder_errors(target.path):
                linked = target.path / "linked"
                linked.mkdir(exist_ok=True)
                source = folder_of(target.path, row.id)
                built = link_segment(source, segment, linked, passages=False)
            writer.append_built(built, row.base + shift[0])


def _taken(path: Path, work: Work) -> Scratch:
    owner = Scratch(path / "pending" / work.folder)
    if not owner.take():
        raise CollectionBusy(
            f"{path} is being reindexed by another process ({work.details['by']}); "
            "wait until it has finished, or stop that process"
        )
    return owner


def encode_stored(
    source: Backend,
    keys: Sequence[str],
    target: Backend,
    reader: PassageReader,
    progress: Progress | None,
) -> None:
    """Add stored documents to a collection by ordinary ingestion: cut, encoded and committed."""

    def report(documents: int, _: int) -> None:
        if progress is not None and documents:
            progress("Encoding", documents, len(keys))

    options = AddOptions(progress=report, building=progress)
    with suppress(EmptyCorpus):  # others have deleted them meanwhile
        add(target, _documents(source, keys), options, lambda: reader)


def _documents(source: Backend, keys: Sequence[str]) -> Iterator[Document]:
    """The stored ones of these documents, as they were last added."""
    for batch in in_batches(keys, _READ):
        with source.reading(newest=True) as snapshot:
            known = snapshot.known(batch)
            states = [known[key] for key in batch if key in known]
            documents = snapshot.documents([state.id for state in states])
        for row, state in zip(documents, states, strict=True):
            fields, root = json.loads(state.added), state.root or ""
            yield Document(row.key, row.text, row.title, fields, "reindex", root)


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


def _check_encodable(source: Backend) -> None:
    """Raise CollectionError for a document without text."""
    with source.reading(newest=True) as snapshot:
        for document in stored_documents(snapshot):
            if not document.full_text.strip():
                raise CollectionError(
                    f"{source.path}: the document {document.key!r} came with vectors and without "
                    "text, so no encoder can encode it; add it with a text, or delete it, and "
                    "reindex again"
                )


def _check_same(
    path: Path | str, planned: Mapping[str, Any], encoder: TextEncoder, settings: Mapping[str, Any]
) -> None:
    """Raise EncoderMismatch if a pending reindex, to the settings `planned`, is another one."""
    is_same = has_built(encoder, planned["encoder"])
    if not is_same or planned.get("passages") != settings["passages"]:
        how = "other passages" if is_same else title(settings["encoder"])
        raise EncoderMismatch(
            f"a reindex of {path} by {title(planned['encoder'])} is pending, got {how}; finish "
            f"that one, or {_DROP.format(shlex.quote(str(path)))}"
        )
