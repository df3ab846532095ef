"""The folder that `encode` writes: vectors of a corpus, in a file for each part of it.

    manifest.jsonl        first line: format, encoder, passages; then a line for each file
    parts/FILE.npz        arrays in blocks i = 0, 1, …, by documents with a text:
                          digests_i (n, 32) uint8, SHA-256 of title and text;
                          passages_i (m, 3) int64: document in the block, start, end;
                          vectors_i (m, D) float32

A file is complete before its line is written, and never changes. One process at a time writes the
manifest; any number write files. A part that is encoded twice has two files, and the manifest names
one: the fingerprint of the part (corpus.parts) says which parts are there.
"""

import json
import os
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple, Self
from uuid import uuid4

import numpy as np
import numpy.typing as npt

from searchengine.backends.contract import Backend, Span
from searchengine.corpus.documents import Document
from searchengine.encoders.loading import CollectionEncoder, check_built_by, title
from searchengine.encoders.protocol import TextEncoder, Vectors
from searchengine.errors import (
    CollectionBusy,
    CollectionError,
    CorpusError,
    EncoderMismatch,
    QueryError,
)
from searchengine.indexer.storage.durable import sha256, sync, sync_file, sync_folder
from searchengine.ingest.passages import PassageConfig, PassageReader
from searchengine.ingest.settings import CollectionSettings

FORMAT = 1
MANIFEST = "manifest.jsonl"
_LOCK = ".lock"
_SCRATCH = f".{MANIFEST}.new"
_OWN = {"parts", _LOCK, _SCRATCH}
_AGAIN = "run searchengine encode again, which encodes what is missing"


@dataclass(frozen=True, slots=True)
class Entry:
    """A line of the manifest: a file of vectors.

    Attributes:
        part: fingerprint of the part of the corpus.
        file: name of the file.
        source: the files of the corpus, for people.
        documents: number of documents, those with a text.
        passages: number of rows.
        sha256: of the file.
        bad: malformed records that were left out.
        failed: messages of files that could not be read; the part is encoded again next time.
    """

    part: str
    file: str
    source: str
    documents: int
    passages: int
    sha256: str
    bad: int = 0
    failed: list[str] = field(default_factory=list)


class Block(NamedTuple):
    """Documents encoded together: digest and passages of each, and all their vectors (m, D)."""

    digests: npt.NDArray[np.uint8]
    passages: npt.NDArray[np.int64]
    vectors: Vectors

    def document(self, document: int) -> tuple[list[Span], Vectors]:
        """Passages and vectors of a document of this block, by its number."""
        rows = slice(*np.searchsorted(self.passages[:, 0], [document, document + 1]).tolist())
        spans = [(int(start), int(end)) for _, start, end in self.passages[rows]]
        return spans, self.vectors[rows]


class EncodedFolder:
    """An existing folder of vectors.

    Attributes:
        path: the folder.
        encoder, passages: settings of a collection, as they are stored.
        entries: fingerprint of a part → line of the manifest.
    """

    def __init__(self, path: Path) -> None:
        """Read the manifest. Raises CorpusError."""
        self.path = path
        if not (path / MANIFEST).is_file():
            reason = "has no manifest.jsonl" if path.is_dir() else "is not a folder"
            raise CorpusError(
                f"{path} {reason}; name a folder that searchengine encode wrote, or pass the array "
                "of a .npy file (numpy.load)"
            )
        lines = (path / MANIFEST).read_bytes().split(b"\n")
        # What an interrupted process wrote of a line has no end. Its file is encoded again.
        read = [_parsed(path, number, line) for number, line in enumerate(lines[:-1], start=1)]
        head = read[0] if read else {}
        if head.get("format") != FORMAT:
            raise CorpusError(
                f"{path} has the format {head.get('format')}, and this version reads {FORMAT}; "
                "encode the corpus into a new folder"
            )
        self.encoder: dict[str, Any] = head["encoder"]
        self.passages: dict[str, Any] | None = head["passages"]
        names = {field.name for field in fields(Entry)}
        self.entries: dict[str, Entry] = {}
        for number, line in enumerate(read[1:], start=2):
            if set(line) != names:
                raise _damaged(path, number)
            self.entries[line["part"]] = Entry(**line)

    @property
    def encoder_title(self) -> str:
        """What errors call the encoder."""
        return title(self.encoder)

    @classmethod
    def create(cls, path: Path, encoder: Mapping[str, Any], passages: Any) -> Self:
        """A new folder, or an empty one, without vectors. Raises CorpusError, OSError."""
        parts = path / "parts"
        parts.mkdir(parents=True, exist_ok=True)
        # Remove only what an interrupted creation leaves, never vectors whose manifest was lost.
        if any(parts.iterdir()) or {entry.name for entry in path.iterdir()} - _OWN:
            raise CorpusError(f"{path} exists already and holds other files; choose another folder")
        head = {"format": FORMAT, "encoder": encoder, "passages": passages}
        _replace(path / MANIFEST, [head])
        sync_folder(path.parent)
        return cls(path)

    @property
    def parts(self) -> Path:
        """The folder of the files."""
        return self.path / "parts"

    def add(self, entry: Entry) -> None:
        """Append a line to the manifest, which is synced."""
        with (self.path / MANIFEST).open("ab") as file:
            file.write(_line(asdict(entry)))
            file.flush()
            sync(file.fileno())
        self.entries[entry.part] = entry

    def keep(self, parts: Iterable[str]) -> int:
        """Rewrite the manifest with these parts alone; removes other files. Returns how many."""
        intact = set(parts)
        removed = [part for part in self.entries if part not in intact]
        for part in removed:
            del self.entries[part]
        head = {"format": FORMAT, "encoder": self.encoder, "passages": self.passages}
        _replace(self.path / MANIFEST, [head, *map(asdict, self.entries.values())])
        named = {entry.file for entry in self.entries.values()}
        for file in self.parts.iterdir():
            if file.name not in named and file.suffix in (".npz", ".new"):
                file.unlink(missing_ok=True)
        return len(removed)

    def is_intact(self, entry: Entry) -> bool:
        """Whether the file of an entry is there, as it was written."""
        try:
            return sha256(self.parts / entry.file) == entry.sha256
        except FileNotFoundError:
            return False

    def check(self, entry: Entry) -> None:
        """Raise CorpusError unless the file of an entry is as it was written."""
        if not self.is_intact(entry):
            raise CorpusError(
                f"{self.parts / entry.file} is missing or does not match its checksum; {_AGAIN}"
            )

    def digests(self, entry: Entry) -> list[npt.NDArray[np.uint8]]:
        """The digests of each block of a file, (n, 32)."""
        with self._opened(entry) as archive:
            count = len(archive.namelist()) // len(Block._fields)
            return [_array(archive, f"digests_{i}") for i in range(count)]

    def block(self, entry: Entry, number: int) -> Block:
        """A block of a file."""
        with self._opened(entry) as archive:
            return Block(*(_array(archive, f"{name}_{number}") for name in Block._fields))

    @contextmanager
    def _opened(self, entry: Entry) -> Iterator[zipfile.ZipFile]:
        file = self.parts / entry.file
        try:
            with zipfile.ZipFile(file) as archive:
                yield archive
        except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
            raise CorpusError(f"{file} cannot be read ({error}); {_AGAIN}") from error


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Let no other process write the manifest. Raises CollectionBusy."""
    from filelock import FileLock, Timeout

    path.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(path / _LOCK, timeout=0):
            yield
    except Timeout as error:
        raise CollectionBusy(
            f"another process writes to {path}; wait until it ends, or choose another folder"
        ) from error


class Written(NamedTuple):
    """A file of vectors: its name, documents, rows and checksum."""

    file: str
    documents: int
    passages: int
    sha256: str


def write_part(folder: Path, blocks: Iterable[Block]) -> Written:
    """Write a file of vectors, whole or not at all."""
    documents = rows = 0
    file = folder / f"{uuid4().hex}.npz"
    scratch = file.with_suffix(".new")
    try:
        with zipfile.ZipFile(scratch, "x") as archive:  # stored, with CRC-32
            for number, block in enumerate(blocks):
                documents += len(block.digests)
                rows += len(block.vectors)
                for name, array in block._asdict().items():
                    with archive.open(f"{name}_{number}.npy", "w", force_zip64=True) as member:
                        np.lib.format.write_array(member, array, allow_pickle=False)
        sync_file(scratch)
        checksum = sha256(scratch)
        os.replace(scratch, file)
    finally:
        scratch.unlink(missing_ok=True)
    sync_folder(folder)
    return Written(file.name, documents, rows, checksum)


def _array(archive: zipfile.ZipFile, name: str) -> npt.NDArray[Any]:
    with archive.open(f"{name}.npy") as member:
        array: npt.NDArray[Any] = np.lib.format.read_array(member, allow_pickle=False)
        return array


def _replace(path: Path, lines: Iterable[Any]) -> None:
    scratch = path.with_name(_SCRATCH)
    scratch.write_bytes(b"".join(map(_line, lines)))
    sync_file(scratch)
    os.replace(scratch, path)
    sync_folder(path.parent)


def _line(value: Any) -> bytes:
    return json.dumps(value).encode() + b"\n"


def _parsed(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except ValueError as error:
        raise _damaged(path, number) from error
    if not isinstance(value, dict):
        raise _damaged(path, number)
    return value


def _damaged(path: Path, number: int) -> CorpusError:
    repair = (
        f"remove the line and {_AGAIN}" if number > 1 else "encode the corpus into a new folder"
    )
    return CorpusError(f"{path / MANIFEST}:{number}: the line is damaged; {repair}")


_BLOCKS = 4  # kept in memory


class _Places(NamedTuple):
    """The first 8 bytes of each digest as a number (n,), ascending; entry, block and document."""

    digests: "np.ndarray[tuple[int], np.dtype[np.uint64]]"
    places: "np.ndarray[tuple[int, int], np.dtype[np.int32]]"


class EncodedReader(PassageReader):
    """Cuts documents as they were cut, and returns the vectors of their passages.

    A document is looked up by its title and text, so keys, metadata and the order of documents may
    differ from those of the corpus that was encoded.
    """

    def __init__(
        self,
        folder: EncodedFolder,
        encoder: TextEncoder,
        passages: PassageConfig | None,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        """`encoder` and the rest: of the collection. Reads all digests: 20 bytes a document.

        Raises EncoderMismatch, CollectionError (other passages), CorpusError (damaged).
        """
        super().__init__(encoder, passages, settings)
        check_built_by(
            encoder,
            folder.encoder,
            folder.path,
            "encode the corpus by the encoder of the collection",
        )
        expected = None if passages is None else passages.as_dict()
        if folder.passages != expected:
            raise CollectionError(
                f"{folder.path} has passages {folder.passages or 'none'}, and the collection "
                f"{expected or 'none'}; encode the corpus as the collection cuts it"
            )
        self._folder = folder
        self._entries = list(folder.entries.values())
        self._places = self._read_places()
        self._checked: set[str] = set()
        self._block = lru_cache(_BLOCKS)(self._read_block)

    def cut(self, documents: Sequence[Document]) -> tuple[list[list[Span]], int]:
        """The passages of each document; no token is encoded. Raises CorpusError."""
        return [self._stored(document)[0] for document in documents], 0

    def texts(self, passages: Sequence[tuple[Document, Span]]) -> list[str]:
        """Nothing: no text is encoded."""
        return []

    def encode(
        self,
        passages: Sequence[tuple[Document, Span]],
        texts: Sequence[str],
        on_batch: Callable[[int], None],
    ) -> Vectors:
        """Float32 (n, D): the vectors of the passages. Raises CorpusError."""
        vectors = np.empty((len(passages), self.encoder.dim), np.float32)
        row = 0
        for _, group in groupby(passages, key=lambda passage: id(passage[0])):
            together = list(group)
            spans, rows = self._stored(together[0][0])
            first = spans.index(together[0][1])
            vectors[row : row + len(together)] = rows[first : first + len(together)]
            row += len(together)
        on_batch(len(passages))
        return vectors

    def _stored(self, document: Document) -> tuple[list[Span], Vectors]:
        digest = document.digest
        for entry, number, position in self._candidates(digest):
            block = self._block(entry, number)
            if block.digests[position].tobytes() == digest:
                return block.document(position)
        raise CorpusError(
            f"{document.origin or 'add'}: {self._folder.path} has no vectors of the document "
            f"{document.key!r:.80}, which is new or has changed; run searchengine encode again"
        )

    def _candidates(self, digest: bytes) -> Iterator[tuple[int, int, int]]:
        number = np.frombuffer(digest[:8], ">u8")[0]
        digests = self._places.digests
        for i in range(*(int(np.searchsorted(digests, number, s)) for s in ("left", "right"))):
            entry, block, position = self._places.places[i].tolist()
            yield entry, block, position

    def _read_places(self) -> _Places:
        numbers, places = [np.empty(0, np.uint64)], [np.empty((0, 3), np.int32)]
        for at, entry in enumerate(self._entries):
            for number, digests in enumerate(self._folder.digests(entry)):
                numbers.append(digests[:, :8].copy().view(">u8")[:, 0].astype(np.uint64))
                rows = np.arange(len(digests))
                places.append(
                    np.stack([np.full_like(rows, at), np.full_like(rows, number), rows], 1).astype(
                        np.int32
                    )
                )
        joined = np.concatenate(numbers)
        order = np.argsort(joined, kind="stable")
        return _Places(joined[order], np.concatenate(places)[order])

    def _read_block(self, at: int, number: int) -> Block:
        entry: Entry = self._entries[at]
        if entry.file not in self._checked:  # once: it reads all of the file
            self._folder.check(entry)
            self._checked.add(entry.file)
        return self._folder.block(entry, number)


def passage_reader(
    collection: Backend, encoder: CollectionEncoder, encoded: str | Path | None = None
) -> PassageReader:
    """Cuts and encodes documents, or takes their vectors from a folder of `encode`.

    Raises QueryError without an encoder."""
    folder = None if encoded is None else EncodedFolder(Path(encoded))
    collection.follow()  # the folder may have been replaced, with other settings
    stored = collection.settings
    settings = CollectionSettings.from_stored(stored)
    if not settings.encodes:
        raise QueryError(
            f"{collection.path} has no encoder; pass the vectors of the documents: "
            "add(documents, vectors)"
        )
    try:
        loaded = encoder.load(stored)
    except EncoderMismatch:
        if not encoder.is_past(stored):
            raise
        return passage_reader(collection, encoder, encoded)  # reindexed meanwhile
    if folder is None:
        return PassageReader(loaded, settings.passages, stored)
    return EncodedReader(folder, loaded, settings.passages, stored)
