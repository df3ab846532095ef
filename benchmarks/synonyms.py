"""What synonyms win back: nDCG@10 by words, where documents say a word of the question otherwise.

    python benchmarks/synonyms.py

The rarest word of each question is replaced by another, made up, in a share of the documents that
have it, drawn at random, three times. The collection is searched without and with the pairs as
synonyms, and with synonyms that count as rare as they are, by several weights. The questions are
those that the weight was chosen on: SciFact train, NFCorpus dev, 300 each, and every other one of
Cranfield.
"""

import random
import re
import tempfile
from collections import Counter, defaultdict
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any
from unittest import mock

import click
import numpy as np
from hybrid import ndcg
from record import DATA, record

from searchengine import Document, SearchEngine
from searchengine.backends.folder import lexical
from searchengine.backends.folder.documents.questions import Word, runs
from searchengine.backends.folder.documents.synonyms import Added
from searchengine.backends.folder.documents.terms import terms_of
from searchengine.corpus.analyzer import Analyzer
from searchengine.corpus.files import read_corpus
from searchengine.measure.judgements import Qrels, judged, read_beir

SPLITS = {"scifact": "train", "nfcorpus": "dev", "cranfield": "test"}
QUESTIONS = 300
SHARES, WEIGHTS = (0.5, 0.9, 0.1), (1.0, 0.8, 0.6)
SEEDS = 3
USED = Analyzer.parse("porter")
WORD = re.compile(r"[^\W_]+")


@click.command()
@DATA
def main(data: Path) -> None:
    """Ask each set's questions of documents as they are, and with words replaced."""
    figures: dict[str, Any] = {}
    for name, split in SPLITS.items():
        folder = data / "beir" / name
        queries, qrels = read_beir(folder, split)
        queries = judged(queries, qrels)
        if name == "cranfield":
            queries = dict(islice(queries.items(), 0, None, 2))
        keys = random.Random(3).sample(list(queries), min(QUESTIONS, len(queries)))
        questions = {key: queries[key] for key in keys}
        documents = list(read_corpus(folder, on_bad=lambda _: None))
        figures[name] = measure(documents, questions, qrels)
        click.echo(f"{name}: {figures[name]}")
    record("synonyms", figures)


def measure(
    documents: list[Document], questions: Mapping[str, str], qrels: Qrels
) -> dict[str, dict[str, float]]:
    """nDCG@10 by the share of documents whose word is replaced, and by how synonyms count."""
    words = {word for document in documents for word in found(document)}
    terms = dict(zip(words, terms_of(USED).look_up([Word(word) for word in words]), strict=True))
    counts, forms = Counter[bytes](), defaultdict[bytes, set[str]](set)
    for word, cut in terms.items():
        if len(cut) == 1:
            forms[cut[0]].add(word)
    having = [{terms[word][0] for word in found(d) if len(terms[word]) == 1} for d in documents]
    for each in having:
        counts.update(each)
    rarest: dict[bytes, str] = {}
    for question in questions.values():
        asked = [(word, terms.get(word.lower(), ())) for word in runs(question) if len(word) >= 4]
        known = [(counts[cut[0]], word, cut[0]) for word, cut in asked if len(cut) == 1]
        if known := [each for each in known if each[0] >= 2]:
            _, word, term = min(known)
            rarest[term] = word
    of_form = {form: term for term in rarest for form in forms[term]}
    groups = [[word, made_up(term)] for term, word in rarest.items()]

    def changed(seed: int, share: float) -> list[Document]:
        draw = random.Random(seed)
        result = []
        for document, own in zip(documents, having, strict=True):
            swapped = {term for term in sorted(own & rarest.keys()) if draw.random() < share}

            def other(match: re.Match[str], swapped: set[bytes] = swapped) -> str:
                term = of_form.get(match.group().lower())
                return made_up(term) if term in swapped and term else match.group()

            title, text = (WORD.sub(other, part) for part in (document.title, document.text))
            result.append(Document(document.key, text, title))
        return result

    rows = {"0": {"clean": search(documents, questions, qrels, [], (1.0,))["without"]}}
    for share in SHARES:
        found_by_seed = [
            search(changed(seed, share), questions, qrels, groups, WEIGHTS) for seed in range(SEEDS)
        ]
        rows[str(share)] = {
            way: round(float(np.mean([found[way] for found in found_by_seed])), 4)
            for way in found_by_seed[0]
        }
    return rows


def found(document: Document) -> set[str]:
    """The words of a document, in lower case."""
    return {word.lower() for word in runs(f"{document.title} {document.text}")}


def made_up(term: bytes) -> str:
    """A word that no document has."""
    return f"syn{term.decode()}x"


def search(
    documents: list[Document],
    questions: Mapping[str, str],
    qrels: Qrels,
    groups: list[list[str]],
    weights: tuple[float, ...],
) -> dict[str, float]:
    """nDCG@10 by words: without synonyms, with them, and as rare as they are by their weight."""
    vectors = np.random.default_rng(0).standard_normal((len(documents), 8)).astype(np.float32)

    def score(engine: SearchEngine) -> float:
        batch = engine.search_batch([*questions.values()], 10, mode="text", typo_tolerance=False)
        keys = [[hit.key for hit in hits] for hits in batch]
        return round(ndcg([*questions], keys, qrels), 4)

    with (
        tempfile.TemporaryDirectory() as scratch,
        SearchEngine.create(Path(scratch) / "c", None, dim=8, tokenizer=str(USED)) as engine,
    ):
        engine.add(documents, vectors)
        scores = {"without": score(engine)}
        if groups:
            engine.set_synonyms(groups)
            scores["synonyms"] = score(engine)
        for weight in weights if groups else ():

            def uncapped(
                synonyms: Mapping[str, Added], *_: Any, weight: float = weight
            ) -> dict[str, float]:
                return {word: weight * each.share for word, each in synonyms.items()}

            with mock.patch.object(lexical, "_shares", uncapped):
                scores[str(weight)] = score(engine)
    return scores


if __name__ == "__main__":
    main()
