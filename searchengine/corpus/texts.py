"""Files of texts → documents: one for a file, a page of a PDF file, or a chapter of a book."""

from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from searchengine.corpus.documents import Document
from searchengine.corpus.formats.kinds import Kind
from searchengine.corpus.formats.parser import Parser
from searchengine.corpus.formats.parts import Part, whole
from searchengine.corpus.lines import bad, kind

_PLAIN = (".txt", ".text")


def root_of(folder: Path) -> str:
    """The absolute path of the folder of files. Raises CorpusError if it is not UTF-8."""
    root = folder.resolve()
    check_name(root, "folder")
    return str(root)


def check_name(path: Path, what: str) -> None:
    """Refuse a path that is not UTF-8, which no key could hold. Raises CorpusError."""
    try:
        str(path).encode()
    except UnicodeEncodeError as error:
        raise bad(path, f"the name of this {what} is not UTF-8; rename it") from error


def read_file(
    file: Path, below: str, root: str, format_: Kind, key_prefix: str, parser: Parser
) -> Iterator[Document]:
    """The documents of a file. Keys: the path below the root, then "#" and the part, if any.

    The metadata of a file are its path, size in bytes and time of modification (UTC); a field of
    the same name in the file replaces them. The title is what the file names, or else the file's
    name. Raises CorpusError.
    """
    fields = {"path": below, **_stat(file)}
    for part in _parts(file, format_, parser):
        metadata = {**fields, **part.metadata}
        if part.headings:
            metadata["headings"] = [asdict(heading) for heading in part.headings]
        # An empty file is no document, although it has a name.
        title = (part.title or _name(file)) if part.text.strip() else ""
        yield Document(
            key=f"{key_prefix}{below}{'#' if part.fragment else ''}{part.fragment}",
            text=part.text,
            title=title,
            metadata=metadata,
            origin=str(file),
            root=root,
            file=below,
        )


def _parts(file: Path, format_: Kind, parser: Parser) -> Iterator[Part]:
    """The texts of a file. Plain text in UTF-8 needs no parser."""
    if kind(file) in _PLAIN:
        data = whole(file)
        try:
            text = data.decode("utf-8-sig")
        except UnicodeDecodeError:
            text = "\0"
        if "\0" not in text and "\x1b" not in text:  # neither binary nor ISO-2022
            yield Part(text)
            return
    yield from parser.parts(file, format_)


def _stat(file: Path) -> dict[str, Any]:
    try:
        stat = file.stat()
    except OSError as error:
        raise bad(file, f"cannot be read ({error.strerror or error})") from error
    modified = datetime.fromtimestamp(stat.st_mtime, UTC).isoformat(timespec="seconds")
    return {"modified": modified, "size": stat.st_size}


def _name(file: Path) -> str:
    """The name of a file as a title."""
    name = Path(file.stem).stem if file.suffix == ".gz" else file.stem
    return name.replace("_", " ").replace("-", " ")
