"""searchengine info, verify, repair, optimize, tune, backup and export."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from searchengine.backends.mode import Mode
from searchengine.cli.measuring.fusing import tune_fusion
from searchengine.cli.options import (
    AS_JSON,
    COLLECTION,
    ENCODER,
    INDEXED,
    WAIT,
    Bytes,
    runs,
)
from searchengine.errors import QueryError

_NEW_FOLDER = click.argument("folder", type=click.Path(path_type=Path))


@click.command()
@COLLECTION
@runs
@AS_JSON
def info(collection: Path | str, runtime: Any, as_json: bool) -> None:
    """Show what a collection contains and how it is searched.

    \b
    Example:
        searchengine info my.index
    """
    from searchengine.cli.console import say, show_json
    from searchengine.engine import SearchEngine
    from searchengine.indexer.native.library import description

    with SearchEngine.open(collection, runtime=runtime) as engine:
        stats = engine.stats()
        run_by = {"runtime": engine.runs_on(), "kernel": description()}
    if as_json:
        former = {"recipe": stats.index_config, "engine": run_by["runtime"]}  # one more release
        show_json(asdict(stats) | run_by | former)
        return
    from searchengine.upkeep.tuning import described

    for name, value in (described(stats) | run_by).items():
        say(f"{name:12} {value}")


@click.command()
@COLLECTION
@click.option(
    "--encode",
    default=0,
    type=click.IntRange(0),
    help="Number of passages to encode again, to compare with their vectors.",
)
@ENCODER
@runs
@AS_JSON
def verify(collection: Path, encode: int, encoder: str | None, runtime: Any, as_json: bool) -> None:
    """Check every file of a collection against its checksum.

    \b
    Example:
        searchengine verify my.index
        searchengine verify my.index --encode 100
    """
    from searchengine.cli.console import counted, say, show_json
    from searchengine.engine import SearchEngine

    with SearchEngine.open(collection, encoder, runtime=runtime) as engine:
        encoded = engine.verify(encode=encode)
    if as_json:
        result = {"collection": str(collection), "whole": True}
        show_json(result | ({"encoded": encoded} if encode else {}))
    elif encode:
        passages = counted(encoded, "passage")
        say(f"{collection} is whole; {passages} encoded again: the vectors are the same")
    else:
        say(f"{collection} is whole")


@click.command()
@COLLECTION
@click.option("--dry-run", is_flag=True, help="Report the damage without changing anything.")
@ENCODER
@runs
@WAIT
@AS_JSON
@click.pass_context
def repair(
    ctx: click.Context,
    collection: Path | str,
    dry_run: bool,
    encoder: str | None,
    runtime: Any,
    wait: float,
    as_json: bool,
) -> None:
    """Repair a damaged collection from the texts it stores.

    Damaged or missing segments are encoded again, indexes are built again, and a
    damaged documents.db is copied, row by row, into a new file. The exit status is 0
    if the collection is whole afterwards, else 1.

    \b
    Example:
        searchengine repair notes.index --dry-run
        searchengine repair notes.index
    """
    from searchengine.backends.contract import folders_only
    from searchengine.backends.opening import name_of
    from searchengine.cli.console import counted, say, show_json, steps
    from searchengine.upkeep.repair import repair as mend

    if isinstance(collection, str):
        raise folders_only(name_of(collection))
    with steps() as report:
        done = mend(
            collection, encoder, dry_run=dry_run, wait=wait, runtime=runtime, progress=report
        )
    if as_json:
        show_json(asdict(done))
    else:
        checked = (
            f"{counted(done.documents, 'document')}, {counted(done.passages, 'passage')}, "
            f"{counted(done.segments, 'segment')}"
        )
        lines = [("checked", checked)]
        for name in ("found", "mended", "lost"):
            lines += [(name, sentence) for sentence in getattr(done, name)]
        if dry_run and done.encoded:
            lines.append(("to do", f"encode {counted(done.encoded, 'document')} again"))
        for name, sentence in lines:
            say(f"{name:8} {sentence}")
        say(f"{collection} is whole" if done.whole else f"not whole: {done.complaint}")
    if not done.whole:
        ctx.exit(1)


@click.command()
@COLLECTION
@click.option("--retune", is_flag=True, help="Tune the operating point again afterwards.")
@INDEXED
@ENCODER
@runs
@WAIT
@AS_JSON
def optimize(
    collection: Path,
    retune: bool,
    fields: tuple[str, ...],
    encoder: str | None,
    runtime: Any,
    wait: float,
    as_json: bool,
) -> None:
    """Rewrite all segments as one, without deleted rows and with a new rotation.

    The collection can be searched meanwhile.

    \b
    Example:
        searchengine optimize notes.index --field year
    """
    from searchengine.cli.console import counted, note, show_json, steps
    from searchengine.engine import SearchEngine
    from searchengine.indexer.errors import TuneError

    with SearchEngine.open(collection, encoder, wait=wait, runtime=runtime) as engine:
        before = engine.stats()
        if fields:
            engine.index_fields(*fields)
        try:
            with steps() as progress:
                engine.optimize(retune=retune, progress=progress)
        except (QueryError, TuneError) as error:  # from tuning, the last step
            raise type(error)(
                f"{collection} was optimized and keeps its operating point: {error}"
            ) from error
        after = engine.stats()
    if as_json:
        names = ("segments", "tombstones", "bytes")
        sizes = [{name: getattr(stats, name) for name in names} for stats in (before, after)]
        show_json({"collection": str(collection), "before": sizes[0], "after": sizes[1]})
        return
    note(
        f"{collection}: {counted(before.segments, 'segment')} became {after.segments}, "
        f"{counted(before.tombstones, 'deleted row')} dropped, "
        f"{before.bytes:,} bytes are now {after.bytes:,}"
    )


@click.command()
@COLLECTION
@click.option("--target-recall", default=0.95, help="Minimum recall to guarantee, 0–1.")
@click.option(
    "--confidence",
    default=0.95,
    help="Confidence that recall meets the target, 0–1.",
)
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
    "--threads", type=click.IntRange(1), help="Maximum number of threads [default: all cores]."
)
@ENCODER
@runs
@AS_JSON
@click.pass_context
def tune(
    ctx: click.Context,
    collection: Path,
    target_recall: float,
    confidence: float,
    k: int,
    objective: str,
    max_ram: int | None,
    queries: Path | None,
    qrels: Path | None,
    threads: int | None,
    encoder: str | None,
    runtime: Any,
    as_json: bool,
) -> None:
    """Find and apply the cheapest index config that meets a recall target.

    Recall and time are those of searches by vectors (mode vector); mode hybrid makes
    such a search too, before it counts words. Half of the questions choose the config,
    the other half must confirm it. The collection is changed in one commit;
    docs/tuning.md explains the guarantee.

    With --qrels, choose how vectors and words are weighed instead, and whether the
    default mode is vector, text or hybrid: what has the highest nDCG@10 on half of the
    judged questions, unless it is worse than before on the other half.

    \b
    Examples:
        searchengine tune my.index --target-recall 0.97 --queries questions.txt
        searchengine tune my.index --queries questions.jsonl --qrels qrels.tsv
    """
    from searchengine.cli.console import note, say, show_json, show_rows, steps
    from searchengine.engine import SearchEngine
    from searchengine.indexer.threads import threads as thread_budget
    from searchengine.indexer.tuning.tune import Goal, Objective
    from searchengine.upkeep.tuning import ladder, summary

    if threads is not None:
        thread_budget.limit = threads
    if qrels is not None:
        _check_alone(ctx)
        assert queries is not None
        tune_fusion(collection, queries, qrels, encoder, runtime, as_json)
        return
    goal = Goal(target_recall, confidence, k, Objective(objective), max_ram)
    questions = None
    if queries is not None:
        from searchengine.measure.judgements import read_queries

        questions = list(read_queries(queries).values())
    with SearchEngine.open(collection, encoder, runtime=runtime) as engine, steps() as progress:
        tuning = engine.tune(questions, goal, on_step=note, building=progress)
        dim, default = engine.stats().dim, engine.default_mode
    if default is not Mode.VECTOR:
        note(f"recall and time are those of mode vector; the default mode is {default}")
    if questions is None:
        note("the questions were generated from documents; --queries takes real ones")
    if as_json:
        config = {"config": tuning.config.as_dict()}
        show_json({"collection": str(collection), **config, **tuning.as_dict()})
    else:
        show_rows(
            ladder(tuning),
            f"{collection}: the efforts of the chosen config, of {tuning.tried} points measured "
            "by vectors (mode vector)",
        )
        say(summary(tuning, dim))


def _check_alone(ctx: click.Context) -> None:
    """Refuse --qrels without --queries, and with options of a recall target."""
    if ctx.params["queries"] is None:
        raise click.UsageError("--qrels needs the questions; add --queries FILE")
    options = {"target_recall": "--target-recall", "confidence": "--confidence", "k": "-k"}
    for name, flag in (options | {"objective": "--for", "max_ram": "--max-ram"}).items():
        if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise click.UsageError(f"{flag} belongs to a recall target; leave it or --qrels out")


@click.command()
@COLLECTION
@_NEW_FOLDER
@AS_JSON
def backup(collection: Path, folder: Path, as_json: bool) -> None:
    """Copy the last commit to a new FOLDER, while others read and write.

    \b
    Example:
        searchengine backup notes.index /backups/notes.index
    """
    from searchengine.cli.console import counted, note, show_json
    from searchengine.engine import SearchEngine

    with SearchEngine.open(collection) as engine:
        engine.backup(folder)
        copied = engine.stats()
    if as_json:
        counts = {"documents": copied.documents, "commit": copied.commit}
        show_json({"collection": str(collection), "folder": str(folder), **counts})
    else:
        note(f"{counted(copied.documents, 'document')} of {collection} copied to {folder}")


@click.command()
@COLLECTION
@_NEW_FOLDER
@AS_JSON
def export(collection: Path, folder: Path, as_json: bool) -> None:
    """Write documents.jsonl, passages.jsonl and vectors.npy to a new FOLDER.

    \b
    Example:
        searchengine export notes.index notes-export
    """
    from searchengine.cli.console import counted, note, show_json
    from searchengine.engine import SearchEngine

    with SearchEngine.open(collection) as engine:
        count = engine.export(folder)
    if as_json:
        result = {"folder": str(folder), "documents": count}
        show_json({"collection": str(collection), **result})
    else:
        note(f"{counted(count, 'document')} exported to {folder}")
