"""Zip archives, read within limits: a small file may unpack to terabytes."""

import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from searchengine.corpus.text_files import LONGEST, bad

_LARGEST = 4 * LONGEST  # bytes of all members that are read
_OLE = bytes.fromhex("d0cf11e0")  # begins old files of Office and encrypted new ones


def refuse_encrypted(path: Path, old: str, new: str) -> None:
    """Refuse a file of Office that is encrypted, or of the old format. Raises CorpusError.

    `old`, `new`: suffixes of the formats.
    """
    with open(path, "rb") as file:
        if file.read(4) == _OLE:
            what = f"encrypted, or a {old} file; remove the password, or save it as {new}"
            raise bad(path, what)


@contextmanager
def opened(path: Path, what: str) -> Iterator[zipfile.ZipFile]:
    """An archive. Raises CorpusError for a damaged file, or one of another format."""
    try:
        with zipfile.ZipFile(path) as archive:
            yield archive
    except (zipfile.BadZipFile, NotImplementedError, EOFError) as error:
        raise bad(path, f"not {what} ({error})") from error


def check_size(archive: zipfile.ZipFile, path: Path, suffixes: tuple[str, ...]) -> None:
    """Refuse an archive if its members with these suffixes unpack to more than 256 MiB.

    zipfile never unpacks more of a member than the archive declares.
    """
    size = sum(m.file_size for m in archive.infolist() if m.filename.endswith(suffixes))
    if size > _LARGEST:
        raise bad(path, f"unpacks to {size >> 20:,} MiB of text, more than {_LARGEST >> 20}")


def member(archive: zipfile.ZipFile, name: str) -> bytes:
    """The bytes of a member of at most 64 MiB. Raises CorpusError and BadZipFile."""
    with archive.open(name) as file:
        data = file.read(LONGEST + 1)
    if len(data) > LONGEST:
        raise bad(archive.filename, f"{name} unpacks to more than {LONGEST >> 20} MiB")
    return data
