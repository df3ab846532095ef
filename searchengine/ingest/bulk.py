"""Encodes a corpus into a folder: parts of the corpus, processes that encode them, a summary.

The unit of work is one part of a corpus → one file of vectors, and depends on nothing else. So a
part may be encoded again at any time, on any machine, by a process that knows nothing of the
others: the same file results, and replaces the other one.
On a Ray cluster parts are tasks. Ray starts a task again, on another machine, when the machine or
process that runs it is lost. A task returns a few hundred bytes, which are kept by this process, so
nothing else can be lost.
"""

import logging
import os
import socket
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from searchengine.backends.folder.folders import os_errors
from searchengine.corpus.documents import Document, LeftOut
from searchengine.corpus.files import Unread
from searchengine.corpus.formats.kinds import AS_THEY_ARE, FileChoice
from searchengine.corpus.parts import Part, parts_of
from searchengine.corpus.tabular import Columns
from searchengine.encoders.loading import EncoderArgument, check_built_by, load_given
from searchengine.encoders.protocol import TextEncoder
from searchengine.errors import (
    CollectionError,
    CorpusError,
    EmptyCorpus,
    SearchEngineError,
    ServerError,
)
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
from searchengine.trainer.errors import install_line
from searchengine.trainer.runtimes.runtime_config import RuntimeConfig

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
    """The settings that all parts share; they are sent to other machines.

    Attributes:
        folder: the encoded documents so far; its path is absolute.
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
        choice: files to read as text, or to leave out.
        skip_bad: leave out malformed records; otherwise they raise, or end the reading of their
            file in a folder.
        prune: remove the vectors of files that have changed or are gone.
        progress: called with the number of documents just encoded, or found encoded.
    """

    on: Place = Place.LOCAL
    cpus: float = 1
    passages: PassageConfig | bool | None = None
    columns: Columns = field(default_factory=Columns)
    choice: FileChoice = AS_THEY_ARE
    skip_bad: bool = False
    prune: bool = False
    progress: OnBlock | None = None


@dataclass(frozen=True, slots=True)
class EncodeSummary:
    """The result of encoding a corpus into a folder.

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
    are not encoded again, unless their files are damaged.

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
        import_ray()  # refuses if it is not installed, before a folder is made
    parts = parts_of(corpus, unread, options.choice)
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


RETRIES = 10
"""How often a part is encoded again after its machine or process was lost."""
_CONNECT = 10  # seconds
_WAITING = 1000  # tasks submitted at a time: Ray starts those that have room


def encode_on_ray(work: Work, parts: Sequence[Part], cpus: float) -> Generator[Result]:
    """Encode parts on the cluster of RAY_ADDRESS, a running one of this machine, or a new one.

    Each task takes `cpus` processors, and a GPU if the runtime's device is one.

    Raises ImportError, ServerError (a part was lost too often, or no machine is large enough), and
    what encode_part raises.
    """
    ray = import_ray()
    is_ours = not ray.is_initialized()
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if is_ours:
        check_reachable(os.environ.get("RAY_ADDRESS", ""))
        try:
            ray.init(log_to_driver=False, logging_level=logging.ERROR)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise _unreachable(str(error)) from error
    try:
        device = "" if work.runtime is None else work.runtime.device or ""
        needs = {"CPU": cpus, "GPU": 1 if device.startswith("cuda") else 0}
        _check_room(ray, needs)
        options = {"num_cpus": needs["CPU"], "num_gpus": needs["GPU"], "max_retries": RETRIES}
        yield from _run(ray, ray.remote(**options)(_task), work, parts)
    finally:
        if is_ours:
            ray.shutdown()


def check_reachable(address: str) -> None:
    """Raise ServerError unless something answers at HOST:PORT; Ray would try for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal():  # "auto" and the like
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT).close()
    except (OSError, OverflowError) as error:
        raise _unreachable(f"{address}: {error}") from error


def _unreachable(reason: str) -> ServerError:
    return ServerError(
        f"Ray cannot be reached ({reason}); correct RAY_ADDRESS, or start Ray: ray start --head"
    )


def _task(work: Work, part: Part) -> Result | Exception:
    """As encode_part; returns errors that concern the user, to be raised unchanged."""
    try:
        return encode_part(work, part)
    except (SearchEngineError, OSError, ImportError) as error:
        return error


def _run(ray: Any, task: Any, work: Work, parts: Sequence[Part]) -> Generator[Result]:
    shared = ray.put(work)
    following = iter(parts)
    running: dict[Any, Part] = {}
    try:
        while True:
            while len(running) < _WAITING and (part := next(following, None)) is not None:
                running[task.remote(shared, part)] = part
            if not running:
                return
            (reference, *_), _ = ray.wait(list(running))
            yield _result(ray, reference, running.pop(reference))
    finally:
        for reference in running:
            ray.cancel(reference, force=True)


def _result(ray: Any, reference: Any, part: Part) -> Result:
    try:
        result = ray.get(reference)
    except ray.exceptions.RayTaskError:
        raise  # a fault of this program
    except ray.exceptions.RayError as error:
        reason = str(error).strip().splitlines()[0]
        raise ServerError(
            f"{part} could not be encoded: its machine or process was lost {RETRIES + 1} times "
            f"({reason}); run the same command again, with fewer tasks on a machine if its memory "
            "was full"
        ) from error
    if isinstance(result, Exception):
        raise result
    assert isinstance(result, Result)
    return result


def _check_room(ray: Any, needs: dict[str, float]) -> None:
    """Raise ServerError if no machine has what a task needs: Ray would wait for one forever."""
    machines = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    if not any(all(m.get(name, 0) >= n for name, n in needs.items()) for m in machines):
        wanted = " and ".join(f"{n:g} {name}" for name, n in needs.items() if n)
        raise ServerError(f"no machine of the Ray cluster has {wanted} for a task; add one")


def import_ray() -> Any:
    """The module ray. Raises ImportError with the line that installs it."""
    try:
        import ray
    except ImportError as error:
        raise ImportError(f"encoding on a Ray cluster needs ray: {install_line('ray')}") from error
    return ray
