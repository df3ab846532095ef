"""Compiled graphs on disk: found, written and removed. Who finds one needs no torch."""

import atexit
import hashlib
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from filelock import FileLock

from trainer.errors import ModelError
from trainer.model.checksums import Checksums, secret, signature
from trainer.model.durable import sync_files, write_json
from trainer.model.source import Source
from trainer.runtimes.config import Precision
from trainer.runtimes.graph import (
    GRAPH,
    RECORD,
    TOKENIZER,
    Graph,
    graph_files,
    kernels_folder,
    read_graph,
)
from trainer.runtimes.measure import measured
from trainer.runtimes.openvino_runtime import import_openvino
from trainer.runtimes.runtime import Vectors

LOCK = "lock"
# The same of a packed graph in float32: it computes the same, or the network is not one to pack.
SAME = 0.99999
# A graph, what openvino holds of it, None where it is refused, and the vectors of the sample texts
# that it should give.
Made = tuple[Graph, Any, Callable[[], Vectors]]
Make = Callable[[], Iterator[Made]]


def find(source: Source, int8: bool = False) -> Graph | None:
    """The graph that this user compiled from this model, if there is one, undamaged."""
    records = [path for cache in source.caches() for path in cache.glob(f"*/{RECORD}")]
    key = secret() if records else None
    if key is None:
        return None
    with Checksums(source.user_cache) as checksums:
        for path in records:
            graph = read_graph(path, key)
            if graph is None or not graph.is_of(source, int8, checksums):
                continue
            if graph.is_whole(checksums):
                return graph
    return None


def files(source: Source) -> dict[str, str]:
    """See Source.files."""
    with Checksums(source.user_cache) as checksums:
        return source.files(checksums)


def kept(source: Source, wanted: Graph, make: Make) -> Graph:
    """Made and written to the first cache that takes it, or for as long as the process runs.

    make: gives what could be taken, the best first.
    One process at a time makes it; who waited takes what is there then. Raises ModelError.
    """
    key = secret(create=True)
    for cache in source.caches():
        if key is None:  # it would not be found again
            break
        try:
            cache.mkdir(parents=True, exist_ok=True)
            with FileLock(cache / LOCK):
                there = find(source, wanted.int8)
                if there is not None and there.fingerprints == wanted.fingerprints:
                    return there
                _clear(cache, wanted.files)
                with tempfile.TemporaryDirectory(dir=cache, prefix="new-") as scratch:
                    new = _written(Path(scratch) / "graph", make(), key)
                    final = _named(cache, new, key)
                    if final.exists():
                        final.rename(Path(scratch) / "old")
                    new.folder.rename(final)
                return replace(new, folder=final)
        except OSError:  # read-only, or full
            continue
    try:
        temporary = tempfile.mkdtemp(prefix="searchengine-")
        atexit.register(shutil.rmtree, temporary, ignore_errors=True)
        return _written(Path(temporary) / "graph", make(), None)
    except OSError as error:
        raise ModelError(f"there is no room for the graph that openvino runs ({error})") from error


def _written(folder: Path, choices: Iterator[Made], key: bytes | None) -> Graph:
    """Files of the first graph that does, synced, with what was measured of it. Raises OSError.

    key: signs the record, by which the graph is found again.
    """
    for choice, graph, exact in choices:
        _empty(folder)
        made = replace(choice, folder=folder)
        if graph is None:
            continue
        try:
            import_openvino().save_model(graph, str(folder / GRAPH), compress_to_fp16=False)
        except RuntimeError as error:
            raise OSError(str(error)) from error
        made = measured(made, exact())
        if not made.refused and made.cosines.get(Precision.FP32, 1.0) >= SAME:
            break
    if made.refused:
        _empty(folder)
    tokens = made.description.tokens
    (folder / TOKENIZER).write_text(tokens.state, encoding="utf-8")
    checksums = Checksums(None)
    made = replace(made, sha256={path.name: checksums.of(path) for path in graph_files(folder)})
    record = asdict(made) | {"description": made.description.as_dict()}
    del record["folder"], record["description"]["tokens"]["state"]
    if key is not None:
        record["signature"] = signature(key, record)
    write_json(folder / RECORD, record)
    sync_files(folder)
    return made


def _empty(folder: Path) -> None:
    """Make a folder, anew if it is there."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()


def _named(cache: Path, graph: Graph, key: bytes) -> Path:
    """Users of one model folder each have graphs of their own there."""
    user = hashlib.sha256(key).hexdigest()[:8]
    layers = "" if graph.layers is None else f"-{graph.layers}-layers"
    int8 = "-int8" if graph.int8 else ""
    return cache / f"{graph.fingerprints[0][:16]}{layers}{int8}-{graph.openvino}-{user}"


def _clear(cache: Path, files: Mapping[str, str]) -> None:
    """Remove graphs of what the model was before, and what was left half made. Under the lock."""
    for path in cache.iterdir():
        graph = read_graph(path / RECORD)
        if path.is_dir() and (graph is None or graph.files != files):
            shutil.rmtree(path, ignore_errors=True)
            if (kernels := kernels_folder(path)) is not None:
                shutil.rmtree(kernels, ignore_errors=True)
