"""Peers: other search libraries, each in a process of its own.

with Peer.start(Path("hnswlib.py"), vectors, queries, k=10, folder=scratch) as peer:
    for number, point in enumerate(peer.points):
        rows, seconds = peer.round(number, 100)

benchmarks/peers/README.md describes the file of a peer. Thread pools and memory of two libraries in
one process would disturb each other. Measure one peer at a time.
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
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from threading import Timer
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray
from peer_process import LEAVING

from searchengine.errors import SearchEngineError

PROCESS = Path(__file__).with_name("peer_process.py")
_LAST_LINE = 500  # characters of a dead peer's last line that the error shows
_FOLDERS = re.compile(r"(?<![\w./:])/(?:[^\s/'\":,;()]+/)+")  # the folders of an absolute path

_log = logging.getLogger(__name__)


class PeerFailed(SearchEngineError):
    """A peer's file is invalid, or the peer failed, died or took too long."""


class PeerMissing(PeerFailed):
    """A package that a peer requires is not installed."""


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds until a peer is ended: while it builds, and while it answers a request."""

    build: float = 1800.0
    answer: float = 600.0


def peer_files(folder: Path) -> list[Path]:
    """The files of the peers in a folder, sorted: .py files whose name does not begin with "_".

    Raises PeerFailed if there are none.
    """
    files = sorted(file for file in folder.glob("*.py") if not file.name.startswith("_"))
    if not files:
        raise PeerFailed(f"no peers in {folder}: expected one .py file per peer")
    return files


def requires(file: Path) -> tuple[str, ...]:
    """The distributions in a peer's REQUIRES, read without running the file.

    The file may import a missing distribution. Raises PeerFailed.
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
        f'{file}: REQUIRES must be names such as ("hnswlib",), got {ast.unparse(value):.100}'
    )


def _versions(file: Path) -> dict[str, str]:
    """The installed versions of a peer's requirements. Raises PeerMissing."""
    versions, missing = {}, []
    for name in requires(file):
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            missing.append(name)
    if missing:
        raise PeerMissing(
            f"{file.name} needs {', '.join(missing)}, not installed: pip install "
            f"{' '.join(missing)}"
        )
    return versions


class Peer:
    """A peer with a built index, in a process that ends with this one.

    Every method raises PeerFailed; if that ended the process, so do all later calls.

    Attributes:
        name: name of its file, without suffix.
        settings: the file's settings, "index" and "numbers" among them, and the "versions" of its
            requirements.
        points: keyword arguments of its searches; a round measures one of them.
        build_s: seconds to build the index.
        rss_bytes: growth of its memory from before it had the vectors to after building, servers
            included; None if the system does not report it.
        disk_bytes: bytes of the files in its folder.
    """

    name: str
    settings: Mapping[str, Any]
    points: tuple[Mapping[str, Any], ...]
    build_s: float
    rss_bytes: int | None
    disk_bytes: int

    def __init__(self, file: Path, task: Mapping[str, Any], timeouts: Timeouts) -> None:
        """See `start`."""
        self._file, self._timeouts = file, timeouts
        self.name = file.stem
        versions = _versions(file)
        self._scratch = tempfile.TemporaryDirectory()
        self._messages = tempfile.TemporaryFile()
        # -P: in the peers' folder, `import hnswlib` would import the peer hnswlib.py.
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(PROCESS), json.dumps(task)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._messages,
        )
        self._closed = False
        try:
            answer = self._receive("building", timeouts.build)
        except BaseException:
            self.close()
            raise
        self.settings = {**answer["settings"], "versions": versions}
        self.points = tuple(answer["points"])
        self.build_s, self.rss_bytes = answer["build_s"], answer["rss_bytes"]
        self.disk_bytes = answer["disk_bytes"]

    @classmethod
    def start(
        cls,
        file: Path,
        vectors: Path,
        queries: Path,
        k: int,
        folder: Path,
        timeouts: Timeouts | None = None,
    ) -> "Peer":
        """Start a peer and let it build its index.

        Args:
            file: file of the peer.
            vectors: (n, D) float32 unit rows in a .npy file.
            queries: (q, D) float32 unit rows in a .npy file.
            k: number of nearest neighbours, at most n.
            folder: folder for its files; created if needed, and kept.
            timeouts: time limits.

        Raises:
            PeerMissing: a requirement is not installed.
            PeerFailed: its file is invalid, or it failed to build.
        """
        folder.mkdir(parents=True, exist_ok=True)
        paths = {"file": file, "vectors": vectors, "queries": queries, "folder": folder}
        task = {name: str(path.absolute()) for name, path in paths.items()} | {"k": k}
        return cls(file, task, timeouts or Timeouts())

    def round(self, point_number: int, count: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Search the first `count` queries one at a time, after a warm-up.

        Returns row numbers (count, k), padded with -1, and seconds (count,).
        """
        rows, seconds = (Path(self._scratch.name) / f"{name}.npy" for name in ("rows", "seconds"))
        request = {"do": "round", "count": count, "rows": str(rows), "seconds": str(seconds)}
        self._ask(request, point_number)
        return np.load(rows), np.load(seconds)

    def batch(self, point_number: int, count: int) -> tuple[NDArray[np.int64], float]:
        """Search the first `count` queries in one call: row numbers (count, k), and seconds."""
        rows = Path(self._scratch.name) / "rows.npy"
        request = {"do": "batch", "count": count, "rows": str(rows)}
        seconds = self._ask(request, point_number)["seconds"]
        return np.load(rows), float(seconds)

    def close(self) -> None:
        """End the process and wait for it. A second call does nothing."""
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
        activity = f"searching at {dict(point)}" if point else "searching"
        line = json.dumps({**request, "point": point_number}) + "\n"
        stdin = self._process.stdin
        assert stdin is not None
        with suppress(BrokenPipeError, ValueError):  # the process has died; receiving raises why
            stdin.write(line.encode())
            stdin.flush()
        return self._receive(activity, self._timeouts.answer)

    def _receive(self, activity: str, seconds: float) -> Mapping[str, Any]:
        """Wait for the answer; end the process if it does not answer in time."""
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
            self._refuse(f"was still {activity} after {seconds:g} seconds, and was ended")
        if not line:
            self._refuse(f"{self._exit_reason()} while {activity}{self._last_line()}")
        answer: Mapping[str, Any] = json.loads(line)
        if "refused" in answer:
            self._refuse(answer["refused"])
        return answer

    def _refuse(self, reason: str) -> NoReturn:
        # Reports quote the message: leave out the folders of this machine.
        raise PeerFailed(f"{self._file} {_FOLDERS.sub('', reason)}")

    def _exit_reason(self) -> str:
        status = self._process.wait()
        if status >= 0:
            return f"ended with status {status}"
        name = signal.Signals(-status).name
        return f"was ended by {name}" + (" (out of memory?)" if name == "SIGKILL" else "")

    def _last_line(self) -> str:
        """The last line on stderr, which names the exception of a traceback; log all of them."""
        self._messages.seek(0)
        text = self._messages.read().decode(errors="replace").strip()
        if not text:
            return ", without a message"
        _log.warning("%s on stderr:\n%s", self._file, text)
        return f"; its last message: {text.splitlines()[-1][-_LAST_LINE:]}"

    def _end(self) -> None:
        """Close the requests, which ends the peer; kill it if it does not end in time."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(LEAVING + 10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
