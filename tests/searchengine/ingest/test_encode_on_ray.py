"""searchengine encode --on ray, on clusters of several nodes on this machine, which lose nodes.

A node here is a process of Ray with its workers; removing it kills all of them at once.
"""

import json
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from searchengine import SearchEngine
from searchengine.corpus.files import read_corpus
from searchengine.errors import CorpusError, ServerError
from searchengine.ingest.bulk import EncodeOptions, EncodeSummary, encode_corpus
from searchengine.ingest.encoded_folder import EncodedFolder

ray = pytest.importorskip("ray", reason="the extra `ray` is not installed")
from ray.cluster_utils import Cluster  # noqa: E402

pytestmark = [
    pytest.mark.long,
    # Of Ray itself, in its own threads.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import it
FILES, DOCUMENTS = 24, 5
NODE = {"num_cpus": 1, "object_store_memory": 80 << 20}


class Slow:
    """An encoder whose vectors can be worked out by hand; it writes down who encodes what, when.

    `seconds` a call; `start` to be unpickled, in the process of a worker.
    """

    fingerprint, dim = "slow", 4

    def __init__(self, log: Path, seconds: float, start: float = 0) -> None:
        self.log, self.seconds, self.start = log, seconds, start

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        (self.log / f"start-{time.time_ns()}").write_text(ray.get_runtime_context().get_node_id())
        time.sleep(self.start)

    def encode(self, texts: Any, *, role: Any = None) -> Any:
        node = ray.get_runtime_context().get_node_id()
        (self.log / f"begin-{time.time_ns()}").write_text(node)
        time.sleep(self.seconds)
        (self.log / f"end-{time.time_ns()}").write_text(node)
        numbers = [float(text.split()[1]) for text in texts]
        return np.array([[1, n, n % 7, n % 3] for n in numbers], np.float32)


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """Files large enough to be parts of their own."""
    (tmp_path / "corpus").mkdir()
    for i in range(FILES):
        numbers = range(i * DOCUMENTS, (i + 1) * DOCUMENTS)
        lines = [json.dumps({"_id": f"k{n}", "text": f"number {n}"}) for n in numbers]
        padding = json.dumps({"_id": f"p{i}", "text": "", "padding": "x" * (1 << 20)})
        (tmp_path / "corpus" / f"{i}.jsonl").write_text("\n".join([*lines, padding]))
    return tmp_path / "corpus"


@pytest.fixture
def log(tmp_path: Path) -> Path:
    (tmp_path / "log").mkdir()
    return tmp_path / "log"


@pytest.fixture(scope="module")
def head() -> Iterator[Any]:
    """A cluster whose first node has no processors, and so runs no task."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        first = {**NODE, "num_cpus": 0, "include_dashboard": False}
        cluster = Cluster(initialize_head=True, head_node_args=first)
        try:
            patch.setenv("RAY_ADDRESS", cluster.address)
            yield cluster
        finally:
            ray.shutdown()
            cluster.shutdown()


@pytest.fixture
def cluster(head: Any) -> Any:
    """Three nodes with a processor each."""
    while len(head.worker_nodes) < 3:
        head.add_node(**NODE)
    return head


def encode(corpus: Path, out: Path, encoder: Slow, **options: Any) -> EncodeSummary:
    return encode_corpus(corpus, out, encoder, EncodeOptions(on="ray", **options))


def check(summary: EncodeSummary, corpus: Path, out: Path, path: Path) -> None:
    """Every row once, and the right one."""
    assert summary.documents == summary.passages == FILES * DOCUMENTS
    folder = EncodedFolder(out)
    digests = [block for entry in folder.entries.values() for block in folder.digests(entry)]
    assert len(np.unique(np.concatenate(digests), axis=0)) == FILES * DOCUMENTS
    assert len(folder.entries) == FILES
    for entry in folder.entries.values():
        folder.check(entry)
    folder.keep(folder.entries)  # as the next run does: removes what lost workers have written
    assert sum(1 for _ in folder.parts.iterdir()) == FILES
    encoder = Slow(out, 0)
    with SearchEngine.create(path, encoder) as engine:
        assert engine.add(read_corpus(corpus), out).added == FILES * DOCUMENTS
        engine.export(path.with_suffix(".export"))
    vectors = np.load(path.with_suffix(".export") / "vectors.npy")
    lines = (path.with_suffix(".export") / "documents.jsonl").read_text().splitlines()
    numbers = np.array([int(json.loads(line)["text"].split()[1]) for line in lines])
    expected = np.stack([np.ones_like(numbers), numbers, numbers % 7, numbers % 3], 1)
    assert vectors == pytest.approx(expected / np.linalg.norm(expected, axis=1)[:, None], abs=1e-3)


def nodes_in(log: Path, what: str) -> list[str]:
    return [file.read_text() for file in sorted(log.glob(f"{what}-*"))]


class Killer(threading.Thread):
    """Kills the first node that has written down `what` so often, at that moment."""

    def __init__(self, cluster: Any, log: Path, what: str, times: int) -> None:
        super().__init__(daemon=True)
        self.cluster, self.log, self.what, self.times = cluster, log, what, times
        self.killed = ""
        self.start()

    def run(self) -> None:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            seen = nodes_in(self.log, self.what)
            for node in self.cluster.worker_nodes:
                if seen.count(node.node_id) >= self.times:
                    self.cluster.remove_node(node, allow_graceful=False)
                    self.killed = node.node_id
                    return
            time.sleep(0.02)


def test_all_nodes_encode(cluster: Any, corpus: Path, log: Path, tmp_path: Path) -> None:
    done: list[int] = []
    summary = encode(corpus, tmp_path / "out", Slow(log, 0.1), progress=done.append)
    assert summary.encoded == FILES and sum(done) == FILES * DOCUMENTS
    assert set(nodes_in(log, "end")) == {node.node_id for node in cluster.worker_nodes}
    check(summary, corpus, tmp_path / "out", tmp_path / "c")
    before = len(nodes_in(log, "end"))
    assert encode(corpus, tmp_path / "out", Slow(log, 0.1)).encoded == 0
    assert len(nodes_in(log, "end")) == before


def test_a_node_is_killed_while_it_encodes(
    cluster: Any, corpus: Path, log: Path, tmp_path: Path
) -> None:
    killer = Killer(cluster, log, "begin", 3)
    summary = encode(corpus, tmp_path / "out", Slow(log, 0.5))
    killer.join()
    assert killer.killed and nodes_in(log, "begin").count(killer.killed) == 3
    # The third part was lost, though its worker may have lived long enough to write it.
    assert len(nodes_in(log, "begin")) > FILES
    check(summary, corpus, tmp_path / "out", tmp_path / "c")


def test_a_node_is_killed_while_its_worker_starts(
    cluster: Any, corpus: Path, log: Path, tmp_path: Path
) -> None:
    killer = Killer(cluster, log, "start", 1)
    summary = encode(corpus, tmp_path / "out", Slow(log, 0.2, start=0.5))
    killer.join()
    assert killer.killed and killer.killed not in nodes_in(log, "begin")
    check(summary, corpus, tmp_path / "out", tmp_path / "c")


def test_a_node_is_killed_while_it_joins(
    cluster: Any, corpus: Path, log: Path, tmp_path: Path
) -> None:
    """Ray has given it tasks, and the processes to run them are being started."""
    killed = []

    def join_and_die(_: int) -> None:
        if len(nodes_in(log, "end")) < 3 or killed:
            return
        node = cluster.add_node(**NODE)
        killed.append(node.node_id)
        time.sleep(0.3)
        cluster.remove_node(node, allow_graceful=False)

    summary = encode(corpus, tmp_path / "out", Slow(log, 0.5), progress=join_and_die)
    assert killed and killed[0] not in nodes_in(log, "end")
    check(summary, corpus, tmp_path / "out", tmp_path / "c")


def test_the_driver_is_interrupted(cluster: Any, corpus: Path, log: Path, tmp_path: Path) -> None:
    """A run that ends early leaves no task behind, and the next one continues."""

    def stop(_: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        encode(corpus, tmp_path / "out", Slow(log, 0.2), progress=stop)
    assert len(EncodedFolder(tmp_path / "out").entries) < FILES
    time.sleep(1)
    begun = len(nodes_in(log, "begin"))
    assert begun < FILES / 2
    summary = encode(corpus, tmp_path / "out", Slow(log, 0))
    check(summary, corpus, tmp_path / "out", tmp_path / "c")


def test_errors_are_those_of_a_local_run(
    cluster: Any, corpus: Path, log: Path, tmp_path: Path
) -> None:
    (tmp_path / "bad.jsonl").write_text("nonsense\n")
    with pytest.raises(CorpusError, match=r"bad.jsonl:1: not JSON") as raised:
        encode(tmp_path / "bad.jsonl", tmp_path / "out", Slow(log, 0))
    assert type(raised.value) is CorpusError and "\n" not in str(raised.value)
    with pytest.raises(ServerError, match=r"no machine of the Ray cluster has 64 CPU for a task"):
        encode(corpus, tmp_path / "out", Slow(log, 0), cpus=64)
