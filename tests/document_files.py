"""Files of formats that no library writes."""

import zipfile
from pathlib import Path


def write_epub(path: Path, title: str, chapters: list[str]) -> None:
    """A book of chapters in HTML."""
    names = [f"c{i}.xhtml" for i in range(len(chapters))]
    items = "".join(
        f'<item id="i{n}" href="{n}" media-type="application/xhtml+xml"/>' for n in names
    )
    spine = "".join(f'<itemref idref="i{n}"/>' for n in names)
    package = (
        '<package xmlns="http://www.idpf.org/2007/opf"><metadata '
        f'xmlns:dc="http://purl.org/dc/elements/1.1/"><dc:title>{title}</dc:title></metadata>'
        f"<manifest>{items}</manifest><spine>{spine}</spine></package>"
    )
    container = (
        '<container xmlns="urn:oasis:names:tc:opendocument:xmlns:container"><rootfiles>'
        '<rootfile full-path="text/book.opf"/></rootfiles></container>'
    )
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        archive.writestr("META-INF/container.xml", container)
        archive.writestr("text/book.opf", package)
        for name, chapter in zip(names, chapters, strict=True):
            archive.writestr(f"text/{name}", f"<html>{chapter}</html>")
