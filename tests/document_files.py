"""Files of known text in every format, to measure what the readers find of it."""

import html
import random
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path

import docx
import yaml
from reportlab.pdfbase import pdfmetrics
from reportlab.pdfbase.cidfonts import UnicodeCIDFont
from reportlab.pdfgen.canvas import Canvas

LANGUAGES = ("en", "ko", "ja")
KINDS = ("md", "html", "pdf", "docx", "epub")
_FONTS = {"en": "Times-Roman", "ko": "HYSMyeongJo-Medium", "ja": "HeiseiMin-W3"}
_SYLLABLES = {
    "en": "whale owl sleep brain bread dough yeast river stone cloud night rest half time".split(),
    "ko": list("고래는잠을자고빵이부풀며올빼미가밤에사냥한다강물돌구름시간절반두뇌"),
    "ja": list("鯨は眠りパンが膨らむ梟夜に狩をする川石雲時間半分脳カタナヒ"),
}


@dataclass(frozen=True)
class Section:
    """A heading with its level and the sentences under it."""

    level: int
    title: str
    sentences: list[str]


@dataclass(frozen=True)
class Book:
    """The known text of a file."""

    language: str
    title: str
    sections: list[Section]

    @property
    def tokens(self) -> list[str]:
        """The words of all sentences, or in Japanese the letters."""
        return [
            t for s in self.sections for each in s.sentences for t in tokens(each, self.language)
        ]

    def path(self, section: Section, deepest: int = 6) -> str:
        """The headings of a section, the highest first, with levels up to `deepest`."""
        above: list[Section] = []
        for each in self.sections:
            level = min(each.level, deepest)
            above = [a for a in above if min(a.level, deepest) < level] + [each]
            if each is section:
                break
        return " > ".join(each.title for each in above)


def tokens(text: str, language: str) -> list[str]:
    """The words of a text, or in Japanese its letters."""
    return list("".join(text.split())) if language == "ja" else text.split()


def share_in_order(known: list[str], read: list[str]) -> float:
    """The share of the known tokens that were read, in the same order."""
    blocks = SequenceMatcher(None, known, read, autojunk=False).get_matching_blocks()
    return sum(block.size for block in blocks) / len(known)


def book(rng: random.Random, language: str, number: int) -> Book:
    """A text of three to five sections, in which every sentence occurs once."""

    def sentence(number: int) -> str:
        syllables = _SYLLABLES[language]
        if language == "en":
            words = [rng.choice(syllables) for _ in range(rng.randint(6, 12))]
            return f"{' '.join(words).capitalize()} {number}."
        if language == "ko":
            words = ["".join(rng.choices(syllables, k=rng.randint(2, 4))) for _ in range(6)]
            return f"{' '.join(words)} {number}."
        return f"{''.join(rng.choices(syllables, k=rng.randint(10, 30)))}{number}。"

    count, sections = 10_000 + 100 * number, []
    for i in range(rng.randint(3, 5)):
        sentences = [sentence(count + j) for j in range(rng.randint(2, 6))]
        count += len(sentences)
        level = 1 if i == 0 else rng.randint(2, 3)
        sections.append(Section(level, f"{sentence(count)[:-1]}", sentences))
        count += 1
    return Book(language, f"Book {language} {number}", sections)


def write(path: Path, text: Book, rng: random.Random) -> None:
    """Write a file of the format of its suffix."""
    _WRITERS[path.suffix[1:]](path, text, rng)


def _md(path: Path, text: Book, rng: random.Random) -> None:
    front = yaml.safe_dump({"title": text.title, "tags": ["a", text.language]}, allow_unicode=True)
    parts = [f"---\n{front}---\n"]
    for section in text.sections:
        parts.append(f"{'#' * section.level} {section.title}\n\n{' '.join(section.sentences)}\n\n")
        parts.append("```\n# not a heading\n```\n\n")
    path.write_text("".join(parts), encoding="utf-8")


def markup(text: Book, rng: random.Random) -> str:
    """HTML as people write it: some end tags are missing, some text is not shown."""
    parts = [f"<title>{html.escape(text.title)}</title><style>p {{ color: red }}</style><body>"]
    for section in text.sections:
        level = section.level
        parts.append(f"<h{level}>{html.escape(section.title)}</h{level}>")
        for sentence in section.sentences:
            end = rng.choice(["</p>", ""])
            parts.append(f"<p>{html.escape(sentence)}{end}\n<script>hidden('<p>')</script>")
    return "".join(parts)


def _html(path: Path, text: Book, rng: random.Random) -> None:
    charset = rng.choice(
        ["utf-8", {"en": "latin-1", "ko": "euc-kr", "ja": "shift_jis"}[text.language]]
    )
    page = f'<!doctype html><html lang="{text.language}"><meta charset="{charset}">'
    path.write_bytes((page + markup(text, rng)).encode(charset))


def _pdf(path: Path, text: Book, rng: random.Random) -> None:
    font = _FONTS[text.language]
    if text.language != "en":
        pdfmetrics.registerFont(UnicodeCIDFont(font))
    canvas = Canvas(str(path))
    canvas.setTitle(text.title)
    for i, section in enumerate(text.sections):
        canvas.bookmarkPage(str(i))
        canvas.addOutlineEntry(section.title, str(i), min(section.level - 1, 1))
        lines = canvas.beginText(72, 770)
        lines.setFont(font, 11)
        lines.textLine(section.title)
        for line in _wrapped(" ".join(section.sentences), text.language):
            lines.textLine(line)
        canvas.drawText(lines)
        canvas.showPage()
    canvas.save()


def _wrapped(text: str, language: str) -> Iterator[str]:
    width = 80 if language == "en" else 38
    words = list(text) if language == "ja" else [f"{word} " for word in text.split()]
    line = ""
    for word in words:
        if len(line) + len(word) > width:
            yield line.rstrip()
            line = ""
        line += word
    yield line.rstrip()


def _docx(path: Path, text: Book, rng: random.Random) -> None:
    document = docx.Document()
    document.core_properties.title = text.title
    for section in text.sections:
        document.add_heading(section.title, section.level)
        table = rng.random() < 0.3
        if table:
            cells = document.add_table(len(section.sentences), 1).column_cells(0)
            for cell, sentence in zip(cells, section.sentences, strict=True):
                cell.text = sentence
        else:
            for sentence in section.sentences:
                document.add_paragraph(sentence)
    document.save(str(path))


def _epub(path: Path, text: Book, rng: random.Random) -> None:
    write_epub(path, text.title, [markup(text, rng)])


def write_epub(
    path: Path, title: str, chapters: list[str], extra: dict[str, str] | None = None
) -> None:
    """A book of chapters in HTML, and other members of the archive."""
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
        for name, content in (extra or {}).items():
            archive.writestr(name, content)


_WRITERS: dict[str, Callable[[Path, Book, random.Random], None]] = {
    "md": _md,
    "html": _html,
    "pdf": _pdf,
    "docx": _docx,
    "epub": _epub,
}
