"""The texts of the benchmarks: abstracts of SciFact, mixed sentences, questions, and judgements."""

import gzip
import json
import random
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import ir_measures
import numpy as np
import numpy.typing as npt

from searchengine.corpus.files import read_corpus
from searchengine.measure.judgements import Qrels, read_qrels, read_queries

Vectors = npt.NDArray[np.float32]


def papers(data: Path) -> Iterator[Any]:
    """Titles and abstracts of papers."""
    return records(data / "text" / "papers_title_abstract.jsonl.gz")


def captions(data: Path) -> Iterator[list[str]]:
    """The five captions of each picture."""
    return (row["captions"] for row in records(data / "text/multi30k_captions_train.jsonl.gz"))


def records(path: Path) -> Iterator[Any]:
    """The records of a JSONL file, compressed or not."""
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8", newline="\n") as lines:
        yield from map(json.loads, lines)


def abstracts(data: Path, most: int | None = None) -> list[str]:
    """The first of SciFact, their titles in front."""
    documents = read_corpus(data / "beir" / "scifact")
    return [document.full_text for document in islice(documents, most)]


def sentences(data: Path, most: int | None = None) -> list[str]:
    """Distinct sentences, drawn at random with a fixed seed."""
    source = data / "text" / "sentences_mixed.tsv.gz"
    with gzip.open(source, "rt", encoding="utf-8", newline="\n") as file:
        lines = file.read().split("\n")[1:]
    found = [*dict.fromkeys(line.split("\t", 1)[1] for line in lines if "\t" in line)]
    return random.Random(0).sample(found, min(most or len(found), len(found)))


def questions(data: Path) -> list[str]:
    """Distinct questions of three retrieval sets, in a fixed disorder."""
    sets = [read_queries(path) for path in sorted((data / "beir").glob("*/queries.jsonl*"))]
    # What begins with "select" is a statement to txtai, not a question.
    texts = (text for some in sets for text in some.values() if text.strip())
    found = [*dict.fromkeys(text for text in texts if not text.lower().startswith("select"))]
    random.Random(0).shuffle(found)
    return found


class Judged:
    """The test questions of a BEIR set, and nDCG@10 of exact search with someone's vectors."""

    def __init__(self, data: Path, name: str = "scifact") -> None:
        folder = data / "beir" / name
        self.qrels: Qrels = read_qrels(folder / "qrels" / "test.tsv")
        queries = read_queries(folder / "queries.jsonl.gz")
        self.questions = [queries[key] for key in self.qrels]
        documents = [*read_corpus(folder)]
        self.keys = [document.key for document in documents]
        self.texts = [document.full_text for document in documents]

    def ndcg(self, questions: Vectors, documents: Vectors) -> float:
        """Of the ranking by inner products."""
        scores = questions @ documents.T
        best: Sequence[Sequence[int]] = np.argsort(-scores, axis=1, kind="stable")[:, :10]
        run = {
            question: {self.keys[row]: float(-rank) for rank, row in enumerate(rows)}
            for question, rows in zip(self.qrels, best, strict=True)
        }
        measure = ir_measures.nDCG @ 10
        return float(ir_measures.calc_aggregate([measure], self.qrels, run)[measure])
