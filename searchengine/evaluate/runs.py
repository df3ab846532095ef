"""TREC run files: what a search found for many questions, as every evaluation tool reads it.

A line is `question Q0 document rank score tag`, with white space between. trec_eval, and what is
built on it, ignores the rank: it sorts by score in single precision, and equal scores by document,
the greatest name first. So scores are written that fall strictly, and ranks and scores agree.
"""

import math
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

from searchengine.corpus.lines import bad, read_lines

Run = Mapping[str, Mapping[str, float]]
"""Question → document → score, best first; the scores of a question fall strictly."""

_MOST = float(np.finfo(np.float32).max)


def ranked(found: Iterable[tuple[str, float]]) -> dict[str, float]:
    """Documents and their scores, best first, as an entry of a Run.

    The order stays. A score, in single precision, that is not below the one before it becomes the
    next number below that one. A document that comes again is left out.
    """
    falling: dict[str, float] = {}
    before = np.float32(np.inf)
    for document, score in found:
        if document not in falling:
            single = np.float32(min(max(score, -_MOST), _MOST))
            before = single if single < before else np.nextafter(before, np.float32(-np.inf))
            falling[document] = float(before)
    return falling


def write_run(path: str | Path, run: Run, tag: str) -> None:
    """Write a run file.

    Raises CorpusError, before anything is written, on names with white space in them.
    """
    path = Path(path)
    _check_name(path, "tag", tag)
    for question, found in run.items():
        check_names(path, [question], found)
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        for question, found in run.items():
            for rank, (document, score) in enumerate(found.items(), start=1):
                file.write(f"{question} Q0 {document} {rank} {score:.9g} {tag}\n")


def check_names(path: Path, questions: Iterable[str], documents: Iterable[str]) -> None:
    """Raise CorpusError, as of `path`, on names with white space in them."""
    for question in questions:
        _check_name(path, "question", question)
    for document in documents:
        _check_name(path, "document", document)


def read_run(path: str | Path) -> Run:
    """Read a run file (.gz too), the documents of a question in trec_eval's order.

    Raises CorpusError, with file and line, on what is no such line, and a document named twice.
    """
    path = Path(path)
    scored: dict[str, dict[str, float]] = {}
    for number, line in read_lines(path):
        cells = line.split()
        if not cells:
            continue
        score = _number(cells[4]) if len(cells) == 6 else None
        if score is None:
            what = "expected question, Q0, document, rank, score and tag with white space between"
            raise bad(f"{path}:{number}", f"{what}, got {line.strip()[:200]!r}")
        question, document = cells[0], cells[2]
        found = scored.setdefault(question, {})
        if document in found:
            what = f"the document {document!r:.80} comes twice for the question {question!r:.80}"
            raise bad(f"{path}:{number}", what)
        found[document] = score
    if not scored:
        raise bad(path, "no lines in it; a run has one for every document found")
    return {question: ranked(_sorted(found)) for question, found in scored.items()}


def _sorted(found: Mapping[str, float]) -> list[tuple[str, float]]:
    """By score, then by document, both falling, as trec_eval sorts."""
    names = sorted(found, key=str.encode, reverse=True)  # C compares bytes
    with np.errstate(over="ignore"):
        scores = np.array([found[name] for name in names]).astype(np.float32)
    order = np.argsort(-scores, kind="stable")
    return [(names[i], found[names[i]]) for i in order]


def _number(cell: str) -> float | None:
    try:
        value = float(cell)
    except ValueError:
        return None
    return value if math.isfinite(value) and "_" not in cell else None


def _check_name(path: Path, what: str, name: str) -> None:
    if name.split() != [name]:
        raise bad(
            path,
            f"the {what} {name!r:.80} holds white space, which separates the columns of a run "
            "file; name it otherwise, or write no run",
        )
