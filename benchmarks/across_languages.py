"""nDCG@10 of questions in one language over the passages of another, by meaning and by default.

    python benchmarks/across_languages.py                 # six pairs of XQuAD, every sixth question

The passages and questions of XQuAD are the same in each language. The encoder is `multilingual`.
"""

import tempfile
from pathlib import Path

import click
from record import DATA, record

from searchengine import SearchEngine
from searchengine.corpus.files import read_corpus
from searchengine.measure.comparison import MAIN, per_question
from searchengine.measure.judgements import read_qrels, read_queries

PAIRS = (("es", "vi"), ("es", "tr"), ("es", "th"), ("vi", "es"), ("tr", "es"), ("ru", "es"))
WAYS = {"by meaning": "vector", "default": "auto"}


@click.command()
@DATA
@click.option("--every", default=6, show_default=True, help="Ask every n-th question.")
def main(data: Path, every: int) -> None:
    """Index each language once, and ask."""
    figures: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        engines = {}
        for language in sorted({language for _, language in PAIRS}):
            engine = SearchEngine.create(Path(scratch) / language, "multilingual")
            engine.add(read_corpus(data / "xquad" / language))
            engines[language] = engine
        for asked, searched in PAIRS:
            folder = data / "xquad" / asked
            questions = read_queries(folder / "queries.jsonl.gz")
            qrels = read_qrels(next((folder / "qrels").glob("*.tsv")))
            keys = [*qrels][::every]
            name = f"{asked} → {searched}"
            figures[name] = {}
            for way, mode in WAYS.items():
                run = {}
                for key in keys:
                    hits = engines[searched].search(questions[key], 10, mode=mode)
                    run[key] = {hit.key: hit.score for hit in hits}
                found = per_question(run, keys, qrels, [MAIN])[MAIN]
                figures[name][way] = round(float(found.mean()), 4)
            click.echo(f"{name}: {figures[name]}")
    record("across languages", figures)


if __name__ == "__main__":
    main()
