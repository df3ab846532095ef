"""Peers: what they answer, and one clear sentence for each way in which one can fail."""

import os
import subprocess
import sys
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np
import pytest
from conftest import REPOSITORY
from peer_runner import Peer, PeerFailed, PeerMissing, Timeouts, peer_files, requires

PEERS = REPOSITORY / "benchmarks" / "peers"
ROWS, QUERIES, DIM, K = 300, 12, 32, 10

EXACT = '''"""numpy: every row, in float32."""
import numpy as np

REQUIRES = ("numpy",)
SETTINGS = {"index": "exact", "numbers": "float32"}
POINTS = ({"sign": 1}, {"sign": -1})

def build(vectors, folder):
    (folder / "kept.bin").write_bytes(bytes(1000))
    print("this is no answer")
    return vectors.copy()

def search(index, queries, k, sign):
    return np.argsort(-sign * (queries @ index.T), axis=1, kind="stable")[:, :k]
'''
BUILD, SEARCH = "def build(vectors, folder):", "def search(index, queries, k, sign):"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of vectors.npy and queries.npy, unit rows."""
    folder = tmp_path_factory.mktemp("data")
    rng = np.random.default_rng(0)
    for name, count in (("vectors", ROWS), ("queries", QUERIES)):
        rows = rng.standard_normal((count, DIM)).astype(np.float32)
        np.save(folder / f"{name}.npy", rows / np.linalg.norm(rows, axis=1, keepdims=True))
    return folder


def exact(data: Path, sign: int = 1) -> np.ndarray:
    scores = np.load(data / "queries.npy") @ np.load(data / "vectors.npy").T
    return np.argsort(-sign * scores, axis=1, kind="stable")[:, :K]


def start(file: Path, data: Path, folder: Path, patience: Timeouts | None = None) -> Peer:
    return Peer.start(file, data / "vectors.npy", data / "queries.npy", K, folder, patience)


def written(folder: Path, text: str, name: str = "numpy.py") -> Path:
    """The file is called like what it imports, as the real ones are."""
    file = folder / name
    file.write_text(text)
    return file


def test_a_peer_tells_of_itself_and_gives_its_rows(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # where "import numpy" must not find the peer
    with start(written(tmp_path, EXACT), data, tmp_path / "index") as peer:
        assert peer.name == "numpy"
        assert peer.settings == {
            "index": "exact",
            "numbers": "float32",
            "versions": {"numpy": version("numpy")},
        }
        assert peer.points == ({"sign": 1}, {"sign": -1})
        assert peer.build_s > 0 and peer.disk_bytes == 1000
        for number, point in enumerate(peer.points):
            rows, seconds = peer.round(number, QUERIES)
            np.testing.assert_array_equal(rows, exact(data, point["sign"]))
            assert rows.dtype == np.int64
            assert seconds.shape == (QUERIES,) and (seconds > 0).all()
        rows, took = peer.batch(1, 5)
        np.testing.assert_array_equal(rows, exact(data, -1)[:5])
        assert took > 0
        rows, seconds = peer.round(0, 3)
        np.testing.assert_array_equal(rows, exact(data)[:3])
        assert seconds.shape == (3,)
    assert (tmp_path / "index" / "kept.bin").exists()
    peer.close()  # a second time


@pytest.mark.parametrize(
    ("kept", "least", "most"), [("vectors", 56, 112), ("vectors[:1].copy()", 0, 40)]
)
def test_memory_is_of_the_vectors_that_a_peer_keeps(
    data: Path, tmp_path: Path, kept: str, least: int, most: int
) -> None:
    large = tmp_path / "large.npy"
    np.save(large, np.ones((1 << 19, DIM), np.float32))  # 64 MiB
    file = written(tmp_path, EXACT.replace("vectors.copy()", kept))
    with Peer.start(file, large, data / "queries.npy", K, tmp_path / "index") as peer:
        assert peer.rss_bytes is None or least <= peer.rss_bytes / 2**20 < most


def test_a_search_alone_is_of_one_query_after_a_warm_up(data: Path, tmp_path: Path) -> None:
    log = tmp_path / "asked"
    counts = EXACT.replace(SEARCH, f"{SEARCH}\n    print(len(queries), file=open('{log}', 'a'))")
    with start(written(tmp_path, counts), data, tmp_path / "index") as peer:
        peer.round(0, QUERIES)
        assert log.read_text().split() == ["1"] * (10 + QUERIES)
        log.unlink()
        peer.batch(1, QUERIES)
        assert log.read_text().split() == ["10", str(QUERIES)]


def test_the_example_in_the_readme_is_a_peer(data: Path, tmp_path: Path) -> None:
    example = (PEERS / "README.md").read_text().split("```python\n")[1].split("```")[0]
    with start(written(tmp_path, example), data, tmp_path / "index") as peer:
        np.testing.assert_array_equal(peer.round(0, QUERIES)[0], exact(data))


def test_lists_may_be_short(data: Path, tmp_path: Path) -> None:
    lists = EXACT.replace("[:, :k]\n", "[:, :4].tolist()\n")
    with start(written(tmp_path, lists), data, tmp_path / "index") as peer:
        rows, _ = peer.round(0, QUERIES)
    np.testing.assert_array_equal(rows[:, :4], exact(data)[:, :4])
    assert (rows[:, 4:] == -1).all()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("def search", "def find", r"has no function search\(index, queries, k, \*\*point\)"),
        ("def build", "def make", r"has no function build\(vectors, folder\)"),
        ('"numbers": "float32"', "", r"has no SETTINGS = \{.*\"numbers\""),
        ('({"sign": 1}, {"sign": -1})', "()", "has no POINTS"),
        ('{"sign": -1}', "32", "has POINTS that are not mappings"),
        ('"exact"', "{1, 2}", "that cannot be written as JSON: TypeError"),
        ('("numpy",)', '"numpy"', r"REQUIRES must be names .*, got 'numpy'"),
        ('("numpy",)', "names()", r"REQUIRES must be names .*, got names\(\)"),
        ("import numpy", "import no_such_module", "cannot be loaded: ModuleNotFoundError"),
        ("def build(", "def build", "is not Python"),
        ("return vectors.copy()", "return vectors[9999]", "failed to build: IndexError"),
        ("return vectors.copy()", "import os; os._exit(3)", "ended with status 3 while building"),
    ],
)  # fmt: skip
def test_what_is_wrong_from_the_start(
    data: Path, tmp_path: Path, old: str, new: str, message: str
) -> None:
    assert old in EXACT
    file = written(tmp_path, EXACT.replace(old, new))
    with pytest.raises(PeerFailed, match=message) as caught:
        start(file, data, tmp_path / "index")
    assert str(caught.value).startswith(str(file))


@pytest.mark.parametrize(
    ("result", "message"),
    [
        ("found[:, :-1]", r"returned rows of shape \(1, 9\) for 1 queries.* expected \(1, 10\)"),
        ("found[0]", r"returned rows of shape \(10,\)"),
        ("found * np.nan", "returned rows of type float64, expected integers"),
        ("found + 300", r"returned row \d+, expected 0 to 299, or -1"),
        ("found - 302", r"returned row -\d+, expected 0 to 299, or -1"),
        ("np.full(found.shape, 2**64 - 1, np.uint64)", "returned row 18446744073709551615"),
        ("None", r"returned rows of shape \(\)"),
        ("[[1], 2]", "neither an array nor a list of lists: TypeError"),
        ("1 / 0", r"failed to search at \{'sign': 1\}: ZeroDivisionError"),
        (
            "print('farewell', flush=True) or __import__('os')._exit(4)",
            r"ended with status 4 while searching at \{'sign': 1\}; its last message: farewell$",
        ),
        (
            "__import__('os').kill(__import__('os').getpid(), 9)",
            r"was ended by SIGKILL \(out of memory\?\) while searching",
        ),
    ],
)
def test_what_is_wrong_with_answers(data: Path, tmp_path: Path, result: str, message: str) -> None:
    wrong = EXACT.replace("    return np.argsort", "    found = np.argsort")
    file = written(tmp_path, wrong + f"    return {result}\n")
    with start(file, data, tmp_path / "index") as peer:
        for expected in (message, None):  # the second time it may be dead already
            with pytest.raises(PeerFailed, match=expected) as caught:
                peer.round(0, QUERIES)
            assert str(caught.value).startswith(str(file))


@pytest.mark.parametrize(
    ("dies", "quoted"),
    [
        ("raise SystemExit('no file /srv/scratch/deep/a.bin of https://x.org/y/z')", "status 1"),
        ("open('/srv/scratch/deep/a.bin')", "failed to build: FileNotFoundError"),
    ],
)
def test_what_reports_quote_names_no_folders(
    data: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, dies: str, quoted: str
) -> None:
    """One line, without the folders of this machine; the log has all that a dead peer said."""
    build = f"print('first words', flush=True); {dies}"
    file = written(tmp_path, EXACT.replace("return vectors.copy()", build))
    with pytest.raises(PeerFailed, match=quoted) as caught:
        start(file, data, tmp_path / "index")
    message = str(caught.value).removeprefix(str(file))
    assert "a.bin" in message and "/srv" not in message and "first words" not in message
    if "Exit" in dies:
        assert message.endswith("its last message: no file a.bin of https://x.org/y/z")
        assert "first words\nno file /srv/scratch/deep/a.bin" in caplog.text


def test_after_a_refused_answer_the_others_are_measured(data: Path, tmp_path: Path) -> None:
    wrong = EXACT.replace("[:, :k]", "[:, : k if sign > 0 else 1]")
    with start(written(tmp_path, wrong), data, tmp_path / "index") as peer:
        with pytest.raises(PeerFailed, match=r"shape \(12, 1\)"):
            peer.batch(1, QUERIES)
        np.testing.assert_array_equal(peer.round(0, QUERIES)[0], exact(data))


@pytest.mark.parametrize("doing", ["building", "searching"])
def test_a_peer_that_hangs_is_ended(data: Path, tmp_path: Path, doing: str) -> None:
    at = BUILD if doing == "building" else SEARCH
    hangs = EXACT.replace(at, f"{at}\n    import time; time.sleep(600)")
    file, patience = written(tmp_path, hangs), Timeouts(0.5 if doing == "building" else 60, 0.5)
    begin = time.monotonic()
    with pytest.raises(PeerFailed, match=f"was still {doing}.* after 0.5 seconds, and was ended"):
        with start(file, data, tmp_path / "index", patience) as peer:
            peer.round(0, QUERIES)
    assert time.monotonic() - begin < 60  # it heard, and was not waited for


def test_what_is_not_installed_is_missing(data: Path, tmp_path: Path) -> None:
    text = EXACT.replace('("numpy",)', '("numpy", "no-such-thing")')
    file = written(tmp_path, text + "import no_such_thing\n", "other.py")
    with pytest.raises(PeerMissing, match=r"other\.py needs no-such-thing, not installed: pip"):
        start(file, data, tmp_path / "index")


def test_a_peer_ends_with_whoever_asks(data: Path, tmp_path: Path) -> None:
    """Also one that builds, and in an orderly way: what it has registered is run."""
    slow = "import atexit, os, time\n" + EXACT.replace(
        "    return vectors.copy()",
        "    atexit.register((folder / 'orderly').touch)\n"
        "    (folder / 'pid').write_text(str(os.getpid()))\n    time.sleep(600)",
    )
    index = tmp_path / "index"
    arguments = [written(tmp_path, slow), data / "vectors.npy", data / "queries.npy", K, index]
    asks = (
        "import signal, sys; from pathlib import Path\n"
        "from peer_runner import Peer\n"
        "signal.signal(signal.SIGINT, signal.SIG_IGN)\n"  # as a shell does in the background
        "one, two, three, k, five = sys.argv[1:]\n"
        "Peer.start(Path(one), Path(two), Path(three), int(k), Path(five))"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", asks, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": f"{REPOSITORY}:{REPOSITORY / 'benchmarks'}"},
    )
    try:
        late = time.monotonic() + 60
        while not (index / "pid").exists() or not (index / "pid").read_text():
            assert parent.poll() is None
            assert time.monotonic() < late, "the peer has not begun to build"
            time.sleep(0.01)
    finally:
        parent.kill()
        parent.wait()
    for _ in range(1000):
        if not alive(int((index / "pid").read_text())):
            break
        time.sleep(0.02)
    else:
        pytest.fail("the peer is still there")
    assert (index / "orderly").exists()


def alive(process: int) -> bool:
    """Not gone, and not a zombie that nobody has asked about."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    stat = Path(f"/proc/{process}/stat")
    return not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] != "Z"


def test_peers_of_a_folder(tmp_path: Path) -> None:
    with pytest.raises(PeerFailed, match=f"no peers in {tmp_path}"):
        peer_files(tmp_path)
    for name in ("b.py", "a.py", "_shared.py", "README.md"):
        (tmp_path / name).touch()
    assert [file.name for file in peer_files(tmp_path)] == ["a.py", "b.py"]
    with pytest.raises(PeerFailed, match="cannot be read: No such file"):
        requires(tmp_path / "c.py")


@pytest.mark.parametrize(
    "file",
    [  # sentence-transformers takes seconds to import, in a process of its own
        pytest.param(file, marks=[pytest.mark.long] * (file.stem == "sentence_transformers"))
        for file in peer_files(PEERS)
    ],
    ids=lambda file: file.stem,
)
def test_the_peers_that_come_with_us(file: Path, data: Path, tmp_path: Path) -> None:
    """300 rows, of which each finds most of the nearest ones, and exact ones all."""
    for name in requires(file):
        try:
            version(name)
        except PackageNotFoundError:
            pytest.skip(f"{name} is not installed")
    with start(file, data, tmp_path / "index") as peer:
        assert len(peer.settings["versions"]) > 0
        for number in range(len(peer.points)):
            rows, _ = peer.round(number, QUERIES)
            if peer.settings["index"] == "exact":
                np.testing.assert_array_equal(rows, exact(data))
            assert peer.batch(number, QUERIES)[1] > 0
        shared = [len(set(a) & set(b)) / K for a, b in zip(rows, exact(data), strict=True)]
        assert np.mean(shared) > 0.95  # the last point is the most thorough
