"""Other engines among what a bench measures."""

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from indexer.arrays import Doubles, RowNumbers, unit_rows
from indexer.building.build import Progress
from searchengine.bench.contestants import Contestant, live_numbers, unrotated
from searchengine.bench.peers import Peer, PeerFailed, peer_files
from searchengine.bench.results import Kind
from searchengine.bench.subject import Subject


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

    def one_by_one(self, count: int) -> tuple[RowNumbers, Doubles]:
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
