"""Whether a search by description finds the function, in the Python files of this repository.

    python benchmarks/code_search.py

Questions are the first paragraphs of docstrings; the documents are the files without docstrings.
A hit is right if it is the function's file, and its passage and the function share half of the
shorter of the two. Compared are files cut like other texts, and function by function.
"""

import ast
import math
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import click
import numpy as np
from record import record

from searchengine import SearchEngine
from searchengine.corpus.files import read_corpus
from searchengine.corpus.formats.kinds import FileChoice
from searchengine.trainer.encoder import Encoder

ROOT = Path(__file__).parent.parent
FOLDERS = (
    "searchengine/query", "searchengine/ingest", "searchengine/corpus", "searchengine/backends",
    "indexer", "trainer/model",
)  # fmt: skip
WAYS = {"like other texts": FileChoice(frozenset({".py"})), "by function": FileChoice()}
_WORDS = 6  # of a question, at least: shorter ones describe nothing


class Question(NamedTuple):
    """A description, and where its function is: file, and offsets in its text."""

    text: str
    file: str
    start: int
    end: int


@click.command()
@click.option("--questions", "count", default=500, help="Number of questions.")
def main(count: int) -> None:
    """Measure recall@10 and nDCG@10 of functions and of files, before and after."""
    encoder = Encoder.load("starter")
    with tempfile.TemporaryDirectory() as scratch:
        corpus = Path(scratch) / "corpus"
        questions = [
            question
            for folder in FOLDERS
            for file in sorted((ROOT / folder).rglob("*.py"))
            for question in prepared(file, corpus)
        ]
        random.Random(0).shuffle(questions)
        questions = questions[:count]
        figures, gains = {}, {}
        for way, choice in WAYS.items():
            with SearchEngine.create(Path(scratch) / way, encoder) as engine:
                engine.add(read_corpus(corpus, choice=choice))
                click.echo(f"{way}: {engine.stats().passages} passages")
                for mode in ("vector", "text", "hybrid"):
                    scores = np.array([judged(engine, q, mode) for q in questions])
                    gains[way, mode] = scores
                    names = ("recall@10", "ndcg@10", "file recall@10", "file ndcg@10")
                    row = dict(zip(names, scores.mean(0).round(4).tolist(), strict=True))
                    figures[f"{way}, {mode}"] = row
                    click.echo(f"  {mode}: " + "  ".join(f"{n} {v:.3f}" for n, v in row.items()))
    rng = np.random.default_rng(0)
    for mode in ("vector", "text", "hybrid"):
        gain = gains["by function", mode] - gains["like other texts", mode]
        means = [gain[rng.integers(0, len(gain), len(gain))].mean(0) for _ in range(2000)]
        low, high = np.quantile(means, [0.025, 0.975], axis=0).round(3)
        click.echo(f"difference, {mode}: {list(zip(low.tolist(), high.tolist(), strict=True))}")
    record("code search", {"questions": len(questions), **figures})


def judged(engine: SearchEngine, question: Question, mode: str) -> tuple[float, ...]:
    """Recall@10 and nDCG@10 of the function, and of its file."""
    for rank, hit in enumerate(engine.search(question.text, 10, mode=mode)):
        if hit.key == question.file:
            gain = 1 / math.log2(rank + 2)
            shared = min(hit.end, question.end) - max(hit.start, question.start)
            shorter = min(hit.end - hit.start, question.end - question.start)
            found = 2 * shared >= shorter
            return float(found), found * gain, 1.0, gain
    return 0.0, 0.0, 0.0, 0.0


def prepared(file: Path, corpus: Path) -> Iterator[Question]:
    """Write a file without its docstrings; yields the questions about its functions."""
    text, name = file.read_text(encoding="utf-8"), file.relative_to(ROOT).as_posix()
    described = {path: ast.get_docstring(node) for path, node in functions(ast.parse(text), "")}
    bare = without_docstrings(text)
    target = corpus / name
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(bare, encoding="utf-8")
    starts = np.cumsum([0, *map(len, bare.splitlines(keepends=True))]).tolist()
    for path, node in functions(ast.parse(bare), ""):
        question = " ".join((described[path] or "").split("\n\n")[0].split())
        if len(question.split()) >= _WORDS and len(node.body) > 1:
            first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
            yield Question(question, name, starts[first - 1], starts[node.end_lineno or first])


def without_docstrings(text: str) -> str:
    """The source without docstrings."""
    lines = text.splitlines(keepends=True)
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Module)
    nodes = [n for n in ast.walk(ast.parse(text)) if isinstance(n, kinds) and ast.get_docstring(n)]
    for node in sorted(nodes, key=lambda node: -node.body[0].lineno):
        docstring = node.body[0]
        indent = " " * docstring.col_offset
        alone = [f"{indent}...\n"] if len(node.body) == 1 else []
        lines[docstring.lineno - 1 : docstring.end_lineno] = alone
    return "".join(lines)


def functions(
    node: ast.Module | ast.ClassDef, before: str
) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Functions and methods by qualified name."""
    for child in node.body:
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield before + child.name, child
        elif isinstance(child, ast.ClassDef):
            yield from functions(child, f"{before}{child.name}.")


if __name__ == "__main__":
    main()
