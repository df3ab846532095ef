"""Compiled graphs on disk: found, written and removed. A process that finds one needs no torch."""

import atexit
import hashlib
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path

from filelock import FileLock

from trainer.errors import ModelError
from trainer.model.checksums import Checksums, signature, signing_key
from trainer.model.durable import sync_files, write_json
from trainer.model.source import Source
from trainer.runtimes.graph import (
    RECORD,
    TOKENIZER,
    Graph,
    graph_files,
    kernels_folder,
    read_graph,
)

LOCK = "lock"


def find(source: Source, int8: bool = False) -> Graph | None:
    """The undamaged graph that this user compiled from this model, or None."""
    records = [path for cache in source.caches() for path in cache.glob(f"*/{RECORD}")]
    key = signing_key() if records else None
    if key is None:
        return None
    with Checksums(source.user_cache) as checksums:
        for path in records:
            graph = read_graph(path, key)
            if graph is None or not graph.matches(source, int8, checksums):
                continue
            if graph.is_undamaged(checksums):
                return graph
    return None


def keep(source: Source, wanted: Graph, build: Callable[[Path], Graph]) -> Graph:
    """A graph built in the first cache that can be written to, or else for this process alone.

    wanted: what is known of it before it is built. build: writes the files of the graph to a folder
    that it makes, and gives its record; raises OSError where there is no room.
    One process at a time builds; the others wait, and take its graph. Raises ModelError.
    """
    key = signing_key(create=True)
    for cache in source.caches():
        if key is None:  # without a signature it would not be found again
            break
        try:
            cache.mkdir(parents=True, exist_ok=True)
            with FileLock(cache / LOCK):
                present = find(source, wanted.int8)
                if present is not None and present.fingerprint == wanted.fingerprint:
                    return present
                _remove_outdated(cache, wanted.files)
                with tempfile.TemporaryDirectory(dir=cache, prefix="new-") as scratch:
                    graph = _write_record(build(Path(scratch) / "graph"), key)
                    final = _final_folder(cache, graph, key)
                    if final.exists():
                        final.rename(Path(scratch) / "old")
                    graph.folder.rename(final)
                return replace(graph, folder=final)
        except OSError:  # read-only, or full
            continue
    try:
        temporary = tempfile.mkdtemp(prefix="searchengine-")
        atexit.register(shutil.rmtree, temporary, ignore_errors=True)
        return _write_record(build(Path(temporary) / "graph"), None)
    except OSError as error:
        raise ModelError(f"there is no room for the graph that openvino runs ({error})") from error


def _write_record(graph: Graph, key: bytes | None) -> Graph:
    """Write the tokenizer and the record beside a graph, and sync all files. Raises OSError.

    key: signs the record; without a signature the graph is not found again.
    """
    folder, tokens = graph.folder, graph.description.tokens
    (folder / TOKENIZER).write_text(tokens.state, encoding="utf-8")
    checksums = Checksums(None)
    graph = replace(graph, sha256={path.name: checksums.of(path) for path in graph_files(folder)})
    record = asdict(graph) | {"description": graph.description.as_dict()}
    del record["folder"], record["description"]["tokens"]["state"]
    if key is not None:
        record["signature"] = signature(key, record)
    write_json(folder / RECORD, record)
    sync_files(folder)
    return graph


def empty_folder(folder: Path) -> None:
    """Make a folder; one that exists is emptied."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()


def _final_folder(cache: Path, graph: Graph, key: bytes) -> Path:
    """The folder of a graph; users who share a cache have separate folders."""
    user = hashlib.sha256(key).hexdigest()[:8]
    layers = "" if graph.layers is None else f"-{graph.layers}-layers"
    int8 = "-int8" if graph.int8 else ""
    return cache / f"{graph.fingerprint[:16]}{layers}{int8}-{graph.openvino}-{user}"


def _remove_outdated(cache: Path, files: Mapping[str, str]) -> None:
    """Remove graphs of earlier versions of the model, and unfinished ones. Under the lock."""
    for path in cache.iterdir():
        graph = read_graph(path / RECORD)
        if path.is_dir() and (graph is None or graph.files != files):
            shutil.rmtree(path, ignore_errors=True)
            if (kernels := kernels_folder(path)) is not None:
                shutil.rmtree(kernels, ignore_errors=True)
