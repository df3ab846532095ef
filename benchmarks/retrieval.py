"""nDCG@10 by vectors, by words and by both: English sets, kinds of text, languages.

    python benchmarks/retrieval.py                      # SciFact, NFCorpus and Cranfield
    python benchmarks/retrieval.py --part kinds         # captions, halves of abstracts, functions
    python benchmarks/retrieval.py --part languages     # XQuAD, by both encoders
    python benchmarks/retrieval.py --part mixed         # three languages in one collection
    python benchmarks/retrieval.py --part across        # questions in another language

Every row is one of `searchengine evaluate retrieval` on test questions, with its 95 % interval and
its p-value against exact search. The English sets are whole documents by all-MiniLM-L6-v2: exact
search, prefixes with a shortlist, the collection as it is configured, BM25 alone, both fused, and a
prefix that is not rotated. The other parts are collections as `index` makes them: 3,000 captions
that are asked for by another of the same picture, second halves of 8,000 abstracts by the first,
and 6,000 functions of Python's standard library by the first line of their docstring, a thousand
questions each; and 240 passages with 1,190 questions a language. Some minutes a part on two cores,
most of them to encode; `--built DIR` keeps the collections for the next time.

Published nDCG@10 of all-MiniLM-L6-v2: 0.645 and 0.316 (MTEB results repository, commit f4cc6c8). Of
BM25: 0.665 and 0.325 with title and text as fields of their own (BEIR, Thakur et al. 2021), 0.679
and 0.322 as one (Pyserini), both with stems, k1 = 0.9 and b = 0.4. Ours has stems, k1 = 1.2,
b = 0.75, and counts words of titles twice.
"""

import ast
import json
import random
import sysconfig
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import click
from record import DATA, record, run_json
from texts import captions, papers, records

Rows = list[dict[str, Any]]
ENGLISH = ("scifact", "nfcorpus", "cranfield")
LANGUAGES = ("ar", "es", "ru", "th", "tr", "vi")
MIXED = ("es", "vi", "tr")
PAIRS = (("es", "vi"), ("es", "tr"), ("es", "th"), ("vi", "es"), ("tr", "es"), ("ru", "es"))
ALL_MODES = ("--mode", "vector,text,hybrid", "--prefixes", "256,128,64,32")
ASKED = 1000  # questions of each kind of text
USUAL = ("--mode", "vector,text,auto", "--prefixes", "64")


def english(data: Path, built: Path) -> Iterator[tuple[str, Rows]]:
    """Each set, and a prefix of it that is not rotated."""
    for name in ENGLISH:
        folder = data / "beir" / name
        whole = index(folder, built / name, "--passages", "0")
        yield name, evaluated(whole, folder, *ALL_MODES)
        bare = index(
            folder, built / f"{name}-bare", "--passages", "0", "--set", "rotation=identity"
        )
        yield f"{name}, not rotated", evaluated(bare, folder, "--prefixes", "64")


def kinds(data: Path, built: Path) -> Iterator[tuple[str, Rows]]:
    """Texts of other kinds, each the one answer to a question that is drawn from its source."""
    sources = {
        "captions": (((asked, found) for asked, found, *_ in captions(data)), 3000),
        "abstracts": (halves(data), 8000),
        "functions": (functions(), 6000),
    }
    for name, (pairs, count) in sources.items():
        folder = built / "texts" / name
        by_question = {question: answer for question, answer in pairs if question and answer}
        write_pairs(random.Random(0).sample([*by_question.items()], count), folder)
        yield name, evaluated(index(folder, built / name), folder, *USUAL)


def halves(data: Path) -> Iterator[tuple[str, str]]:
    """The words of an abstract, the first half and the second."""
    for words in (paper["text"].split() for paper in papers(data)):
        yield " ".join(words[: len(words) // 2]), " ".join(words[len(words) // 2 :])


def functions() -> Iterator[tuple[str, str]]:
    """The first line of each docstring of the standard library, and its function without it."""
    for path in sorted(Path(sysconfig.get_path("stdlib")).rglob("*.py")):
        if not {"site-packages", "test", "tests"}.isdisjoint(path.parts):
            continue
        with warnings.catch_warnings(action="ignore"):
            tree = ast.parse(path.read_bytes())
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and (said := ast.get_docstring(node)):
                node.body = node.body[1:] or [ast.Pass()]
                yield said.split("\n")[0], ast.unparse(node)


def write_pairs(pairs: Sequence[tuple[str, str]], folder: Path) -> None:
    """Write answers, and the first of the questions, as a BEIR folder: their place is their key."""
    questions, answers = (
        [{"_id": f"{i}", "text": text} for i, text in enumerate(texts)]
        for texts in zip(*pairs, strict=True)
    )
    judged = ["query\tdocument\tgrade", *(f"{i}\t{i}\t1" for i in range(ASKED))]
    write_beir(folder, answers, questions[:ASKED], judged)


def languages(data: Path, built: Path) -> Iterator[tuple[str, Rows]]:
    """Each language by each encoder."""
    for name in LANGUAGES:
        folder = data / "xquad" / name
        for encoder in ("starter", "multilingual"):
            collection = index(folder, built / f"{name}-{encoder}", "--encoder", encoder)
            yield f"{name}, {encoder}", evaluated(collection, folder, *USUAL)


def mixed(data: Path, built: Path) -> Iterator[tuple[str, Rows]]:
    """The questions of each of several languages that share a collection and a script."""
    for name in MIXED:
        write_prefixed(data / "xquad" / name, built / "texts" / name, name)
    for encoder in ("starter", "multilingual"):
        collection = built / f"mixed-{encoder}"
        for name in MIXED:  # what a kept collection has is not encoded again
            corpus = built / "texts" / name / "corpus.jsonl"
            run_json("index", corpus, collection, "--encoder", encoder)
        for name in MIXED:
            yield f"{name}, {encoder}", evaluated(collection, built / "texts" / name, *USUAL)


def across(data: Path, built: Path) -> Iterator[tuple[str, Rows]]:
    """Questions in one language over the passages of another: their keys are the same."""
    for asked, searched in PAIRS:
        folder, name = data / "xquad" / searched, f"{searched}-multilingual"
        collection = index(folder, built / name, "--encoder", "multilingual")
        yield f"{asked} → {searched}", evaluated(collection, data / "xquad" / asked, *USUAL)


PARTS: dict[str, Callable[[Path, Path], Iterator[tuple[str, Rows]]]] = {
    part.__name__: part for part in (english, kinds, languages, mixed, across)
}


def index(folder: Path, collection: Path, *how: str) -> Path:
    """A collection of a folder, which is made if it is not there."""
    if not collection.exists():
        run_json("index", folder, collection, *how)
    return collection


def evaluated(collection: Path, folder: Path, *how: str) -> Rows:
    q, judged = *folder.glob("queries.jsonl*"), *folder.glob("qrels/test.tsv*")
    command = ("evaluate", "retrieval", collection, "--queries", q, "--qrels", judged)
    return run_json(*command, *how)  # type: ignore[no-any-return]


def write_prefixed(source: Path, folder: Path, prefix: str) -> None:
    """Write a copy of a BEIR folder whose documents have keys with a prefix."""
    documents = [*records(source / "corpus.jsonl.gz")]
    for document in documents:
        document["_id"] = f"{prefix} {document['_id']}"
    header, *rows = (source / "qrels" / "test.tsv").read_text().splitlines()
    judged = [header, *(row.replace("\t", f"\t{prefix} ", 1) for row in rows)]
    write_beir(folder, documents, [*records(source / "queries.jsonl.gz")], judged)


def write_beir(folder: Path, documents: Rows, queries: Rows, judged: Sequence[str]) -> None:
    """Write a BEIR folder; `judged`: the lines of its judgements, the header first."""
    (folder / "qrels").mkdir(parents=True, exist_ok=True)
    for name, rows in (("corpus", documents), ("queries", queries)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "qrels" / "test.tsv").write_text("\n".join(judged) + "\n")


def shown(row: dict[str, Any]) -> str:
    """A row as a line."""
    low, high = row["intervals"]["ndcg@10"]
    line = f"{row['setting']:<10} ndcg@10 {row['ndcg@10']:.4f} ({low:.3f}–{high:.3f})"
    line += "".join(f"  {name} {row[name]:.4f}" for name in ("recall@100", "mrr@10", "map"))
    if row["p"] is None:
        return line
    return f"{line}  {row['difference']:+.4f} p {row['p']:.4f}"


@click.command()
@DATA
@click.option("--part", default="english", show_default=True, type=click.Choice([*PARTS]))
@click.option(
    "--built",
    "kept",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder of the collections; those that are there are used [default: a temporary folder].",
)
def main(data: Path, part: str, kept: Path | None) -> None:
    """Index, and evaluate on the test questions."""
    figures: dict[str, Rows] = {}
    with nullcontext(kept) if kept else tempfile.TemporaryDirectory() as place:
        for name, rows in PARTS[part](data, Path(place)):
            figures[name] = rows
            for row in rows:
                click.echo(f"{name} {shown(row)}")
    record("retrieval" if part == "english" else f"retrieval {part}", figures)


if __name__ == "__main__":
    main()
