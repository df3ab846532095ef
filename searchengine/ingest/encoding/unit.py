"""The unit of work: one part of a corpus → one file of vectors. It depends on nothing else.

So a part may be encoded again at any time, on any machine, by a process that knows nothing of the
others: the same file results, and replaces the other one.
"""

import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from searchengine.corpus.columns import Columns
from searchengine.corpus.documents import Document, LeftOut
from searchengine.corpus.folder import Unread
from searchengine.corpus.parts import Part
from searchengine.encoders.loading import EncoderArgument, check_built_by, load_given
from searchengine.encoders.protocol import TextEncoder
from searchengine.errors import CorpusError
from searchengine.ingest import pipeline
from searchengine.ingest.encoding.folder import Block, EncodedFolder, Entry, write_part
from searchengine.ingest.passages import PassageConfig, PassageReader
from searchengine.ingest.pipeline import encoded
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
