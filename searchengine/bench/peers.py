"""Other engines, measured beside ours: a small file each, run in a process of its own.

with Peer.start(Path("hnswlib.py"), vectors, queries, k=10, folder=scratch) as peer:
    for number, point in enumerate(peer.points):
        rows, seconds = peer.round(number, 100)

What a peer's file holds is said in benchmarks/peers/README.md. Thread pools and memory of engines
disturb each other in one process; whoever measures asks one peer at a time.
"""

import ast
import json
import logging
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from threading import Timer
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from indexer.arrays import RowNumbers, unit_rows
from indexer.building.build import Progress
from indexer.tuning.points import Seconds
from searchengine.bench.contestants import Contestant, live_numbers, unrotated
from searchengine.bench.peer_process import LEAVING
from searchengine.bench.results import Kind
from searchengine.bench.subject import Subject
from searchengine.errors import SearchEngineError

_LAST_WORDS = 500  # characters of a dead peer's last line that its error shows
_FOLDERS = re.compile(r"(?<![\w./:])/(?:[^\s/'\":,;()]+/)+")  # those of an absolute path

_log = logging.getLogger(__name__)


class PeerFailed(SearchEngineError):
    """A peer's file is wrong, or the engine failed, died or took too long."""


class PeerMissing(PeerFailed):
    """What a peer needs is not installed; the others can be measured."""


@dataclass(frozen=True, slots=True)
class Patience:
    """Seconds until a peer is ended: while it builds, and while it answers."""

    build: float = 1800.0
    answer: float = 600.0


def peer_files(folder: Path) -> list[Path]:
    """The peers of a folder by name: its .py files that do not begin with "_".

    Raises PeerFailed if there are none.
    """
    files = sorted(file for file in folder.glob("*.py") if not file.name.startswith("_"))
    if not files:
        raise PeerFailed(f"there are no peers in {folder}: expected a .py file for each")
    return files


def requires(file: Path) -> tuple[str, ...]:
    """The distributions that a peer names in REQUIRES, read without running it.

    For what its file imports may be what is missing. Raises PeerFailed.
    """
    try:
        tree = ast.parse(file.read_bytes(), str(file))
    except OSError as error:
        raise PeerFailed(f"{file} cannot be read: {error.strerror}") from error
    except (SyntaxError, ValueError) as error:
        raise PeerFailed(f"{file} is not Python: {error}") from error
    for node in tree.body:
        match node:
            case (
                ast.Assign(targets=[ast.Name(id="REQUIRES")], value=value)
                | ast.AnnAssign(target=ast.Name(id="REQUIRES"), value=ast.expr() as value)
            ):
                break
    else:
        return ()
    with suppress(ValueError):
        names = ast.literal_eval(value)
        if isinstance(names, list | tuple) and all(isinstance(name, str) for name in names):
            return tuple(names)
    raise PeerFailed(
        f'{file} has REQUIRES = {ast.unparse(value):.100}, expected names: ("hnswlib",)'
    )


def _versions(file: Path) -> dict[str, str]:
    """The installed versions of what a peer requires. Raises PeerMissing."""
    found, missing = {}, []
    for name in requires(file):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            missing.append(name)
    if missing:
        raise PeerMissing(
            f"{file.name} needs {', '.join(missing)}, not installed: pip install "
            f"{' '.join(missing)}"
        )
    return found


class Peer:
    """An engine whose index is built, in a process that ends with this one.

    Every method raises PeerFailed; after one that ended the process, so do all others.

    Attributes:
        name: that of its file.
        about: the first line of the file's docstring.
        settings: how it builds and searches, "index" and "numbers" among them, as its file says;
            and "versions" of what it requires.
        points: what its searches are given; a round is of one of them.
        build_s: seconds to build.
        rss_bytes: memory that it uses more after building than before it had the vectors, its
            servers' included; None where the system does not tell.
        disk_bytes: of the files in its folder.
    """

    name: str
    about: str
    settings: Mapping[str, Any]
    points: tuple[Mapping[str, Any], ...]
    build_s: float
    rss_bytes: int | None
    disk_bytes: int

    def __init__(self, file: Path, task: Mapping[str, Any], patience: Patience) -> None:
        """As `start`."""
        self._file, self._patience = file, patience
        self.name = file.stem
        versions = _versions(file)
        self._scratch = tempfile.TemporaryDirectory()
        self._messages = tempfile.TemporaryFile()
        # -P: in the peers' own folder, hnswlib.py would be taken for hnswlib.
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "searchengine.bench.peer_process", json.dumps(task)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._messages,
        )
        self._closed = False
        try:
            told = self._hear("building", patience.build)
        except BaseException:
            self.close()
            raise
        self.about = told["about"]
        self.settings = {**told["settings"], "versions": versions}
        self.points = tuple(told["points"])
        self.build_s, self.rss_bytes = told["build_s"], told["rss_bytes"]
        self.disk_bytes = told["disk_bytes"]

    @classmethod
    def start(
        cls,
        file: Path,
        vectors: Path,
        queries: Path,
        k: int,
        folder: Path,
        patience: Patience | None = None,
    ) -> "Peer":
        """A peer that has built its index.

        Args:
            file: the peer's.
            vectors: (n, D) float32 unit rows in a .npy file.
            queries: (q, D) float32 unit rows in a .npy file.
            k: neighbours sought, at most n.
            folder: where the engine may keep files; made where there is none, left behind.
            patience: how long it may take.

        Raises:
            PeerMissing: what it requires is not installed.
            PeerFailed: its file is wrong, or it failed to build.
        """
        folder.mkdir(parents=True, exist_ok=True)
        paths = {"file": file, "vectors": vectors, "queries": queries, "folder": folder}
        task = {name: str(path.absolute()) for name, path in paths.items()} | {"k": k}
        return cls(file, task, patience or Patience())

    def round(self, point_number: int, count: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """The first `count` queries on their own, in order, after some that are not timed.

        Returns row numbers (count, k), -1 where there is none, and seconds (count,).
        """
        rows, seconds = (Path(self._scratch.name) / f"{name}.npy" for name in ("rows", "seconds"))
        request = {"do": "round", "count": count, "rows": str(rows), "seconds": str(seconds)}
        self._ask(request, point_number)
        return np.load(rows), np.load(seconds)

    def batch(self, point_number: int, count: int) -> tuple[NDArray[np.int64], float]:
        """Row numbers (count, k), and seconds for the first `count` queries in one call."""
        rows = Path(self._scratch.name) / "rows.npy"
        request = {"do": "batch", "count": count, "rows": str(rows)}
        seconds = self._ask(request, point_number)["seconds"]
        return np.load(rows), float(seconds)

    def close(self) -> None:
        """End the process, and wait for it. A second call does nothing."""
        if self._closed:
            return
        self._closed = True
        self._end()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._messages.close()
        self._scratch.cleanup()

    def __enter__(self) -> "Peer":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ask(self, request: Mapping[str, Any], point_number: int) -> Mapping[str, Any]:
        point = self.points[point_number]
        doing = f"searching at {dict(point)}" if point else "searching"
        line = json.dumps({**request, "point": point_number}) + "\n"
        stdin = self._process.stdin
        assert stdin is not None
        with suppress(BrokenPipeError, ValueError):  # it has died: what follows says how
            stdin.write(line.encode())
            stdin.flush()
        return self._hear(doing, self._patience.answer)

    def _hear(self, doing: str, seconds: float) -> Mapping[str, Any]:
        """The answer, of a process that is ended if it does not come within so many seconds."""
        late = False

        def give_up() -> None:
            nonlocal late
            late = True
            self._end()

        assert self._process.stdout is not None
        timer = Timer(seconds, give_up)
        timer.start()
        try:
            line = self._process.stdout.readline()
        finally:
            timer.cancel()
            timer.join()
        if late:
            self._refuse(f"was still {doing} after {seconds:g} seconds, and was ended")
        if not line:
            self._refuse(f"{self._fate()} while {doing}{self._last_words()}")
        answer: Mapping[str, Any] = json.loads(line)
        if "refused" in answer:
            self._refuse(answer["refused"])
        return answer

    def _refuse(self, what: str) -> NoReturn:
        # Reports quote it: the folders of this machine are nothing to their readers.
        raise PeerFailed(f"{self._file} {_FOLDERS.sub('', what)}")

    def _fate(self) -> str:
        status = self._process.wait()
        if status >= 0:
            return f"ended with status {status}"
        name = signal.Signals(-status).name
        return f"was ended by {name}" + (" (out of memory?)" if name == "SIGKILL" else "")

    def _last_words(self) -> str:
        """The last line, which names the exception of a traceback; the log has them all."""
        self._messages.seek(0)
        said = self._messages.read().decode(errors="replace").strip()
        if not said:
            return ", without a word"
        _log.warning("%s said:\n%s", self._file, said)
        return f"; it said last: {said.splitlines()[-1][-_LAST_WORDS:]}"

    def _end(self) -> None:
        """The end of its requests is the end of a peer; one that does not hear is killed."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(LEAVING + 10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class Other:
    """One operating point of a peer."""

    def __init__(self, peer: Peer, number: int, rows: RowNumbers) -> None:
        """rows: what the subject calls the rows that the peer was given."""
        self._peer, self._number, self._rows = peer, number, rows
        point = peer.points[number]
        listed = ", ".join(f"{name} {value}" for name, value in point.items())
        self.about: dict[str, Any] = {
            "name": f"{peer.name}: {listed}" if listed else peer.name,
            "kind": Kind.PEER,
            "structure": str(peer.settings.get("index", peer.name)),
            "code": str(peer.settings.get("numbers", "")),
            "prefix": 0,
            "shortlist": 0,
            "effort": 0,
            "stages": (),
            "settings": {**peer.settings, **point},
            "multiply_adds": None,
            "bytes_read": None,
            "theoretical": None,
            "hot_bytes": peer.rss_bytes,
            "cold_bytes": peer.disk_bytes,
            "build_s": peer.build_s,
        }

    def one_by_one(self, count: int) -> tuple[RowNumbers, Seconds]:
        """As Contestant."""
        found, seconds = self._peer.round(self._number, count)
        return self._named(found), seconds

    def at_once(self, count: int) -> tuple[RowNumbers, float]:
        """As Contestant."""
        found, seconds = self._peer.batch(self._number, count)
        return self._named(found), seconds

    def _named(self, found: RowNumbers) -> RowNumbers:
        return np.where(found < 0, -1, self._rows[found])


def start(
    stack: ExitStack, folder: Path, subject: Subject, k: int, scratch: Path, heard: Progress
) -> tuple[list[Contestant], dict[str, str]]:
    """The peers in a folder, built, until the stack is left; and why others are not among them."""
    scratch = scratch / "peers"
    vectors, queries = scratch / "vectors.npy", scratch / "queries.npy"
    files = peer_files(folder)
    try:
        scratch.mkdir()
        np.save(queries, unit_rows(subject.queries))
        _write(vectors, subject)
    except OSError as error:
        return [], {"other engines": f"the rows cannot be written for them: {error.strerror}"}
    rows, missing = live_numbers(subject), {}
    started: list[Contestant] = []
    for file in files:
        place = scratch / file.stem
        heard(f"building {file.stem}", 0, 1)
        try:
            peer = stack.enter_context(Peer.start(file, vectors, queries, k=k, folder=place))
        except PeerFailed as error:
            missing[file.stem] = str(error)
            continue
        heard(f"building {file.stem}", 1, 1)
        started += [Other(peer, number, rows) for number in range(len(peer.points))]
    return started, missing


def _write(path: Path, subject: Subject) -> None:
    """The rows that may be found, in the encoder's own basis, as a .npy file (n, D) float32."""
    shape = subject.rows, subject.segments[0].dim
    with path.open("wb") as file:  # not mapped: a full disk would end the process
        header = {"descr": "<f4", "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, header)
        for block in unrotated(subject):
            file.write(np.ascontiguousarray(block, "<f4").tobytes())
