"""searchengine evaluate …: encoders and collections against judgements."""

from dataclasses import asdict
from pathlib import Path

import click

from searchengine.cli.options import AS_JSON, COLLECTION, ENCODER, QUERIES, Numbers


@click.group()
def evaluate() -> None:
    """Measure an encoder or a collection against judgements."""


@evaluate.command()
@click.argument("pairs", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--encoder", default="starter", show_default=True, help="Model folder or hub name.")
@click.option("--prefixes", type=Numbers(), help="Prefix lengths [default: the model's own].")
@AS_JSON
def sts(pairs: tuple[Path, ...], encoder: str, prefixes: tuple[int, ...], as_json: bool) -> None:
    """Spearman correlation with human similarity scores, one row a prefix length.

    PAIRS are TSV files with the columns score, sentence1 and sentence2; several
    files are pooled into one set.

    \b
    Example:
        searchengine evaluate sts stsb_test.tsv --encoder my-model
    """
    from searchengine.console import progress, show_json, show_rows
    from trainer.encoder import Encoder
    from trainer.evaluation import read_sts
    from trainer.evaluation import sts as evaluate_sts

    scored = read_sts(pairs)
    model = Encoder.load(encoder)
    sentences = len({text for _, *both in scored for text in both})
    with progress("Encoding", sentences) as advance:
        rows = evaluate_sts(model, scored, prefixes or None, on_batch=advance)
    dicts = [asdict(row) for row in rows]
    show_json(dicts) if as_json else show_rows(dicts, f"{len(scored)} pairs, {encoder}")


@evaluate.command()
@COLLECTION
@QUERIES
@click.option("--qrels", required=True, type=click.Path(path_type=Path), help="Judgements: TSV.")
@click.option("--prefixes", type=Numbers(), help="Prefix lengths [default: the model's own].")
@click.option("--shortlist", default=100, show_default=True, type=click.IntRange(1))
@ENCODER
@AS_JSON
def retrieval(
    collection: Path,
    queries: Path,
    qrels: Path,
    prefixes: tuple[int, ...] | None,
    shortlist: int,
    encoder: str | None,
    as_json: bool,
) -> None:
    """nDCG@10 and recall@100 on judged questions, one row a prefix length.

    \b
    Example:
        searchengine evaluate retrieval my.index --queries q.jsonl --qrels test.tsv
    """
    from searchengine import evaluation
    from searchengine.console import progress, show_json, show_rows
    from searchengine.engine import SearchEngine

    asked, judged = evaluation.read_queries(queries), evaluation.read_qrels(qrels)
    with SearchEngine.open(collection, encoder) as engine:
        dims = prefixes or evaluation.default_dims(engine)
        with progress("Evaluating", len(dims)) as advance:
            rows = []
            for row in evaluation.retrieval(engine, asked, judged, dims, shortlist):
                rows.append(row.as_dict())
                advance(1)
    show_json(rows) if as_json else show_rows(rows, f"{collection}")
