"""Parts of the site: API pages, contents, names of files."""

import importlib
import re
from pathlib import Path

import pytest
from conftest import REPOSITORY

DOCS = REPOSITORY / "docs"


def test_the_pages_of_the_api_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(DOCS)
    api = importlib.import_module("write_api")
    api.main(tmp_path / "api")
    assert {page.stem for page in (tmp_path / "api").iterdir()} == {*api.PAGES, "index"}
    engine = (tmp_path / "api" / "engine.md").read_text()
    assert engine.startswith("# searchengine\n\n## SearchEngine\n")
    assert "\n### SearchEngine.search\n" in engine


def test_files_that_pages_name_are_there() -> None:
    for page in (REPOSITORY / "CONTRIBUTING.md", *DOCS.glob("*.md")):
        named = r"`((?:searchengine|trainer|indexer|tests|benchmarks|docs)/[\w./-]+)`"
        for name in re.findall(named, page.read_text()):
            assert (REPOSITORY / name).exists(), (page.name, name)


def test_every_page_is_in_the_contents() -> None:
    contents = (DOCS / "index.md").read_text()
    for page in DOCS.glob("*.md"):
        listed = rf"^{page.stem}$|<{page.stem}>$"
        assert page.stem == "index" or re.search(listed, contents, re.MULTILINE), page.name
