"""The files of a folder: those with a reader, and counts of the others by kind."""

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

from searchengine.corpus.documents import LeftOut
from searchengine.corpus.formats.kinds import kind_of
from searchengine.corpus.lines import bad, kind
from searchengine.corpus.tables import DIALECTS

LINES = {".jsonl", ".ndjson", *DIALECTS}
"""Suffixes of records that are read line by line."""
_DATABASE = "documents.db"  # a folder that holds it is a collection


@dataclass(slots=True)
class Unread:
    """Files of a folder without documents.

    Attributes:
        kinds: suffix → number of files of a format that is not read, and what else was passed
            over, such as links to folders.
        missing: suffix → what to install to read it.
        failed: messages of files that could not be read.
        encodings: encoding → number of files that were not UTF-8 and were read.
    """

    kinds: Counter[str] = field(default_factory=Counter)
    missing: dict[str, str] = field(default_factory=dict)
    failed: LeftOut = field(default_factory=LeftOut)
    encodings: Counter[str] = field(default_factory=Counter)

    def sentence(self) -> str:
        """What was skipped, by kind, most frequent first; "" for nothing."""
        if not self.kinds:
            return ""
        total = sum(self.kinds.values())
        kinds = ", ".join(f"{n:,} {name}" for name, n in self.kinds.most_common())
        text = f"{total:,} {'entry' if total == 1 else 'entries'} of other kinds skipped: {kinds}"
        for install in dict.fromkeys(self.missing.values()):
            names = [name for name, how in self.missing.items() if how == install]
            text += f"; {install} reads {' and '.join(names)}"
        return text


def is_readable(path: Path) -> bool:
    """Whether a reader exists for a file, by its suffix."""
    return kind(path) in LINES or kind_of(path) is not None


def files_below(folder: Path, unread: Unread) -> list[Path]:
    """The files below a folder that have a reader, sorted; others are counted in `unread`.

    Hidden files and folders (.git, .trash, …) and collections are left out, and linked folders:
    they may loop. A folder below it that this user may not read is named in `unread`. Raises
    OSError if another one cannot be read.
    """

    def name(path: Path, error: OSError) -> None:
        if path == folder or not isinstance(error, PermissionError):
            raise error
        unread.failed.add(str(bad(path, f"cannot be read ({error.strerror})")))

    files = []
    missing: dict[str, str] = {}  # suffix → what to install: finding that out takes a while
    for entry in chain.from_iterable(entries for _, entries in _walk(folder, name)):
        path = Path(entry)
        if entry.is_dir(follow_symlinks=False):
            continue
        if not path.is_file():
            unread.kinds["linked folder" if path.is_dir() else "broken link or device"] += 1
        elif not is_readable(path):
            unread.kinds[path.suffix.lower() or "without a suffix"] += 1
        else:
            suffix = kind(path)
            if suffix not in missing:
                missing[suffix] = _missing(path)
            if missing[suffix]:
                unread.kinds[suffix] += 1
                unread.missing[suffix] = missing[suffix]
            else:
                files.append(path)
    return sorted(files)


def folders_below(folder: Path) -> list[Path]:
    """The folder and those below it whose files `files_below` lists, as far as they can be read."""
    return [path for path, _ in _walk(folder, lambda path, error: None)]


def _walk(
    folder: Path, on_error: Callable[[Path, OSError], None]
) -> Iterator[tuple[Path, list["os.DirEntry[str]"]]]:
    """Each folder with its entries, without hidden ones."""
    folders = [folder]
    while folders:
        path = folders.pop()
        try:
            with os.scandir(path) as found:
                entries = [entry for entry in found if not entry.name.startswith(".")]
        except OSError as error:
            on_error(path, error)
            continue
        if path != folder and any(each.name == _DATABASE and each.is_file() for each in entries):
            continue
        folders += [Path(each) for each in entries if each.is_dir(follow_symlinks=False)]
        yield path, entries


def _missing(path: Path) -> str:
    found = kind_of(path)
    return "" if found is None else found.missing


def holds_records(files: Iterable[Path]) -> bool:
    """Whether any of the files has records, whose fields can be named."""
    return any(kind(f) in LINES or ((k := kind_of(f)) is not None and k.records) for f in files)
