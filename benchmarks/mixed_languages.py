"""nDCG@10 of each language in a collection of several in one script, by words and by default.

    python benchmarks/mixed_languages.py                  # three of XQuAD, every third question

The passages of Spanish, Vietnamese and Turkish are in one collection for each encoder.
"""

import tempfile
from dataclasses import replace
from pathlib import Path

import click
from record import DATA, record

from searchengine import SearchEngine
from searchengine.corpus.files import read_corpus
from searchengine.measure.comparison import MAIN, per_question
from searchengine.measure.judgements import read_qrels, read_queries

LANGUAGES = ("es", "vi", "tr")
WAYS = {"by words": "text", "default": "auto"}


@click.command()
@DATA
@click.option("--every", default=3, show_default=True, help="Ask every n-th question.")
def main(data: Path, every: int) -> None:
    """Index all languages once by each encoder, and ask."""
    figures: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        for encoder in ("starter", "multilingual"):
            engine = SearchEngine.create(Path(scratch) / encoder, encoder)
            read = [read_corpus(data / "xquad" / language) for language in LANGUAGES]
            engine.add(
                replace(document, key=f"{language} {document.key}")
                for passage in zip(*read, strict=True)
                for language, document in zip(LANGUAGES, passage, strict=True)
            )
            for language in LANGUAGES:
                folder = data / "xquad" / language
                questions = read_queries(folder / "queries.jsonl.gz")
                qrels = {
                    question: {f"{language} {key}": grade for key, grade in judged.items()}
                    for question, judged in read_qrels(folder / "qrels" / "test.tsv").items()
                }
                keys = [*qrels][::every]
                found: dict[str, float] = {}
                for way, mode in WAYS.items():
                    run = {}
                    for key in keys:
                        hits = engine.search(questions[key], 10, mode=mode)
                        run[key] = {hit.key: hit.score for hit in hits}
                    gains = per_question(run, keys, qrels, [MAIN])[MAIN]
                    found[way] = round(float(gains.mean()), 4)
                figures[f"{language}, {encoder}"] = found
                click.echo(f"{language}, {encoder}: {found}")
            engine.close()
    record("mixed languages", figures)


if __name__ == "__main__":
    main()
