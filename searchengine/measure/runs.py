"""TREC run files: search results of many questions, in the format of evaluation tools.

A line is `question Q0 document rank score tag`, separated by white space. trec_eval and the tools
built on it ignore the rank: they sort by score in single precision, and equal scores by document,
the greatest name first. So the written scores fall strictly, and agree with the ranks.
"""

import math
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

from searchengine.corpus.text_files import bad, read_lines

Run = Mapping[str, Mapping[str, float]]
"""Question → document → score, best first; the scores of a question fall strictly."""

_MAX_SCORE = float(np.finfo(np.float32).max)


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
    _check_name(path, "tag", tag)
    for question, results in run.items():
        check_names(path, [question], results)
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        for question, results in run.items():
            for rank, (document, score) in enumerate(results.items(), start=1):
                file.write(f"{question} Q0 {document} {rank} {score:.9g} {tag}\n")


def check_names(path: Path, questions: Iterable[str], documents: Iterable[str]) -> None:
    """Raise CorpusError, with `path`, for names with white space."""
    for question in questions:
        _check_name(path, "question", question)
    for document in documents:
        _check_name(path, "document", document)


def read_run(path: str | Path) -> Run:
    """Read a run file (.gz too), the documents of a question in trec_eval's order.

    Raises CorpusError, with file and line, for an invalid line and a repeated document.
    """
    path = Path(path)
    scored: dict[str, dict[str, float]] = {}
    for number, line in read_lines(path):
        cells = line.split()
        if not cells:
            continue
        score = _number(cells[4]) if len(cells) == 6 else None
        if score is None:
            expected = "expected question, Q0, document, rank, score and tag"
            raise bad(f"{path}:{number}", f"{expected}, got {line.strip()[:200]!r}")
        question, document = cells[0], cells[2]
        scores = scored.setdefault(question, {})
        if document in scores:
            message = f"documents must be unique per question, got {document!r:.80} twice"
            raise bad(f"{path}:{number}", f"{message} for {question!r:.80}")
        scores[document] = score
    if not scored:
        raise bad(path, "the run file has no lines; expected one per question and document")
    return {question: ranked(_sorted(scores)) for question, scores in scored.items()}


def _sorted(results: Mapping[str, float]) -> list[tuple[str, float]]:
    """Sort by score, then by document, both descending, as trec_eval does."""
    names = sorted(results, key=str.encode, reverse=True)  # C compares bytes
    with np.errstate(over="ignore"):
        scores = np.array([results[name] for name in names]).astype(np.float32)
    order = np.argsort(-scores, kind="stable")
    return [(names[i], results[names[i]]) for i in order]


def _number(cell: str) -> float | None:
    try:
        value = float(cell)
    except ValueError:
        return None
    return value if math.isfinite(value) and "_" not in cell else None


def _check_name(path: Path, column: str, name: str) -> None:
    if name.split() != [name]:
        raise bad(
            path,
            f"the {column} must not contain white space, the separator of run files, got "
            f"{name!r:.80}; rename it, or write no run file",
        )
