"""Sphinx configuration: `make docs` writes the site to build/docs, without a network."""

import logging
import re
import sys
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parent
REPOSITORY = DOCS.parent
sys.path[:0] = [str(REPOSITORY), str(DOCS)]

import draw_architecture  # noqa: E402

import searchengine  # noqa: E402

logging.getLogger("faiss").setLevel(logging.WARNING)

project = "searchengine"
author = "the searchengine authors"
project_copyright = f"{author}, MIT licence"
version = release = searchengine.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
]
exclude_patterns = ["build", "reports"]
nitpicky = False  # docstrings name types of numpy and torch, whose inventories are on the network

myst_heading_anchors = 4

autodoc_default_options = {"members": True}
autodoc_mock_imports = ["datasets", "mteb"]  # hundreds of megabytes for one page
add_module_names = False
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
suppress_warnings = ["ref.python"]  # several classes have a property of the same name
napoleon_use_ivar = True  # attributes that are properties too would be listed twice

smartquotes = False  # --option would become –option

html_theme = "furo"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_title = f"searchengine {release}"
html_show_sourcelink = False
html_copy_source = False
html_theme_options = {"top_of_page_buttons": []}

LINK = re.compile(r"(?<!!)\[([^\]]+)\]\((\.\./[^)\s]+)\)")


def drop_links_out_of_docs(app: Any, name: str, content: list[str]) -> None:
    """Show links to files outside docs/ as names: the site does not hold those files."""
    here = (DOCS / name).parent

    def shown(link: re.Match[str]) -> str:
        text, target = link.groups()
        path = (here / target.partition("#")[0]).resolve()
        if path.is_relative_to(DOCS) or not path.is_relative_to(REPOSITORY):
            return link[0]
        inside = path.relative_to(REPOSITORY).as_posix()
        return f"`{inside}`" if text.strip("`") == inside else f"{text} (`{inside}`)"

    content[0] = LINK.sub(shown, content[0])


INLINE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
MARKUP = re.compile(r"((?<!^)[*](?! )|[|]|(?<=\w)_(?!\w))")
TREE = re.compile(r"[├└│]")


def docstring_as_plain_text(
    app: Any, what: str, name: str, thing: object, options: Any, lines: list[str]
) -> None:
    """Docstrings are plain text with `code` in single backticks; write them as reStructuredText.

    Indented paragraphs and trees are code. Everything else that the markup would read is escaped.
    """
    paragraphs = [part.split("\n") for part in re.split(r"\n\s*\n", "\n".join(lines))]
    written: list[str] = []
    for paragraph in paragraphs:
        if all(line.startswith("    ") for line in paragraph if line):
            written += ["::", "", *paragraph, ""]
        elif any(TREE.match(line) for line in paragraph):
            written += ["::", "", *(f"    {line}" for line in paragraph), ""]
        else:
            written += [*map(_escaped, paragraph), ""]
    lines[:] = written


def _escaped(line: str) -> str:
    pieces = INLINE.split(line)
    pieces[::2] = [MARKUP.sub(r"\\\1", piece) for piece in pieces[::2]]
    pieces[1::2] = [f"``{piece}``" for piece in pieces[1::2]]
    return "".join(pieces)


ARRAY = re.compile(r"[~\w.]*_Buffer \| .*?_NestedSequence\[complex \| bytes \| str\]")


def array_like_by_name(
    app: Any, what: str, name: str, thing: object, options: Any, signature: str | None, result: str
) -> tuple[str | None, str]:
    """Show numpy's ArrayLike by its name, not by its ten parts."""
    return signature and ARRAY.sub("ArrayLike", signature), result


def setup(app: Any) -> None:
    """Draw the pictures of the packages, and connect the two rewriters."""
    draw_architecture.main([])
    app.connect("source-read", drop_links_out_of_docs)
    app.connect("autodoc-process-signature", array_like_by_name)
    app.connect("autodoc-process-docstring", docstring_as_plain_text, priority=400)
