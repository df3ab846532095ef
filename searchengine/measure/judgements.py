"""Judging: questions as a search reads them, judgements from files, and run files.

Files are those of BEIR and TREC, or one question per line.

A line of a TREC run file is `question Q0 document rank score tag`, separated by white space.
trec_eval and the tools built on it ignore the rank: they sort by score in single precision, and
equal scores by document, the greatest name first. So the written scores fall strictly, and agree
with the ranks.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from searchengine.corpus.contents import bad, read_jsonl, read_lines, some_fields, suffix_of
from searchengine.corpus.documents import Document
from searchengine.engine import Mode, Query, Question, SearchEngine, corrected, split
from searchengine.errors import CorpusError

Qrels = dict[str, dict[str, int]]
"""Question → document → grade."""
Run = Mapping[str, Mapping[str, float]]
"""Question → document → score, best first; the scores of a question fall strictly."""

_MAX_SCORE = float(np.finfo(np.float32).max)


@dataclass(frozen=True, slots=True)
class Task:
    """Questions with their judgements.

    Attributes:
        queries: key → question; at least one, all of them judged.
        qrels: their judgements.
        documents: keys of questions that are documents of the collection, as in ArguAna; each is
            left out of its own results.
        notes: sentences about questions that were left out, and the like.
    """

    queries: Mapping[str, str]
    qrels: Qrels
    documents: frozenset[str] = frozenset()
    notes: tuple[str, ...] = ()

    @property
    def depth(self) -> int:
        """The ranks of a search that nDCG@10 needs: one is left out, the question itself."""
        return 10 + bool(self.documents)

    @property
    def keys(self) -> list[str]:
        """The keys of the questions."""
        return list(self.queries)

    def is_self(self, key: str, document: str) -> bool:
        """Whether a document is the question itself."""
        return key == document and key in self.documents


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
        raise bad(folder, "the folder has no queries.jsonl (.gz too), as BEIR's layout has")
    if qrels is None:
        known = ", ".join(splits(folder)) or "none"
        raise bad(folder, f"the folder has no qrels/{split}.tsv (.gz too); splits: {known}")
    return read_queries(queries), read_qrels(qrels)


def splits(folder: Path) -> list[str]:
    """The names of the judgements in a BEIR folder."""
    return sorted({file.name.split(".tsv")[0] for file in (folder / "qrels").glob("*.tsv*")})


def plain_or_gzipped(path: Path) -> Path | None:
    """The path, or the path with .gz appended; None if neither exists."""
    return next((file for file in (path, Path(f"{path}.gz")) if file.is_file()), None)


def _query_records(path: Path) -> Iterator[tuple[str, str, str]]:
    if suffix_of(path) in (".jsonl", ".ndjson"):
        for place, record in read_jsonl(path):
            if "_id" not in record:
                raise bad(place, f"the field '_id' is missing (fields: {some_fields(record)})")
            fields = {"_id": record["_id"], "text": record.get("text")}
            question = Document.from_mapping(fields, origin=place)  # which checks them
            yield place, question.key, question.text
    elif suffix_of(path) == ".txt":
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


def ranked(results: Iterable[tuple[str, float]]) -> dict[str, float]:
    """Documents and their scores, best first, as an entry of a Run.

    The order stays. A score, in single precision, that is not below its predecessor becomes the
    next smaller number. Repeated documents are left out.
    """
    falling: dict[str, float] = {}
    previous = np.float32(np.inf)
    for document, score in results:
        if document not in falling:
            single = np.float32(min(max(score, -_MAX_SCORE), _MAX_SCORE))
            previous = single if single < previous else np.nextafter(previous, np.float32(-np.inf))
            falling[document] = float(previous)
    return falling


def write_run(path: str | Path, run: Run, tag: str) -> None:
    """Write a run file.

    Raises CorpusError, before writing, for names with white space.
    """
    path = Path(path)
    check_names(
        path, tag=[tag], question=run, document={name for found in run.values() for name in found}
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        for question, results in run.items():
            for rank, (document, score) in enumerate(results.items(), start=1):
                file.write(f"{question} Q0 {document} {rank} {score:.9g} {tag}\n")


def check_names(path: Path, **columns: Iterable[str]) -> None:
    """Raise CorpusError, with `path`, for names with white space; column → its names."""
    for column, names in columns.items():
        for name in names:
            if name.split() != [name]:
                raise bad(
                    path,
                    f"the {column} must not contain white space, the separator of run files, got "
                    f"{name!r:.80}; rename it, or write no run file",
                )


def default_mode(engine: SearchEngine) -> Mode:
    """The mode of a search for a text that names none."""
    encodes = engine.encoder.encodes()
    return Mode(split((), Query(), engine.collection.settings, encodes)[0].mode)


def read_questions(
    engine: SearchEngine, texts: Iterable[str], mode: Mode
) -> tuple[list[Question], Sequence[str]]:
    """Questions as a search in a mode reads them, and the texts that it encodes."""
    query = Query(mode=mode)
    with engine.collection.reading() as snapshot:
        read = [corrected(snapshot, query, Question(text), engine._knows) for text in texts]
    return read, query.to_encode([each.text for each in read])
