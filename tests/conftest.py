"""Shared fixtures, and encoders a human can compute."""

import errno
import gc
import os
import resource
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

# One thread a process, set before the libraries that read it are loaded. The tests' matrices are
# small: threads would spend their time waiting for each other, and two workers fill two cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import settings

from searchengine.encoders.protocol import TextEncoder

if TYPE_CHECKING:
    from starlette.testclient import TestClient

    from searchengine import SearchEngine
    from searchengine.backends.contract import Known
    from searchengine.indexer.threads import ThreadBudget

# Collecting imports and makes millions of objects that stay: no search for garbage among them.
gc.disable()

# `make test-long` chooses the second, by pytest's --hypothesis-profile: it draws new examples each
# time, and the first one the same, so that a change fails by what it changed.
settings.register_profile("fast", max_examples=16, deadline=None, derandomize=True)
settings.register_profile("long", max_examples=500, deadline=None)
settings.load_profile("fast")

REPOSITORY = Path(__file__).resolve().parents[1]


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session", autouse=True)
def quick_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Run networks by torch, whose vectors are exact; tests of the native runtime name it.

    All workers of a run share a cache, so that the packaged encoder is rounded once.
    """
    run = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        run = run.parent
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SEARCHENGINE_RUNTIME", "torch")
        patch.setenv("XDG_CACHE_HOME", str(run / "cache"))
        yield


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder, for tests that change its files."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "searchengine"


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny model with random weights, 32 wide, that no test changes."""
    from tiny_model import write_sentence_transformer

    return write_sentence_transformer(tmp_path_factory.mktemp("base") / "model")


@pytest.fixture
def few_timings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tunings of this process time few queries, where any config may be chosen."""
    monkeypatch.setattr("searchengine.indexer.tuning.tune._TIMED", 3)


@pytest.fixture
def thread_budget() -> Iterator["ThreadBudget"]:
    """The threads of this process; the limit that a test sets ends with it."""
    from searchengine.indexer.threads import threads

    before = threads.limit
    yield threads
    threads.limit = before


class WordLengths(TextEncoder):
    """An encoder a human can compute: entry i counts the words of i + 1 letters, scaled to 1.

    "a bee" is [1, 0, 1, 0, …] / √2; words beyond the width count as the longest.
    """

    dim, fingerprint, source = 16, "word-lengths", None

    def __init__(self, dim: int = 16, fingerprint: str = "word-lengths") -> None:
        self.dim = dim
        self.fingerprint = fingerprint
        self.calls: list[list[str]] = []

    def encode(self, texts: Sequence[str], *, role: Any = None, **_: Any) -> Any:
        """Float32 (n, dim) unit rows."""
        self.calls.append(list(texts))
        vectors = np.zeros((len(texts), self.dim), np.float32)
        for row, text in enumerate(texts):
            for word in text.split():
                vectors[row, self.entry(word)] += 1
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)

    def entry(self, word: str) -> int:
        """The entry that counts a word."""
        return min(len(word), self.dim) - 1


class Remainders(WordLengths):
    """Another encoder of the same width: entry i counts the words of length i modulo 5.

    "a bee" is [0, 1, 0, 1, 0, …] / √2.
    """

    def __init__(self, dim: int = 16, fingerprint: str = "remainders") -> None:
        super().__init__(dim, fingerprint)

    def entry(self, word: str) -> int:
        """The entry that counts a word."""
        return len(word) % 5


class Numbers:
    """A text is "x y z": its vector is those numbers, not scaled. `asked`: texts encoded so far."""

    def __init__(self, dims: tuple[int, ...] = (3, 2)) -> None:
        self.matryoshka_dims = dims
        self.asked: list[str] = []

    def encode(
        self,
        texts: Sequence[str],
        *,
        role: str | None = None,
        on_batch: Callable[[int], None] | None = None,
    ) -> npt.NDArray[np.float32]:
        """Float32 (n, numbers of a text)."""
        self.asked += texts
        if on_batch is not None:
            on_batch(len(texts))
        return np.array([[float(v) for v in t.split()] for t in texts], dtype=np.float32)


def during(
    monkeypatch: pytest.MonkeyPatch,
    owner: object,
    step: str,
    act: Callable[[], object],
    when: int = 1,
) -> Callable[[], int]:
    """Call `act` before the n-th call from now on of a method, or of a function of a module.

    Returns a count of the calls.
    """
    original = getattr(owner, step)
    calls = 0

    def stepped(*arguments: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == when:
            act()
        return original(*arguments, **options)

    monkeypatch.setattr(owner, step, stepped)
    return lambda: calls


def interrupt() -> None:
    """Stop, as Ctrl-C stops."""
    raise KeyboardInterrupt


def fill_disk() -> None:
    """Fail, as a full disk makes a call fail."""
    raise OSError(errno.ENOSPC, "No space left on device")


def disk_full_at(monkeypatch: pytest.MonkeyPatch, call: int) -> Callable[[], int]:
    """The n-th sync from now on fails; returns a count of them."""
    return during(monkeypatch, os, "fsync", fill_disk, call)


@contextmanager
def limited(kind: int, size: int) -> Iterator[None]:
    """The system refuses this process more of a resource, such as RLIMIT_NOFILE."""
    before, most = resource.getrlimit(kind)
    resource.setrlimit(kind, (size, most))
    try:
        yield
    finally:
        resource.setrlimit(kind, (before, most))


def full_disk(room: int = 0) -> AbstractContextManager[None]:
    """No file grows beyond `room` bytes, as if the disk were full."""
    return limited(resource.RLIMIT_FSIZE, room)


@pytest.fixture
def without_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The runtime that users without a GPU get; other tests run networks by torch."""
    from searchengine.trainer.runtimes import runtime_config

    monkeypatch.delenv("SEARCHENGINE_RUNTIME")
    monkeypatch.setattr(runtime_config, "has_gpu", lambda: False)


@pytest.fixture
def engine(tmp_path: Path) -> Iterator["SearchEngine"]:
    """A collection of documents cut into passages; many test files define another `engine`."""
    from cut_documents import collection

    with collection(tmp_path) as engine:
        yield engine


@pytest.fixture
def words(tmp_path: Path) -> Path:
    """The folder of a collection for `serve`."""
    from server_app import words_collection

    return words_collection(tmp_path / "words.index")


@pytest.fixture
def serve(words: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., "TestClient"]]:
    """Starts a server in this process, with the settings that it is called with."""
    from server_app import serving

    with serving(words, monkeypatch) as start:
        yield start


@pytest.fixture
def quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers of this process look for commits, and for an encoder that was away, at once."""
    from searchengine.server import served

    monkeypatch.setattr(served, "REFRESH", 0.02)
    monkeypatch.setattr(served, "AGAIN", 0.05)


@pytest.fixture
def client(serve: Callable[..., "TestClient"]) -> "TestClient":
    """A client of a server in this process, with a token that writes."""
    return serve()


def stored_states(engine: "SearchEngine", keys: Sequence[str]) -> "dict[str, Known]":
    """Key → stored state of the documents in the newest commit."""
    with engine.collection.reading(newest=True) as snapshot:
        return snapshot.known(keys)


@contextmanager
def commits_of(count: int, ahead: int = 1) -> Iterator[None]:
    """`add` commits after `count` documents, and encodes `ahead` blocks in advance."""
    from searchengine.ingest import ingestion, pipeline

    size = count, 1 << 40
    with (
        mock.patch.multiple(pipeline, FIRST_BLOCK=size, LARGEST_BLOCK=size, AHEAD=ahead),
        mock.patch.multiple(ingestion, MOST=size, MOST_SUPPLIED=size),
    ):
        yield
