"""JSON files: an array of objects, or one object."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from searchengine.corpus.formats.decoding import decode
from searchengine.corpus.formats.parts import whole
from searchengine.corpus.lines import bad, parse_json


def read_json(path: Path, table: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Place and record of every object. Raises CorpusError for any other content."""
    text, _ = decode(whole(path), path)
    content = parse_json(text, str(path))
    if isinstance(content, dict):
        yield f"{path}:1", content
        return
    if not isinstance(content, list):
        what = f"expected an array of objects, or one object, got {type(content).__name__}"
        raise bad(path, what)
    for number, record in enumerate(content, start=1):
        if not isinstance(record, dict):
            what = f"element {number} of the array must be an object, got {type(record).__name__}"
            raise bad(path, what)
        yield f"{path}:{number}", record
