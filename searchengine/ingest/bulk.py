"""Encodes a corpus into a folder: which parts there are, who encodes them, what was done.

The unit of work is one part of a corpus → one file of vectors, and depends on nothing else. So a
part may be encoded again at any time, on any machine, by a process that knows nothing of the
others: the same file results, and replaces the other one.
"""

import socket
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from searchengine.backends.folder.folders import os_errors
from searchengine.corpus.documents import Document, LeftOut
from searchengine.corpus.files import Unread
from searchengine.corpus.parts import Part, parts_of
from searchengine.corpus.tabular import Columns
from searchengine.encoders.loading import EncoderArgument, check_built_by, load_given
from searchengine.encoders.protocol import TextEncoder
from searchengine.errors import CollectionError, CorpusError, EmptyCorpus
from searchengine.ingest import pipeline
from searchengine.ingest.encoded_folder import (
    MANIFEST,
    Block,
    EncodedFolder,
    Entry,
    locked,
    write_part,
)
from searchengine.ingest.passages import PassageConfig, PassageReader
from searchengine.ingest.pipeline import encoded
from searchengine.ingest.settings import CollectionSettings
from searchengine.trainer.runtimes.config import RuntimeConfig

ELSEWHERE = "encode with that encoder, or choose another folder"
"""The way out if another encoder wrote the folder."""

OnBlock = Callable[[int], None]
"""Called with the number of documents just encoded."""


class Result(NamedTuple):
    """The line of a part; whether its file was written now; messages of malformed records."""

    entry: Entry
    is_new: bool
    bad: LeftOut


@dataclass(frozen=True, slots=True)
class Work:
    """What is the same for all parts; it is sent to other machines.

    Attributes:
        folder: what is encoded already; its path is absolute.
        encoder: what encodes; a name is loaded where it is used.
        runtime, layers: how it is loaded.
        columns: the fields that hold text and title.
        skip_bad: leave out malformed records; otherwise they raise.
    """

    folder: EncodedFolder
    encoder: EncoderArgument
    runtime: RuntimeConfig | None
    layers: int | None
    columns: Columns
    skip_bad: bool


def load(
    encoder: EncoderArgument, runtime: RuntimeConfig | None, layers: int | None
) -> TextEncoder:
    """The encoder; one that is named stays loaded in this process."""
    if isinstance(encoder, str | Path):
        return _loaded(str(encoder), runtime, layers)
    return load_given(encoder, runtime, layers)


@lru_cache(maxsize=1)
def _loaded(source: str, runtime: RuntimeConfig | None, layers: int | None) -> TextEncoder:
    return load_given(source, runtime, layers)


def encode_part(work: Work, part: Part, on_block: OnBlock | None = None) -> Result:
    """Encode a part, unless the folder has it already.

    Raises CorpusError, EncoderMismatch (this machine has another version of the encoder), OSError.
    """
    folder = work.folder
    if not folder.parts.is_dir():
        raise CorpusError(
            f"{folder.path} is not there on {socket.gethostname()}; all machines need the same "
            "folders, for the corpus and for the vectors"
        )
    name, bad = part.fingerprint(work.columns), LeftOut()
    entry = folder.entries.get(name)
    if entry is not None and not entry.failed and folder.is_intact(entry):
        return Result(entry, False, bad)
    encoder = load(work.encoder, work.runtime, work.layers)
    check_built_by(encoder, folder.encoder, folder.path, ELSEWHERE)
    cut = None if folder.passages is None else PassageConfig.from_dict(folder.passages)
    reader, unread = PassageReader(encoder, cut), Unread()
    on_bad = (lambda error: bad.add(str(error))) if work.skip_bad else None
    documents = part.documents(work.columns, on_bad, unread)

    def checked() -> Iterator[Block]:
        yield from _blocks(reader, documents, on_block)
        if part.fingerprint(work.columns) != name:
            raise CorpusError(f"{part} was changed while it was read; run the same command again")

    written = write_part(folder.parts, checked())
    entry = Entry(
        name, source=str(part), bad=bad.count, failed=unread.failed.first, **written._asdict()
    )
    return Result(entry, True, bad)


def _blocks(
    reader: PassageReader, documents: Iterable[Document], on_block: OnBlock | None
) -> Iterator[Block]:
    for block in encoded(reader, _together(documents)):
        yield Block(
            np.frombuffer(b"".join(d.digest for d in block.documents), np.uint8).reshape(-1, 32),
            np.array([(i, *span) for i, cut in enumerate(block.spans) for span in cut], np.int64),
            block.vectors,
        )
        if on_block is not None:
            on_block(len(block.documents))


def _together(documents: Iterable[Document]) -> Iterator[Sequence[Document]]:
    """Documents with a text, in blocks."""
    block: list[Document] = []
    characters = 0
    for document in documents:
        if not document.full_text:
            continue
        block.append(document)
        characters += len(document.title) + len(document.text)
        if len(block) == pipeline.LARGEST_BLOCK[0] or characters >= pipeline.LARGEST_BLOCK[1]:
            yield block
            block, characters = [], 0
    if block:
        yield block


class Place(StrEnum):
    """Where parts are encoded: in this process, or as tasks of a Ray cluster."""

    LOCAL = "local"
    RAY = "ray"


@dataclass(frozen=True, slots=True)
class EncodeOptions:
    """How to encode a corpus.

    Attributes:
        on: where.
        cpus: processors of a task on Ray.
        passages: as in SearchEngine.create; for an existing folder None stands for its own.
        columns: the fields of records.
        skip_bad: leave out malformed records; otherwise they raise, or end the reading of their
            file in a folder.
        prune: remove the vectors of files that have changed or are gone.
        progress: called with the number of documents just encoded, or found encoded.
    """

    on: Place = Place.LOCAL
    cpus: float = 1
    passages: PassageConfig | bool | None = None
    columns: Columns = field(default_factory=Columns)
    skip_bad: bool = False
    prune: bool = False
    progress: OnBlock | None = None


@dataclass(frozen=True, slots=True)
class EncodeSummary:
    """What is encoded.

    Attributes:
        documents, passages: of the corpus, which the folder holds now.
        parts: parts of the corpus.
        encoded: how many of them were encoded now; the others were there.
        removed: vectors of other parts that were removed, in parts.
        others: parts in the folder that this corpus does not have: its files have changed, or are
            gone, or are of another corpus.
        bad: malformed records, left out now.
        unread: files that were skipped or could not be read.
    """

    documents: int
    passages: int
    parts: int
    encoded: int
    removed: int
    others: int
    bad: LeftOut
    unread: Unread


def encode_corpus(
    corpus: str | Path,
    path: str | Path,
    encoder: EncoderArgument = "starter",
    options: EncodeOptions | None = None,
    *,
    runtime: RuntimeConfig | None = None,
    layers: int | None = None,
) -> EncodeSummary:
    """Encode the files of a corpus into a folder, for `SearchEngine.add(documents, vectors=path)`.

    A file of the corpus (or a slice of a large one, or several small ones) is encoded as a whole.
    After an interruption the same call continues behind the last one. Parts that are in the folder
    are not encoded again, and those whose files are damaged are.

    Args:
        corpus: a file or folder, as `read_corpus` reads it.
        path: the folder of the vectors; created if needed.
        encoder: as for `SearchEngine.create`.
        runtime, layers: how it is loaded.

    Raises CorpusError, EmptyCorpus, EncoderMismatch (another encoder wrote the folder),
    CollectionError (it has other passages), CollectionBusy, and with Ray ServerError, or
    ImportError if it is not installed.
    """
    options = EncodeOptions() if options is None else options
    path, unread, bad = Path(path).resolve(), Unread(), LeftOut()
    _check_apart(Path(corpus).resolve(), path)
    if options.on == Place.RAY:
        from searchengine.ingest.on_ray import import_ray

        import_ray()  # refuses if it is not installed, before a folder is made
    parts = parts_of(corpus, unread)
    loaded = load(encoder, runtime, layers)
    done: dict[str, Entry] = {}
    encoded = 0
    with os_errors(path), locked(path):
        folder = _folder(path, loaded, options.passages)
        work = Work(folder, encoder, runtime, layers, options.columns, options.skip_bad)
        with closing(_results(work, parts, options)) as results:
            for result in results:
                if result.is_new:
                    folder.add(result.entry)
                    encoded += 1
                done[result.entry.part] = result.entry
                _note(result, unread.failed, bad)
        removed = folder.keep(done) if options.prune else 0
    documents = sum(entry.documents for entry in done.values())
    if not documents:
        raise EmptyCorpus(f"{corpus}: no document to encode")
    return EncodeSummary(
        documents,
        sum(entry.passages for entry in done.values()),
        len(parts),
        encoded,
        removed,
        len(folder.entries) - len(done),
        bad,
        unread,
    )


def _check_apart(corpus: Path, path: Path) -> None:
    """Refuse to write vectors among the files of the corpus, which would be read as some of it."""
    if path.is_relative_to(corpus):
        raise CorpusError(f"{path} is inside the corpus {corpus}; choose a folder elsewhere")


def _note(result: Result, failed: LeftOut, bad: LeftOut) -> None:
    """Take over the messages of a part."""
    for message in result.entry.failed:
        failed.add(message)
    for message in result.bad.first:
        bad.add(message)
    bad.count += result.bad.count - len(result.bad.first)


def _folder(
    path: Path, encoder: TextEncoder, passages: PassageConfig | bool | None
) -> EncodedFolder:
    """The folder, created if needed, and cleaned of what an interrupted process has left.

    Raises CorpusError, EncoderMismatch, CollectionError.
    """
    wanted = True if passages is None else passages
    stored = CollectionSettings.for_encoder(encoder, passages=wanted).as_stored(encoder)
    if not (path / MANIFEST).exists():
        return EncodedFolder.create(path, stored["encoder"], stored["passages"])
    folder = EncodedFolder(path)
    check_built_by(encoder, folder.encoder, path, ELSEWHERE)
    if passages is not None and stored["passages"] != folder.passages:
        raise CollectionError(
            f"{path} has passages {folder.passages or 'none'}, got {stored['passages'] or 'none'}; "
            "leave them out, or choose another folder"
        )
    folder.keep(folder.entries)
    return folder


def _results(work: Work, parts: Sequence[Part], options: EncodeOptions) -> Generator[Result]:
    """The result of each part, in any order."""
    if options.on == Place.RAY:
        from searchengine.ingest.on_ray import encode_on_ray

        for result in encode_on_ray(work, parts, options.cpus):
            if options.progress is not None:
                options.progress(result.entry.documents)
            yield result
        return
    for part in parts:
        result = encode_part(work, part, options.progress)
        if not result.is_new and options.progress is not None:
            options.progress(result.entry.documents)
        yield result
