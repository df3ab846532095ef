"""Word files (.docx): mammoth makes HTML of them, with text boxes, notes and accepted changes."""

import zipfile
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import mammoth

from searchengine.corpus.formats.archives import check_size, member, opened
from searchengine.corpus.formats.markup import parse
from searchengine.corpus.formats.parts import Part
from searchengine.corpus.lines import bad

_STYLES = "p[style-name='Title'] => h1:fresh"
_OLE = bytes.fromhex("d0cf11e0")  # begins .doc files and encrypted .docx files
_CORE = "docProps/core.xml"
_FIELDS = {
    "title": "{http://purl.org/dc/elements/1.1/}title",
    "author": "{http://purl.org/dc/elements/1.1/}creator",
}


def read_docx(path: Path) -> Iterator[Part]:
    """The text of a Word file; headings are paragraphs of the styles Title and Heading 1 to 6.

    Raises CorpusError.
    """
    with open(path, "rb") as file:
        if file.read(4) == _OLE:
            what = "encrypted, or a .doc file; remove the password, or save it as .docx"
            raise bad(path, what)
    with opened(path, "a .docx file") as archive:
        check_size(archive, path, (".xml", ".rels"))
        fields = _properties(archive)
    with open(path, "rb") as file:
        image = mammoth.images.img_element(lambda image: {})
        html = mammoth.convert_to_html(file, style_map=_STYLES, convert_image=image).value
    page = parse(html)
    title = fields.pop("title", "")
    yield Part(page.text, title, fields, tuple(page.headings))


def _properties(archive: zipfile.ZipFile) -> dict[str, str]:
    """Title and author, as far as they are named."""
    if _CORE not in archive.namelist():
        return {}
    root = ElementTree.fromstring(member(archive, _CORE))
    found = {name: (root.findtext(tag) or "").strip() for name, tag in _FIELDS.items()}
    return {name: value for name, value in found.items() if value}
