"""What is detected in texts of several languages, and what finds them: docs/searching.md.

    python benchmarks/languages.py german.jsonl korean.jsonl …

Each line of a file has a `text` and a `question` that this text answers. Measured were the
manual pages of Debian 12 (manpages-de, -fr, -es, -pl, -ru, -ja, -zh; questions are the descriptions
after their names), Korean passages with their headings as questions, functions of Python's library
with the first paragraph of their docstrings, and abstracts with their titles.
"""

import argparse
import json
import random
import tempfile
from pathlib import Path

import numpy as np

from searchengine import SearchEngine
from searchengine.corpus.analyzer import Analyzer
from searchengine.corpus.language_traits import EXCERPT, traits
from searchengine.ingest.languages import analyzer_for, weight_for
from searchengine.trainer.encoder import Encoder

QUESTIONS = 300


def gain(rank: int | None) -> float:
    """nDCG@10 of a question with one relevant document, at a rank from 0."""
    return 0.0 if rank is None or rank >= 10 else float(1 / np.log2(rank + 2))


def by_words(texts: list[str], questions: dict[int, str], analyzer: Analyzer) -> float:
    """nDCG@10 of BM25."""
    with (
        tempfile.TemporaryDirectory() as folder,
        SearchEngine.create(Path(folder) / "c", None, dim=1, tokenizer=str(analyzer)) as engine,
    ):
        documents = ({"_id": str(i), "text": text} for i, text in enumerate(texts))
        engine.add(documents, vectors=np.ones((len(texts), 1), np.float32))
        gains = []
        for i, question in questions.items():
            keys = [hit.key for hit in engine.search(question, 10, mode="text")]
            gains.append(gain(keys.index(str(i)) if str(i) in keys else None))
    return float(np.mean(gains))


def by_meaning(encoder: Encoder, texts: list[str], questions: dict[int, str]) -> float:
    """nDCG@10 of the exact cosine of the beginnings of the texts."""
    documents = encoder.encode(texts, role="document")
    vectors = encoder.encode(list(questions.values()), role="query")
    scores = vectors @ documents.T
    own = scores[np.arange(len(questions)), list(questions)]
    return float(np.mean([gain(int(rank)) for rank in (scores > own[:, None]).sum(1)]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--encoder", default="starter")
    arguments = parser.parse_args()
    encoder = Encoder.load(arguments.encoder)
    for file in arguments.files:
        records = [json.loads(line) for line in file.read_text().splitlines()]
        random.Random(0).shuffle(records)
        texts = [record["text"] for record in records]
        questions = {i: record["question"] for i, record in enumerate(records[:QUESTIONS])}
        sample = traits(texts[:64])
        codes = [each.language or "?" for each in sample]
        language = max(set(codes), key=codes.count)
        own = [text[:EXCERPT] for text, code in zip(texts, codes, strict=False) if code == language]
        chosen = analyzer_for(sample)
        analyzers = dict.fromkeys([*map(Analyzer.parse, ["stem:en", "unicode"]), chosen])
        print(
            f"{file.stem}: {codes.count(language)} of {len(codes)} are {language}, tokenizer "
            f"{chosen}, weight {weight_for(encoder, own)}; "
            f"nDCG@10 by meaning {by_meaning(encoder, texts, questions):.3f}, by words "
            + ", ".join(f"{each} {by_words(texts, questions, each):.3f}" for each in analyzers)
        )


if __name__ == "__main__":
    main()
