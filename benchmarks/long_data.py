"""A side of long_documents.py: long texts of real sentences, and what is asked about them.

Filler is the abstracts of papers, one after another. A needle is a caption of a picture, put
between two sentences of the filler; the question is another caption of the same picture. In a
concatenation of whole abstracts the question is the title of one of them. Papers and pictures are
divided: those of training are in no test, and test papers are the questions of
papers_test_queries.jsonl.
"""

import gzip
import json
import random
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from searchengine.corpus.sentences import sentence_ends
from searchengine.trainer.encoder import Encoder
from searchengine.trainer.evaluation.sts import read_sts

SHORTEST = 192  # tokens of a training text, at least
# Papers that fill test documents, and pictures that are asked about; of both the last ones of a
# shuffled list. The same number of pictures before them is for development.
TEST_FILLER, TEST_PICTURES = 6000, 2000


@dataclass(frozen=True, slots=True)
class Paper:
    key: str
    title: str
    text: str


@dataclass(frozen=True, slots=True)
class Sources:
    """What texts are made of, divided. Pictures are lists of captions."""

    papers: Sequence[Paper]
    test_filler: Sequence[Paper]
    test_papers: Sequence[Paper]
    pictures: Sequence[Sequence[str]]
    dev_pictures: Sequence[Sequence[str]]
    test_pictures: Sequence[Sequence[str]]


def normalised(text: str) -> str:
    return re.sub("[^a-z0-9]", "", text.lower())


def read_sources(data: Path) -> Sources:
    """Everything, without pictures of which a caption is a sentence of an STS or SICK test."""
    text = data / "text"
    asked = {
        line.split("\t")[1]
        for line in (text / "papers_test_qrels.tsv").read_text().splitlines()[1:]
    }
    papers = [
        Paper(row["_id"], row["title"], row["text"])
        for row in records(text / "papers_title_abstract.jsonl.gz")
    ]
    rest = [paper for paper in papers if paper.key not in asked]
    random.Random("papers").shuffle(rest)
    tests = [data / "sts" / name for name in ("stsb_test.tsv", "stsb_dev.tsv", "sickr_test.tsv")]
    tests += sorted((data / "sts").glob("sts1*.tsv"))
    known = {normalised(s) for _, a, b in read_sts(tests) for s in (a, b)}
    pictures = [
        row["captions"]
        for row in records(text / "multi30k_captions_train.jsonl.gz")
        if not known & {normalised(caption) for caption in row["captions"]}
    ]
    random.Random("pictures").shuffle(pictures)
    return Sources(
        papers=rest[:-TEST_FILLER],
        test_filler=rest[-TEST_FILLER:],
        test_papers=[paper for paper in papers if paper.key in asked],
        pictures=pictures[: -2 * TEST_PICTURES],
        dev_pictures=pictures[-2 * TEST_PICTURES : -TEST_PICTURES],
        test_pictures=pictures[-TEST_PICTURES:],
    )


def records(path: Path) -> Iterator[Any]:
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        yield from map(json.loads, lines)


class Writer:
    """Puts long texts together, counting tokens as the encoder does."""

    def __init__(self, encoder: Encoder):
        self._encoder = encoder
        self._counted: dict[str, tuple[list[str], list[int]]] = {}

    def sentences(self, text: str) -> tuple[list[str], list[int]]:
        """The sentences of a text and the tokens of each."""
        if text not in self._counted:
            ends = sorted({*sentence_ends(text), len(text)})
            parts = [text[a:b].strip() for a, b in zip([0, *ends], ends, strict=False)]
            parts = [part for part in parts if part]
            self._counted[text] = parts, self.tokens(parts)
        return self._counted[text]

    def tokens(self, texts: Sequence[str]) -> list[int]:
        return [len(spans) for spans in self._encoder.token_spans(texts)]

    def with_needle(self, filler: Iterable[Paper], needle: str, tokens: int, depth: float) -> str:
        """Sentences of the filler, at most `tokens` with the needle; depth: 0 is the beginning."""
        room = tokens - self.tokens([needle])[0]
        chosen: list[str] = []
        before = [0]
        for paper in filler:
            for sentence, count in zip(*self.sentences(paper.text), strict=True):
                if before[-1] + count > room:
                    break
                chosen.append(sentence)
                before.append(before[-1] + count)
            else:
                continue
            break
        nearest = min(range(len(before)), key=lambda i: abs(before[i] - depth * before[-1]))
        chosen.insert(nearest, needle)
        return " ".join(chosen)

    def concatenated(self, papers: Sequence[Paper], tokens: int) -> Iterator[list[Paper]]:
        """The papers in their order, as many at a time as have room in `tokens`."""
        batch: list[Paper] = []
        used = 0
        for paper in papers:
            count = sum(self.sentences(paper.text)[1])
            if batch and used + count > tokens:
                yield batch
                batch, used = [], 0
            batch.append(paper)
            used += count
        yield batch


def shuffled_forever(papers: Sequence[Paper], rng: random.Random) -> Iterator[Paper]:
    while True:
        yield papers[rng.randrange(len(papers))]


def write_pairs(
    sources: Sources, writer: Writer, path: Path, count: int, window: int, seed: int = 0
) -> None:
    """Training pairs of question and text.

    Of seven, four ask about a needle, and three with the title of a paper in a concatenation.
    """
    rng = random.Random(f"pairs {seed}")
    filler = shuffled_forever(sources.papers, rng)
    with path.open("w", encoding="utf-8") as file:
        for number in range(count):
            tokens = round(window * (SHORTEST / window) ** rng.random())
            if number % 7 < 4:
                captions = rng.sample(rng.choice(sources.pictures), 2)
                text = writer.with_needle(filler, captions[1], tokens, rng.random())
                pair = captions[0], text
            else:
                pair = titled(writer, filler, tokens, rng)
            file.write(json.dumps({"anchor": pair[0], "positive": pair[1]}) + "\n")


def titled(
    writer: Writer, filler: Iterator[Paper], tokens: int, rng: random.Random
) -> tuple[str, str]:
    """The title of one paper, and the abstracts of all."""
    papers = next(writer.concatenated([next(filler) for _ in range(16)], tokens))
    return rng.choice(papers).title, " ".join(paper.text for paper in papers)
