"""Questions and judgements from files (BEIR, TREC, or one question per line)."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from searchengine.corpus.documents import Document
from searchengine.corpus.text_files import bad, kind, read_jsonl, read_lines, some_fields
from searchengine.errors import CorpusError

Qrels = dict[str, dict[str, int]]
"""Question → document → grade."""


def read_queries(path: str | Path) -> dict[str, str]:
    """Read key → question: .jsonl with `_id` and `text`, or .txt with one question per line."""
    path = Path(path)
    queries: dict[str, str] = {}
    for place, key, text in _query_records(path):
        if not text.strip():
            raise bad(place, "the question is empty")
        if key in queries:
            raise bad(place, f"keys of questions must be unique, got {key!r:.80} twice")
        queries[key] = text
    if not queries:
        raise bad(path, "the file has no questions")
    return queries


def judged(queries: Mapping[str, str], qrels: Qrels) -> dict[str, str]:
    """The questions that have judgements. Raises CorpusError if none has."""
    result = {key: text for key, text in queries.items() if key in qrels}
    if not result:
        raise CorpusError(
            "no question has a judgement; name questions and judgements of the same data set"
        )
    return result


def read_beir(folder: str | Path, split: str = "test") -> tuple[dict[str, str], Qrels]:
    """Read the questions and judgements of a BEIR folder: queries.jsonl and qrels/<split>.tsv.

    Both may end in .gz. Raises CorpusError if one is missing.
    """
    folder = Path(folder)
    queries = plain_or_gzipped(folder / "queries.jsonl")
    qrels = plain_or_gzipped(folder / "qrels" / f"{split}.tsv")
    if queries is None:
        raise bad(
            folder, "the folder has no queries.jsonl (.gz too); name a folder in BEIR's layout"
        )
    if qrels is None:
        files = sorted((folder / "qrels").glob("*.tsv*"))
        known = ", ".join(dict.fromkeys(file.name.split(".tsv")[0] for file in files)) or "none"
        raise bad(folder, f"the folder has no qrels/{split}.tsv (.gz too); splits: {known}")
    return read_queries(queries), read_qrels(qrels)


def plain_or_gzipped(path: Path) -> Path | None:
    """The path, or the path with .gz appended; None if neither exists."""
    return next((file for file in (path, Path(f"{path}.gz")) if file.is_file()), None)


def _query_records(path: Path) -> Iterator[tuple[str, str, str]]:
    if kind(path) in (".jsonl", ".ndjson"):
        for place, record in read_jsonl(path):
            if "_id" not in record:
                raise bad(place, f"the field '_id' is missing (fields: {some_fields(record)})")
            fields = {"_id": record["_id"], "text": record.get("text")}
            question = Document.from_mapping(fields, origin=place)  # which checks them
            yield place, question.key, question.text
    elif kind(path) == ".txt":
        for number, line in read_lines(path):
            if line.strip():
                yield f"{path}:{number}", str(number), line.strip()
    else:
        raise bad(path, "questions must be in a .jsonl or .txt file (.gz too)")


def read_qrels(path: str | Path) -> Qrels:
    """Read question → document → grade: TSV with a header (BEIR), or TREC's four columns."""
    path = Path(path)
    qrels: Qrels = {}
    for number, line in read_lines(path):
        cells = line.rstrip("\r\n").split("\t")
        cells = cells if len(cells) == 3 else line.split()
        if not cells or (number == 1 and not re.search(r"\d", cells[-1])):
            continue
        if len(cells) not in (3, 4) or not re.fullmatch(r"-?[0-9]{1,9}", cells[-1]):
            expected = "expected query-id, corpus-id and a whole-number score"
            raise bad(f"{path}:{number}", f"{expected}, got {line.strip()[:200]!r}")
        qrels.setdefault(cells[0], {})[cells[-2]] = int(cells[-1])
    if not qrels:
        raise bad(path, "the file has no judgements")
    return qrels
