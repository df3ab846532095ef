"""Books in EPUB: a zip archive of XHTML files, with a list of them in reading order."""

import posixpath
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from urllib.parse import unquote
from xml.etree import ElementTree

from searchengine.corpus.formats.kinds import Text, read_parts
from searchengine.corpus.formats.markup import decode_html, parse
from searchengine.corpus.text_files import bad
from searchengine.errors import CorpusError

_WHAT = "an EPUB file"
_OPF = "{http://www.idpf.org/2007/opf}"
_DC = "{http://purl.org/dc/elements/1.1/}"
_CONTAINER = "{urn:oasis:names:tc:opendocument:xmlns:container}"
_REFERENCE = "{http://www.w3.org/2001/04/xmlenc#}CipherReference"
_TEXTS = ("application/xhtml+xml", "text/html", "application/x-dtbook+xml")
_FIELDS = {"author": "creator", "lang": "language", "date": "date"}


def read_epub(path: Path) -> Iterator[Text]:
    """The chapters of a book, in reading order; the table of contents is left out.

    Raises CorpusError.
    """
    try:
        archive = zipfile.ZipFile(path)
    except zipfile.BadZipFile as error:
        raise bad(path, f"not {_WHAT} ({error})") from error
    with archive:
        root_file, package = _package(archive, path)
        metadata, title = _metadata(package)
        encrypted = _encrypted(archive)
        chapters = count(1)

        def chapter(name: str) -> Text:
            if name in encrypted:
                raise CorpusError("encrypted; remove the protection first")
            page = parse(decode_html(archive.read(name), path)[0])
            fields = metadata | ({"chapter": next(chapters)} if page.text else {})
            return replace(page, title=title or page.title, metadata=fields, fragment=name)

        names = _spine(package, root_file)
        yield from read_parts(path, ((n, partial(chapter, n)) for n in names), "holds no text")


def _package(archive: zipfile.ZipFile, path: Path) -> tuple[str, ElementTree.Element]:
    """The name and content of the file that lists all others. Raises CorpusError."""
    try:
        container = ElementTree.fromstring(archive.read("META-INF/container.xml"))
        root_file = container.find(f".//{_CONTAINER}rootfile")
        if root_file is None:
            raise bad(path, f"not {_WHAT} (container.xml names no package)")
        name = root_file.get("full-path", "")
        return name, ElementTree.fromstring(archive.read(name))
    except (KeyError, ElementTree.ParseError) as error:
        raise bad(path, f"not {_WHAT} ({error})") from error


def _metadata(package: ElementTree.Element) -> tuple[dict[str, str], str]:
    texts = {name: package.findtext(f".//{_DC}{tag}") for name, tag in _FIELDS.items()}
    fields = {name: value.strip() for name, value in texts.items() if value and value.strip()}
    return fields, (package.findtext(f".//{_DC}title") or "").strip()


def _spine(package: ElementTree.Element, root_file: str) -> list[str]:
    """The names of the texts in reading order, each once."""
    items = {item.get("id"): item for item in package.iter(f"{_OPF}item")}
    names = []
    for reference in package.iter(f"{_OPF}itemref"):
        item = items.get(reference.get("idref"))
        if item is None or item.get("media-type") not in _TEXTS:
            continue
        if "nav" not in item.get("properties", "").split():
            href = unquote(item.get("href", ""))
            names.append(posixpath.normpath(posixpath.join(posixpath.dirname(root_file), href)))
    return list(dict.fromkeys(names))


def _encrypted(archive: zipfile.ZipFile) -> set[str]:
    """The members that are encrypted: fonts often are, texts only under protection."""
    name = "META-INF/encryption.xml"
    if name not in archive.namelist():
        return set()
    root = ElementTree.fromstring(archive.read(name))
    return {unquote(element.get("URI", "")) for element in root.iter(_REFERENCE)}
