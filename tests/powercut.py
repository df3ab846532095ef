"""What a disk holds after the power was cut: what was synced, and of the rest anything.

A file's content is safe once the file was synced, a name once its folder was (POSIX promises no
more; most file systems do). Of what came after, any part may have reached the disk: some names and
not others, a name without its data, writes in any order and torn between sectors of 512 bytes. A
rename within a folder happens whole or not at all.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Union

from faults import Record

_SECTOR = 512


@dataclass
class File:
    """Its synced content, and the writes (offset, data) and truncations (size, None) since."""

    safe: bytes = b""
    since: list[tuple[int, bytes | None]] = field(default_factory=list)

    def apply(self, at: int, data: bytes | None) -> None:
        self.since.append((at, data))

    def sync(self) -> None:
        self.safe = _written(self.safe, self.since)
        self.since = []

    def after(self, random: Random | None) -> bytes:
        if random is None:
            return self.safe
        kept: list[tuple[int, bytes | None]] = []
        for at, data in self.since:
            luck = random.randrange(3)
            if luck == 0:
                kept.append((at, data))
            elif luck == 1 and data is not None:
                kept += _sectors(at, data, random)
        return _written(self.safe, kept)


@dataclass
class Folder:
    """Its names now, those that are synced, and the changes since, each to one name or two."""

    now: dict[str, "Node"] = field(default_factory=dict)
    safe: dict[str, "Node"] = field(default_factory=dict)
    since: list[dict[str, Union["Node", None]]] = field(default_factory=list)

    def apply(self, change: dict[str, Union["Node", None]]) -> None:
        self.since.append(change)
        _rename(self.now, change)

    def sync(self) -> None:
        self.safe, self.since = dict(self.now), []

    def after(self, random: Random | None) -> dict[str, "Node"]:
        names = dict(self.safe)
        for change in self.since if random else ():
            if random.random() < 0.5:
                _rename(names, change)
        return names


Node = File | Folder


class Disk:
    """A folder's content, to which the calls of a journal are applied; at first all is synced."""

    def __init__(self, root: Path, seen_as: Path | None = None) -> None:
        """Start with a copy of `root`, which the journal's paths call `seen_as`."""
        self._root = str(seen_as or root)
        self._top = _read(root)

    def apply(self, record: Record) -> None:
        """One call more."""
        match record.kind:
            case "w" | "t":
                file = self._node(record.path)
                if isinstance(file, File):  # no name any more: nothing of it will be found
                    file.apply(record.at, record.data if record.kind == "w" else None)
            case "c":
                self._create(record.path)
            case "s" | "S":
                (self._node(record.path) or File()).sync()  # no name any more: as above
            case "r":
                self._move(record.path, record.to)
            case "l":
                self._change(record.to, self._node(record.path))
            case "u" | "d":
                self._change(record.path, None)
            case "m":
                self._change(record.path, Folder())

    def write_after_cut(self, to: Path, seed: int | None = None) -> None:
        """Write what is there after a cut now into a new folder.

        All that was not synced is lost; with a seed, any part of it by chance.
        """
        _write(self._top, to, None if seed is None else Random(seed))

    def _parts(self, path: str) -> list[str]:
        return [part for part in path[len(self._root) :].split("/") if part]

    def _node(self, path: str) -> Node | None:
        node: Node | None = self._top
        for part in self._parts(path):
            if not isinstance(node, Folder):
                return None
            node = node.now.get(part)
        return node

    def _folder(self, path: str) -> tuple[Folder, str]:
        above, _, name = path.rpartition("/")
        folder = self._node(above)
        assert isinstance(folder, Folder), path
        return folder, name

    def _create(self, path: str) -> None:
        """Make a file, or empty it."""
        file = self._node(path)
        if isinstance(file, File):
            file.apply(0, None)
        else:
            self._change(path, File())

    def _change(self, path: str, node: Node | None) -> None:
        folder, name = self._folder(path)
        folder.apply({name: node})

    def _move(self, source: str, target: str) -> None:
        node = self._node(source)
        (out, old), (into, new) = self._folder(source), self._folder(target)
        if out is into:
            out.apply({old: None, new: node})
        else:
            into.apply({new: node})
            out.apply({old: None})


def _written(content: bytes, writes: Iterable[tuple[int, bytes | None]]) -> bytes:
    now = bytearray(content)
    for at, data in writes:
        end = at + len(data or b"")
        now.extend(bytes(max(0, end - len(now))))
        if data is None:
            del now[at:]
        else:
            now[at:end] = data
    return bytes(now)


def _sectors(at: int, data: bytes, random: Random) -> list[tuple[int, bytes | None]]:
    """The sectors of a write, each with an even chance."""
    ends = range(at - at % _SECTOR, at + len(data), _SECTOR)
    parts = [(max(at, start), min(at + len(data), start + _SECTOR)) for start in ends]
    return [(low, data[low - at : high - at]) for low, high in parts if random.random() < 0.5]


def _rename(names: dict[str, Node], change: dict[str, Node | None]) -> None:
    for name, node in change.items():
        if node is None:
            names.pop(name, None)
        else:
            names[name] = node


def _read(path: Path) -> Node:
    if path.is_file():
        return File(path.read_bytes())
    names = {each.name: _read(each) for each in path.iterdir()}
    return Folder(names, dict(names))


def _write(node: Node, path: Path, random: Random | None) -> None:
    if isinstance(node, File):
        path.write_bytes(node.after(random))
        return
    path.mkdir()
    for name, child in node.after(random).items():
        _write(child, path / name, random)
