"""searchengine tune."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from searchengine.backends.mode import Mode
from searchengine.cli.console import note, say, show_json, show_rows, steps
from searchengine.cli.options import (
    AS_JSON,
    COLLECTION,
    ENCODER,
    Bytes,
    named,
    open_engine,
    runs,
)

if TYPE_CHECKING:
    from searchengine.measure.fusion_tuning import FusionTuning


@click.command()
@COLLECTION
@click.option("--target-recall", default=0.95, help="Minimum recall to guarantee, 0–1.")
@click.option(
    "-k",
    default=10,
    type=click.IntRange(1),
    help="Number of nearest neighbours that recall counts.",
)
@click.option(
    "--for",
    "objective",
    type=click.Choice(["latency", "throughput"]),
    default="latency",
    help="Cost to minimize: time of one question, or of many at once.",
)
@click.option(
    "--max-ram", type=Bytes(), help="Memory limit of rotation and index structure: 500MB, 2GiB."
)
@click.option(
    "--queries",
    type=click.Path(path_type=Path),
    help="File of typical questions: .jsonl or .txt [default: generated from documents].",
)
@click.option(
    "--qrels",
    type=click.Path(path_type=Path),
    help="File of judgements of the --queries (TSV): choose mode and weight instead.",
)
@click.option(
    "--apply",
    "point",
    metavar="FILE#NAME",
    help="Apply a point of a bench instead: results.json#recommended, or #NAME of any other.",
)
@ENCODER
@runs
@AS_JSON
@click.pass_context
def tune(
    ctx: click.Context,
    collection: Path,
    target_recall: float,
    k: int,
    objective: str,
    max_ram: int | None,
    queries: Path | None,
    qrels: Path | None,
    point: str | None,
    encoder: str | None,
    runtime: Any,
    as_json: bool,
) -> None:
    """Find and apply the cheapest index config that meets a recall target.

    Recall and time are those of searches by vectors (mode vector); mode hybrid makes
    such a search too, before it counts words. Half of the questions choose the config,
    the other half must confirm it. The collection is changed in one commit;
    docs/measuring.md explains the guarantee.

    With --qrels, choose how vectors and words are weighed instead, and whether the
    default mode is vector, text or hybrid: the one with the highest nDCG@10 on half of the judged
    questions, unless it is worse than before on the other half.

    With --apply, measure nothing: search by an operating point that bench has measured.

    \b
    Examples:
        searchengine tune my.index --target-recall 0.97 --queries questions.txt
        searchengine tune my.index --apply report/results.json#recommended
        searchengine tune my.index --queries questions.jsonl --qrels qrels.tsv
    """
    from searchengine.indexer.tuning.goal import Goal, Objective
    from searchengine.measure.judgements import read_queries

    if point is not None:
        _check_alone(ctx, "--apply", ("queries", "qrels"))
        _apply(collection, point, as_json)
        return
    if qrels is not None:
        if queries is None:
            raise click.UsageError("--qrels needs the questions; add --queries FILE")
        _check_alone(ctx, "--qrels")
        _tune_fusion(collection, queries, qrels, encoder, runtime, as_json)
        return
    goal = Goal(target_recall, k=k, objective=Objective(objective), max_ram=max_ram)
    questions = None if queries is None else list(read_queries(queries).values())
    with open_engine(collection, encoder, runtime=runtime) as engine, steps() as progress:
        tuning = engine.tune(questions, goal, on_step=note, building=progress)
        stats, default = engine.stats().described(), engine.default_mode
    if default is not Mode.VECTOR:
        note(f"recall and time are for mode vector; the default mode is {default}")
    if questions is None:
        note("the questions were generated from documents; --queries takes real ones")
    if as_json:
        values = {"config": tuning.config.as_dict()} | tuning.as_dict()
        show_json({"collection": named(collection), "operating_point": values, "fusion": None})
    else:
        rows = [
            point.as_dict() | {"chosen": "yes" if point.config == tuning.config else ""}
            for point in sorted(tuning.curve, key=lambda each: each.ms)
            if point.config.coarse_stage() == tuning.config.coarse_stage()
        ]
        tried = f"of {len(tuning.curve)} points measured by vectors (mode vector)"
        show_rows(rows, f"{named(collection)}: the chosen index config, {tried}")
        times = f"{tuning.ms:.2g} ms per query, and {tuning.question_ms:.2g} to encode it"
        say(f"{stats['tuning']}: {stats['index config']}; {times}")


def _check_alone(ctx: click.Context, option: str, others: tuple[str, ...] = ()) -> None:
    """Refuse options of a recall target, and others, beside an option."""
    goal = ("target_recall", "k", "objective", "max_ram")
    for parameter in ctx.command.params:
        given = ctx.get_parameter_source(str(parameter.name)) is ParameterSource.COMMANDLINE
        if given and parameter.name in (*goal, *others):
            raise click.UsageError(f"{parameter.opts[0]} does not go with {option}; leave one out")


def _apply(collection: Path | str, address: str, as_json: bool) -> None:
    """Rebuild a collection with an operating point of a bench."""
    from searchengine.engine import SearchEngine
    from searchengine.errors import QueryError
    from searchengine.measure.results import point_at

    row, subject = point_at(address)
    with SearchEngine.open(collection) as engine, steps() as progress:
        dim = engine.collection.settings["encoder"]["dim"]
        if subject["dim"] != dim:
            raise QueryError(
                f"{address} was measured on vectors of {subject['dim']} dimensions, and "
                f"{named(collection)} has {dim}; bench this collection"
            )
        if subject["path"] and Path(subject["path"]).name != Path(engine.collection.path).name:
            note(f"{address} was measured on {subject['path']}: other documents, other figures")
        engine.apply(row.config, building=progress)
        stats = engine.stats()
    if as_json:
        values = {"name": row.name, "config": dict(stats.index_config)}
        show_json({"collection": named(collection), "operating_point": values, "fusion": None})
        return
    say(f"{named(collection)} searches by {row.name}: {stats.described()['index config']}")


def _tune_fusion(
    collection: Path | str,
    queries: Path,
    qrels: Path,
    encoder: str | None,
    runtime: Any,
    as_json: bool,
) -> None:
    """Choose and apply mode and weight, and print the nDCG before and after."""
    from searchengine.engine import SearchEngine
    from searchengine.measure.fusion_tuning import tune_fusion
    from searchengine.measure.judgements import read_qrels, read_queries

    questions, judgements = read_queries(queries), read_qrels(qrels)
    with SearchEngine.open(collection, encoder, runtime=runtime) as engine, steps() as report:
        tuning = tune_fusion(engine, questions, judgements, progress=report)
    for sentence in tuning.notes:
        note(f"Note: {sentence}")
    if as_json:
        fusion = tuning.as_dict()
        show_json({"collection": named(collection), "operating_point": None, "fusion": fusion})
        return
    names = {
        "chosen": f"chosen: {_described(tuning.mode, tuning.weight)}",
        "default": f"before: {_described(tuning.before_mode, tuning.before_weight)}",
        "vector": "vectors alone",
        "text": "words alone",
    }
    rows = [{"ranking": names[name], "ndcg@10": f"{x:.3f}"} for name, x in tuning.ndcg_10.items()]
    show_rows(rows, f"{named(collection)}, {tuning.held_out} held-out questions")
    say(_conclusion(collection, tuning))


def _described(mode: str, weight: float) -> str:
    return f"hybrid, weight {weight:g}" if mode == "hybrid" else mode


def _conclusion(collection: Path | str, tuning: "FusionTuning") -> str:
    """Say what happened, in one sentence."""
    chosen = _described(tuning.mode, tuning.weight)
    best = f"the best of {len(tuning.curve)} weights on {tuning.fitted} questions"
    if tuning.mode == tuning.before_mode and tuning.weight == tuning.before_weight:
        return f"{named(collection)} stays as it is ({chosen}), which is {best}"
    compared = tuning.comparison
    p = "below 0.001" if compared.p < 0.001 else f"{compared.p:.3f}"
    held_out = (
        f"on {tuning.held_out} held-out ones {compared.difference:+.3f} nDCG@10 "
        f"(95 % interval {compared.low:+.3f} to {compared.high:+.3f}, p {p})"
    )
    if tuning.stored:
        return f"{named(collection)} ranks by {chosen}, from now on: {best}; {held_out}"
    return f"{named(collection)} was not changed: {chosen} is {best}, but {held_out}"
