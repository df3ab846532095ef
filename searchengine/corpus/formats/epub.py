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

_DC = "{http://purl.org/dc/elements/1.1/}"
_TEXTS = ("application/xhtml+xml", "text/html", "application/x-dtbook+xml")
_FIELDS = {"author": "creator", "lang": "language", "date": "date"}
_ENCRYPTION = "META-INF/encryption.xml"


def read_epub(path: Path) -> Iterator[Text]:
    """The chapters of a book, in reading order; the table of contents is left out.

    Raises CorpusError.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            root = ElementTree.fromstring(archive.read("META-INF/container.xml"))
            name = next((file.get("full-path", "") for file in root.iterfind(".//{*}rootfile")), "")
            package = ElementTree.fromstring(archive.read(name))
            encrypted = set()  # fonts often are, texts only under protection
            if _ENCRYPTION in archive.namelist():
                protected = ElementTree.fromstring(archive.read(_ENCRYPTION))
                encrypted = {
                    unquote(e.get("URI", "")) for e in protected.iterfind(".//{*}CipherReference")
                }
            yield from _chapters(path, archive, package, posixpath.dirname(name), encrypted)
    except (KeyError, ElementTree.ParseError, zipfile.BadZipFile) as error:
        raise bad(path, f"not an EPUB file, or damaged ({error})") from error


def _chapters(
    path: Path,
    archive: zipfile.ZipFile,
    package: ElementTree.Element,
    folder: str,
    encrypted: set[str],
) -> Iterator[Text]:
    """`package`: the file that lists all others, from its folder."""
    found = {
        name: (package.findtext(f".//{_DC}{tag}") or "").strip() for name, tag in _FIELDS.items()
    }
    metadata = {name: value for name, value in found.items() if value}
    title = (package.findtext(f".//{_DC}title") or "").strip()
    numbers = count(1)

    def chapter(name: str) -> Text:
        if name in encrypted:
            raise CorpusError("encrypted; remove the protection first")
        page = parse(decode_html(archive.read(name), path)[0])
        fields = metadata | ({"chapter": next(numbers)} if page.text else {})
        return replace(page, title=title or page.title, metadata=fields, fragment=name)

    items = {item.get("id"): item for item in package.iterfind(".//{*}item")}
    spine = (items.get(reference.get("idref")) for reference in package.iterfind(".//{*}itemref"))
    texts = [item for item in spine if item is not None and item.get("media-type") in _TEXTS]
    hrefs = [
        unquote(i.get("href", "").partition("#")[0])
        for i in texts
        if "nav" not in i.get("properties", "").split()
    ]
    names = dict.fromkeys(posixpath.normpath(posixpath.join(folder, href)) for href in hrefs)
    yield from read_parts(path, ((n, partial(chapter, n)) for n in names), "holds no text")
