"""What campaigns found, one JSON line for each finished piece, and the source that each ran on.

A long campaign runs in pieces (seeds, minutes). Each piece appends a line to a results file with a
digest of the packages' source; a second call leaves out the pieces that this source has finished.
So "the final code passed so many steps" is a statement that a program can check.
"""

import hashlib
import importlib.util
import json
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PACKAGES = ("searchengine", "indexer", "trainer")


def source_digest() -> str:
    """SHA-256 over the Python files of the packages that this process imports, by sorted name."""
    whole = hashlib.sha256()
    for package in sorted(PACKAGES):
        found = importlib.util.find_spec(package)
        assert found is not None and found.origin is not None, f"{package} cannot be imported"
        folder = Path(found.origin).parent
        for file in sorted(folder.rglob("*.py")):
            content = file.read_bytes()
            name = f"{package}/{file.relative_to(folder).as_posix()}"
            whole.update(f"{name}\0{len(content)}\0".encode())
            whole.update(content)
    return whole.hexdigest()


@dataclass
class Piece:
    """A finished piece of a campaign.

    Attributes:
        campaign: its name.
        arguments: what it was run with, apart from the seed.
        seed: which piece it is.
        seconds: how long it took.
        counts: how much was tried.
        problems: what went wrong, each with its `kind`.
        source: digest of the source that it ran on.
    """

    campaign: str
    arguments: Mapping[str, Any]
    seed: int
    seconds: float
    counts: Counter[str]
    problems: list[dict[str, Any]]
    source: str

    @property
    def identity(self) -> str:
        """Two pieces of one identity ran the same steps on the same source."""
        return json.dumps([self.campaign, self.arguments, self.seed, self.source], sort_keys=True)


@dataclass
class Total:
    """What the pieces of one campaign on one source come to."""

    pieces: int = 0
    seconds: float = 0.0
    counts: Counter[str] = field(default_factory=Counter)
    problems: Counter[str] = field(default_factory=Counter)

    def add(self, piece: Piece) -> None:
        """One piece more."""
        self.pieces += 1
        self.seconds += piece.seconds
        self.counts.update(piece.counts)
        self.problems.update(problem["kind"] for problem in piece.problems)


class Results:
    """A results file, which may not exist yet; None keeps nothing."""

    def __init__(self, path: Path | None) -> None:
        self.path = path

    def pieces(self) -> list[Piece]:
        """The finished pieces, in the order of the file; of equal ones the last."""
        if self.path is None or not self.path.exists():
            return []
        found = {}
        for line in filter(None, self.path.read_text().splitlines()):
            try:
                values = json.loads(line)
            except ValueError:  # its driver died while it wrote; the piece runs again
                continue
            piece = Piece(**{**values, "counts": Counter(values["counts"])})
            found[piece.identity] = piece
        return list(found.values())

    def append(self, piece: Piece) -> None:
        """Keep a piece: one write, so that two drivers may share the file.

        It begins a line of its own, for the last one may be torn.
        """
        if self.path is None:
            return
        line = "\n" + json.dumps(vars(piece), ensure_ascii=False) + "\n"
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(descriptor, line.encode())
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def unfinished(self, campaign: str, arguments: Mapping[str, Any], seeds: range) -> list[int]:
        """The seeds that the current source has not finished with these arguments."""
        source = source_digest()
        done = {piece.identity for piece in self.pieces()}

        def identity(seed: int) -> str:
            return Piece(campaign, arguments, seed, 0, Counter(), [], source).identity

        return [seed for seed in seeds if identity(seed) not in done]

    def summary(self) -> str:
        """Totals for each source and campaign, and whether the source is the current one."""
        current = source_digest()
        totals: dict[tuple[str, str], Total] = {}
        for piece in self.pieces():
            totals.setdefault((piece.source, piece.campaign), Total()).add(piece)
        lines = [f"current source {current[:16]}"]
        for (source, campaign), total in totals.items():
            which = "current source" if source == current else "another source"
            lines.append(
                f"{campaign} on {source[:16]} ({which}): {total.pieces} pieces, "
                f"{total.seconds:.0f} s, {sum(total.problems.values())} problems"
            )
            lines += [f"    {name}: {count}" for name, count in sorted(total.counts.items())]
            lines += [f"    PROBLEM {kind}: {n}" for kind, n in sorted(total.problems.items())]
        return "\n".join(lines)


def seed_range(text: str) -> range:
    """ "A:B" as range(A, B)."""
    first, _, end = text.partition(":")
    return range(int(first), int(end))
