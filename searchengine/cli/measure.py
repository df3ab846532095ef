"""Measure and tune: searchengine evaluate, bench, tune and learn."""

import tempfile
from contextlib import ExitStack
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

from searchengine.backends.mode import Mode
from searchengine.cli import options as opt
from searchengine.cli.console import counted, note, progress, say, show_json, show_rows, steps
from searchengine.cli.options import alone, command, named, open_engine
from searchengine.trainer.errors import TRAINING, install_line, require

QUERIES = opt.file("--queries", "File of questions: .jsonl or .txt.")
QRELS = opt.file("--qrels", "TSV file of judgements for the questions of --queries.")
TARGET = click.option("--target-recall", default=0.95, help="Minimum recall to guarantee, 0–1.")
NEIGHBOURS = click.option("-k", default=10, help="Number of nearest neighbours that recall counts.")
MODES = opt.separated(click.Choice([*map(str, Mode)]))


@click.group()
def evaluate() -> None:
    """Measure an encoder or a collection against judgements."""


@command(
    click.argument("files", nargs=-1, required=True, type=opt.FILE),
    opt.encoder("Model to compare; repeatable.", "encoders", multiple=True, default=("starter",)),
    opt.PREFIXES,
    example="evaluate sts sts12.tsv stsb_test.tsv",
    collection=False,
)
def sts(files: Any, encoders: Any, prefixes: Any, runtime: Any, as_json: bool) -> None:
    """Measure Spearman correlation with human similarity scores, and the vectors' geometry.

    Prints one row per task and prefix length, with 95 % intervals; alignment, uniformity and
    effective rank show how the vectors are spread. Each FILE is a task, with the columns score,
    sentence1 and sentence2.
    """
    from searchengine.trainer.encoder import Encoder
    from searchengine.trainer.evaluation.sts import StsTask, averages, sentences, sts_tasks
    from searchengine.trainer.training.examples import read_sts

    tasks = [StsTask(file.name.split(".")[0], read_sts([file])) for file in files]
    models = [(name, Encoder.load(name, **asdict(runtime))) for name in encoders]
    dicts: list[dict[str, Any]] = []
    with progress("Encoding", len(sentences(tasks)) * len(models)) as advance:
        for name, model in models:
            rows = sts_tasks(model, tasks, prefixes, advance)
            rows += averages(rows) if len(tasks) > 1 else []
            dicts += [{"encoder": name, "layers": model.layers} | asdict(row) for row in rows]
    title = counted(sum(len(task.pairs) for task in tasks), "pair")
    show_json(dicts) if as_json else show_rows(dicts, title)


@command(
    click.argument("files", nargs=-1, required=True, type=opt.FILE),
    opt.encoder("Model trained on labelled texts.", required=True),
    opt.PREFIXES,
    example="evaluate labels sst2_test.tsv --encoder my-model",
    collection=False,
)
def labels(files: Any, encoder: str, prefixes: Any, runtime: Any, as_json: bool) -> None:
    """Measure how accurately a model labels texts, one row per prefix length.

    An accuracy has its 95 % interval. FILES are CSV, TSV or JSONL with the columns text and label,
    pooled; labels that the model was not trained on count as wrong. The model must be trained with
    the objective classification (docs/training.md).
    """
    require("train", "evaluating labels", *TRAINING)
    from searchengine.trainer.encoder import Encoder
    from searchengine.trainer.evaluation.intervals import wilson
    from searchengine.trainer.training.examples import read_labelled

    texts, expected = zip(*read_labelled(files), strict=True)
    model = Encoder.load(encoder, **asdict(runtime))
    dims = model.matryoshka_dims if prefixes is None else prefixes
    with progress("Encoding", len(texts)) as advance:
        predicted = model.classify(texts, dims, on_batch=advance)
    rows, n = [], len(texts)
    for dim, found in zip(dims, predicted, strict=True):
        right = sum(a == b for a, b in zip(found, expected, strict=True))
        low, high = wilson(right, n)
        rows.append({"dim": dim, "accuracy": right / n, "n": n, "low": low, "high": high})
    show_json(rows) if as_json else show_rows(rows, f"{counted(n, 'text')}, {encoder}")


@command(
    click.option("--task", "names", required=True, multiple=True, help="mteb task; repeatable."),
    opt.MODEL,
    opt.PREFIXES,
    example="evaluate mteb --task SciFact --task STSBenchmark --prefixes 384,64",
    collection=False,
)
def mteb(names: Any, encoder: str, prefixes: Any, runtime: Any, as_json: bool) -> None:
    """Measure an encoder with tasks of mteb, one row per task and prefix length.

    Their data is downloaded. Prefixes are scaled to length one; every text is encoded once.
    """
    from searchengine.engine import load_given
    from searchengine.trainer.evaluation.mteb import evaluate, load_task

    tasks = [load_task(name) for name in names]  # all, before measuring any, which takes minutes
    model: Any = load_given(encoder, runtime)
    with progress("Encoding") as advance:
        rows = [asdict(row) for row in evaluate(model, tasks, prefixes, advance)]
    show_json(rows) if as_json else show_rows(rows, encoder)


@command(
    QUERIES,
    QRELS,
    click.option("--mode", "modes", type=MODES, help="Modes to compare [default: auto,vector]."),
    opt.PREFIXES,
    click.option("--baseline", metavar="ROW", help="Row to compare others with [default: exact]."),
    opt.file("--run-out", "Folder for a TREC run file per row.", metavar="DIR"),
    opt.ENCODER,
    example=(
        "evaluate retrieval my.index --queries q.jsonl --qrels test.tsv",
        "evaluate retrieval my.index --queries q.jsonl --qrels test.tsv --mode text,hybrid",
    ),
)
def retrieval(collection: str, run_out: Path | None, as_json: bool, **options: Any) -> None:
    """Measure nDCG@10, recall@100, MRR@10, MAP and success@1 on judged questions.

    The first row is the search that users of the collection get: the mode that it stores (--mode
    auto), marked as the default. The rows of mode vector are exact search, every prefix length with
    a shortlist, and "configured", the collection's operating point. Modes text and hybrid are one
    row each. docs/measuring.md explains intervals and p-values; --json has all measures.
    """
    from searchengine.measure import retrieval as evaluation
    from searchengine.measure.judgements import write_run
    from searchengine.measure.significance import cells, position, table

    modes, dims, baseline = (options.pop(name) for name in ("modes", "prefixes", "baseline"))
    with open_engine(collection, options) as engine:
        questions, judgements = _judged(**options)
        position(evaluation.names(engine, dims, modes), baseline)  # refused before measuring
        task = evaluation.task(engine, questions, judgements)
        for sentence in task.notes:
            note(f"Note: {sentence}")
        with steps() as report:
            settings = [*evaluation.measure(engine, task, dims, modes=modes, progress=report)]
        title = f"{named(collection)}, {counted(len(task.queries), 'question')}"
    rows = table(settings, baseline)
    show_json(rows) if as_json else show_rows(cells(rows), title)
    if run_out is not None:
        for setting in settings:
            write_run(run_out / f"{setting.name}.run", setting.run, setting.name)
        note(f"Written: {counted(len(settings), 'run')} in {run_out}")


def _judged(queries: Path | None, qrels: Path | None) -> tuple[dict[str, str], Any]:
    """Read questions and judgements."""
    from searchengine.measure.judgements import read_qrels, read_queries

    if queries is None or qrels is None:
        raise click.UsageError("questions and judgements are needed: --queries and --qrels")
    return read_queries(queries), read_qrels(qrels)


for each in (sts, labels, mteb, retrieval):
    evaluate.add_command(each)


@command(
    click.argument("collection", required=False, type=opt.PATH),
    QUERIES,
    QRELS,
    opt.file("--vectors", "Rows to search, a .npy file (n, D)."),
    opt.file("--query-vectors", "Queries for --vectors [default: some rows]."),
    NEIGHBOURS,
    TARGET,
    opt.file("--out", "Folder for a report.", metavar="DIR"),
    opt.ENCODER,
    example=("bench my.index --queries questions.txt --out report", "bench --vectors rows.npy"),
    collection=False,
)
def bench(target_recall: float, k: int, out: Path | None, as_json: bool, **source: Any) -> None:
    """Measure recall, latency and memory of operating points on your own data.

    It recommends the point that `searchengine tune` would apply, and with --out prints the command
    that applies it. The collection does not change. Recall and latency are those of searches by
    vectors, which mode hybrid makes too; nDCG@10 is that of the collection's default mode.

    --out writes a page, its plots and results.json, which is updated after every round; an
    interrupted bench keeps its results.
    """
    from searchengine.indexer.tuning.goal import Goal
    from searchengine.measure import results as report
    from searchengine.measure.bench import bench as run_bench

    if source["qrels"] is not None and k < 10:
        raise click.UsageError(f"--qrels needs -k 10 or more for nDCG@10, got {k}")
    goal, results = Goal(target_recall, k=k), None
    with ExitStack() as stack:
        dataset = _dataset(stack, **source)
        if out is not None:
            out.mkdir(parents=True, exist_ok=True)
            if find_spec("matplotlib") is None:
                note(f"Note: the page will have no plots; {install_line('plots')} adds them")
        for sentence in dataset.notes:
            note(f"Note: {sentence}")
        advance = stack.enter_context(steps())
        try:
            for results in run_bench(dataset, goal, advance):
                if out is not None:
                    results.write(out)
        finally:  # also after Ctrl-C
            if out is not None and results is not None:
                note(f"Written: {', '.join(map(str, report.write(results, out)))}")
    assert results is not None  # there is a round at least
    advice = filter(None, (report.sentence(results), report.command(results, out)))
    _print(results.as_dict(), results.table(), "\n".join(advice), as_json)


def _dataset(stack: ExitStack, collection: Any, vectors: Any, **options: Any) -> Any:
    """Open the collection or the vectors until the stack is closed."""
    from searchengine.indexer.config import SegmentConfig
    from searchengine.measure.bench import collection_dataset, vectors_dataset
    from searchengine.measure.judgements import read_qrels, read_queries

    if (collection is None) == (vectors is None):
        raise click.UsageError("name either a collection, or a file of rows: --vectors FILE.npy")
    if vectors is not None:
        alone("--vectors", "queries", "qrels", "encoder")
        scratch = stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-"))
        built = vectors_dataset(vectors, options["query_vectors"], SegmentConfig(), Path(scratch))
        return stack.enter_context(built)
    alone("a collection", "query_vectors")
    if options["queries"] is None:
        raise click.UsageError("a collection needs a file of questions: --queries questions.txt")
    qrels = options["qrels"] and read_qrels(options["qrels"])
    engine = stack.enter_context(open_engine(collection, options))
    questions = read_queries(options["queries"])
    return stack.enter_context(collection_dataset(engine, questions, qrels))


@command(
    TARGET,
    NEIGHBOURS,
    click.option("--max-ram", type=click.IntRange(1), metavar="MIB", help="Maximum memory read."),
    opt.file("--queries", "Typical questions [default: from documents]."),
    opt.file("--query-vectors", "Typical questions as vectors, a .npy file."),
    opt.file("--qrels", "Judgements of --queries: choose mode and weight."),
    click.option("--apply", "point", metavar="FILE#NAME", help="Point of a bench to apply."),
    opt.ENCODER,
    example=(
        "tune my.index --target-recall 0.97 --queries questions.txt",
        "tune my.index --apply report/results.json#recommended",
        "tune my.index --queries questions.jsonl --qrels qrels.tsv",
    ),
)
def tune(
    collection: str, queries: Any, qrels: Any, point: str | None, as_json: bool, **options: Any
) -> None:
    """Find and apply the cheapest index config that meets a recall target.

    Recall and time are those of searches by vectors (mode vector); mode hybrid makes such a search
    too, before it counts words. Half of the questions choose the config, the other half must
    confirm it. The collection is changed in one commit; docs/measuring.md explains the guarantee.

    With --qrels, choose how vectors and words are weighed instead, and whether the default mode is
    vector, text or hybrid: the one with the highest nDCG@10 on half of the judged questions, unless
    it is worse than before on the other half.

    With --apply, measure nothing: search by an operating point that bench has measured, such as
    results.json#recommended.
    """
    judged = _judged(queries, qrels) if qrels and not point else None
    with open_engine(collection, options) as engine, steps() as report:
        name = named(collection)
        if point:
            alone("--apply", "queries", "qrels", *options)
            values, rows, text = _apply(engine, point, report)
        elif judged:
            alone("--qrels", *options)
            values, rows, text = _tune_fusion(engine, judged, report)
        else:
            values, rows, text = _tune_index(engine, queries, options, report)
    values = {"collection": name, "operating_point": None, "fusion": None, **values}
    _print(values, rows, f"{name}: {text}", as_json)


def _print(value: dict[str, Any], rows: Any, text: str, as_json: bool) -> None:
    """Print a result: a JSON document, or a table and a sentence."""
    if as_json:
        show_json(value)
        return
    if rows:
        show_rows(rows)
    say(text)


def _tune_index(engine: Any, queries: Path | None, goal: dict[str, Any], report: Any) -> Any:
    """Find and apply an index config. The table has the points of its coarse stage."""
    from searchengine.indexer.tuning.goal import Goal
    from searchengine.ingest.supplied import read_vectors
    from searchengine.measure.judgements import read_queries

    goal |= {"recall": goal.pop("target_recall"), "max_ram": (goal["max_ram"] or 0) << 20 or None}
    questions: Any = None if queries is None else [*read_queries(queries).values()]
    if vectors := goal.pop("query_vectors"):
        alone("--query-vectors", "queries")
        questions = read_vectors(vectors)
    tuning = engine.tune(questions, Goal(**goal), on_step=note, building=report)
    stats, points = engine.stats().described(), sorted(tuning.curve, key=lambda each: each.ms)
    rows = [
        point.as_dict()
        | {"shortlist": min(point.config.shortlist, tuning.rows)}  # of all rows: their number
        | {"chosen": "yes" if point.config == tuning.config else ""}
        for point in points
        if point.config.coarse_stage() == tuning.config.coarse_stage()
    ]
    text = f"{stats['tuning']}: {stats['index config']}; {tuning.ms:.2g} ms per query"
    return {"operating_point": {"config": tuning.config.as_dict()} | tuning.as_dict()}, rows, text


def _tune_fusion(engine: Any, judged: tuple[Any, Any], report: Any) -> Any:
    """Choose and apply mode and weight. The table has the nDCG before and after."""
    from searchengine.measure.learning import tune_fusion

    fusion = tune_fusion(engine, *judged, progress=report)
    for sentence in fusion.notes:
        note(f"Note: {sentence}")
    rows = [{"ranking": name, "ndcg@10": value} for name, value in fusion.ndcg_10.items()]
    chosen = f"mode {fusion.mode}, weight {fusion.weight:g} of vectors"
    if (fusion.mode, fusion.weight) == (fusion.before_mode, fusion.before_weight):
        return {"fusion": asdict(fusion)}, rows, f"stays as it is ({chosen})"
    how = "from now on" if fusion.stored else "is not stored, though the best where it was chosen"
    text = f"{chosen} {how}; nDCG@10 of {fusion.held_out} held-out questions: {fusion.comparison}"
    return {"fusion": asdict(fusion)}, rows, text


def _apply(engine: Any, address: str, report: Any) -> Any:
    """Rebuild a collection with an operating point of a bench."""
    from searchengine.measure.results import point_at

    row = point_at(address, engine)
    engine.apply(row.config, building=report)
    stats = engine.stats()
    values = {"name": row.name, "config": dict(stats.index_config)}
    text = f"searches by {row.name}: {stats.described()['index config']}"
    return {"operating_point": values}, [], text


@command(
    QUERIES,
    QRELS,
    opt.ENCODER,
    example="learn my.index --queries q.jsonl --qrels train.tsv",
)
def learn(collection: str, queries: Any, qrels: Any, as_json: bool, **options: Any) -> None:
    """Learn from judged questions a map of the question's vector, and search by it.

    No document is encoded again. The map is stored if held-out questions find more, beyond doubt,
    in the default mode; docs/measuring.md shows what to expect.
    """
    from searchengine.measure import learning

    judged, name = _judged(queries, qrels), named(collection)
    with open_engine(collection, options) as engine, steps() as report:
        learnt = learning.learn(engine, *judged, progress=report)
    rows = [{"held-out questions": part, **means} for part, means in learnt.figures.items()]
    outcome = "searches by the map from now on" if learnt.stored else "was not changed"
    text = f"{name} {outcome}: nDCG@10 in mode {learnt.mode}, {learnt.comparison}"
    _print({"collection": name, **asdict(learnt)}, rows, text, as_json)


COMMANDS = (evaluate, bench, tune, learn)
