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
import write_api  # noqa: E402

import searchengine  # noqa: E402

logging.getLogger("faiss").setLevel(logging.WARNING)

project = "searchengine"
author = "the searchengine authors"
project_copyright = f"{author}, MIT licence"
version = release = searchengine.__version__

extensions = ["myst_parser"]
exclude_patterns = ["build", "reports"]

myst_heading_anchors = 4

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


def setup(app: Any) -> None:
    """Draw the pictures of the packages, write the API, and connect the rewriter of links."""
    draw_architecture.main([])
    write_api.main()
    app.connect("source-read", drop_links_out_of_docs)
