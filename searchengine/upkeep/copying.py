"""Copies a collection from one backend to another: a folder to a server, or back.

The copy runs in batches, each a commit. Documents that the target already has are compared by
their checksums and not written again, so after an interruption, or when the source has changed, the
same call writes only what differs. At the end both sides are read again and compared.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from searchengine.backends.contract import Backend, Entry
from searchengine.backends.mode import CHOSEN, Mode
from searchengine.backends.opening import create_backend, exists, open_backend
from searchengine.corpus.analyzer import Analyzer, Tokenizer
from searchengine.errors import CollectionError, EncoderMismatch

_BATCH = 2000  # documents in a commit
NEAR = 2e-3
"""Maximum distance between two unit vectors, both rounded to float16; with a margin."""
_SAME = ("encoder", "passages")  # settings that must agree


@dataclass(frozen=True, slots=True)
class Copied:
    """What a copy did, and what the comparison of both sides found.

    Attributes:
        documents, passages: in the target, as in the source.
        written: documents written; the others were there already.
        removed: documents removed, which the source did not have.
        checksum: SHA-256 of all documents and passages but the vectors, equal on both sides.
        farthest: the largest distance between the two copies of a vector.
    """

    documents: int
    passages: int
    written: int
    removed: int
    checksum: str
    farthest: float

    def as_dict(self) -> dict[str, Any]:
        """All of it, for JSON."""
        return asdict(self)


Progress = Callable[[str, int, int | None], None]
"""Progress callback: the step, the documents just done, and those in all."""


def copy(
    source: str | Path,
    target: str | Path,
    progress: Progress | None = None,
    *,
    prune: bool = False,
) -> Copied:
    """Copy all documents, with their vectors, to the path or URL `target`, created if needed.

    `prune`: delete the documents of the target that the source does not have. Nothing is encoded. A
    target on a server takes over the rotation and the shortlist of the source; a folder measures
    its own.

    Raises:
        CollectionError: without `prune`, the target holds documents that the source does not have;
            it was made with other settings, or differs after the copy.
        EncoderMismatch: the target was built by another encoder.
    """
    with closing(open_backend(source)) as origin:
        if not exists(target):
            _create(origin, target).close()
        with closing(open_backend(target)) as copied:
            _check_settings(origin, copied)
            with origin.reading() as snapshot:
                total = snapshot.store.count()

            def report(step: str, done: int) -> None:
                if progress is not None:
                    progress(step, done, total)

            written = 0
            for keys in _keys(origin):
                written += _copy_batch(origin, copied, keys)
                report("Copying", len(keys))
            extra = _extra(origin, copied)
            if extra and not prune:
                raise CollectionError(
                    f"{copied.path} holds {len(extra)} documents that {origin.path} does not have, "
                    f"such as {extra[0]!r:.80}; delete them with --prune (prune=True), or copy to "
                    "a new collection"
                )
            removed = copied.delete(extra, None) if extra else 0
            copied.wait_ready()
            return _compare(origin, copied, written, removed, report)


def _create(origin: Backend, target: str | Path) -> Backend:
    names = ("encoder", "index", "passages", "tokenizer_auto", "weight", CHOSEN)
    settings = {name: origin.settings[name] for name in names if name in origin.settings}
    analyzer = Analyzer.of(origin.settings["tokenizer"])
    words = analyzer.tokenizer is not Tokenizer.NONE
    settings["mode"] = Mode.HYBRID if words else Mode.VECTOR
    if origin.words is not None and "mode" in origin.settings:
        settings["mode"] = origin.settings["mode"]
    return create_backend(target, settings, analyzer, carried=origin.carried())


def _check_settings(origin: Backend, copied: Backend) -> None:
    for name in _SAME:
        ours, theirs = (_comparable(name, each.settings) for each in (origin, copied))
        if ours != theirs:
            error = EncoderMismatch if name == "encoder" else CollectionError
            raise error(
                f"{copied.path} was made with other settings than {origin.path} ({name}: {theirs} "
                f"instead of {ours}); copy to a new collection"
            )


def _comparable(name: str, settings: Mapping[str, Any]) -> Any:
    value = settings.get(name)
    return (value["fingerprint"], value["dim"]) if name == "encoder" and value else value


def _keys(origin: Backend) -> Iterator[list[str]]:
    """The keys of all documents, in the order in which they were first added, in batches."""
    last = -1
    while True:
        with origin.reading() as snapshot:
            ids = snapshot.store.ids_after(last, None, _BATCH)
            keys = snapshot.store.keys_of(ids)
        if not keys:
            return
        last = int(ids[-1])
        yield keys


def _copy_batch(origin: Backend, copied: Backend, keys: list[str]) -> int:
    """Write the documents that differ, or that the target lacks; returns how many."""
    ours, theirs = origin.known(keys), copied.known(keys)
    differing = [
        key
        for key in keys
        if key in ours and (key not in theirs or ours[key][1:] != theirs[key][1:])  # all but the id
    ]
    if differing:
        copied.upsert(origin.entries(differing))
    return len(differing)


def _extra(origin: Backend, copied: Backend) -> list[str]:
    """The keys of the target's documents that the source does not have."""
    with origin.reading() as ours, copied.reading() as theirs:
        if ours.store.count() == theirs.store.count():  # all of the source's were copied
            return []
    extra: list[str] = []
    for keys in _keys(copied):
        known = origin.known(keys)
        extra += [key for key in keys if key not in known]
    return extra


def _compare(
    origin: Backend,
    copied: Backend,
    written: int,
    removed: int,
    report: Callable[[str, int], None],
) -> Copied:
    """Read both sides again. Raises CollectionError for the first difference."""
    digest, documents, passages, farthest = hashlib.sha256(), 0, 0, 0.0
    for keys in _keys(origin):
        ours = origin.entries(keys)
        theirs = {entry.document.key: entry for entry in copied.entries(keys)}
        for entry in ours:
            farthest = max(farthest, _distance(entry, theirs.get(entry.document.key), copied))
            digest.update(entry.checksum)
            documents, passages = documents + 1, passages + len(entry.spans)
        report("Comparing", len(ours))
    with copied.reading() as snapshot:
        counts = snapshot.store.counts()
    if counts != (documents, passages):
        raise _differs(
            copied, f"it holds {counts} documents and passages, not {documents, passages}"
        )
    return Copied(documents, passages, written, removed, digest.hexdigest(), farthest)


def _distance(entry: Entry, other: Entry | None, copied: Backend) -> float:
    """The largest distance between two copies of a vector. Raises CollectionError."""
    key = entry.document.key
    if other is None or entry.checksum != other.checksum:
        raise _differs(
            copied, f"the document {key!r:.80} is {'missing' if other is None else 'other'}"
        )
    if not entry.spans:
        return 0.0
    farthest = float(np.linalg.norm(_units(entry) - _units(other), axis=1).max())
    if farthest > NEAR:
        raise _differs(copied, f"a vector of the document {key!r:.80} is {farthest:.4f} off")
    return farthest


def _units(entry: Entry) -> Any:
    return entry.vectors / np.linalg.norm(entry.vectors, axis=1, keepdims=True)


def _differs(copied: Backend, how: str) -> CollectionError:
    return CollectionError(
        f"{copied.path} differs from its source after the copy: {how}; if the source was changed "
        "meanwhile, run the same command again, which copies the rest"
    )
