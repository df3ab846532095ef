"""searchengine encode."""

import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from searchengine.cli.console import Terminated
from searchengine.cli.indexing.reading import columns_of, cuts, passages_of, reads
from searchengine.cli.options import AS_JSON, LAYERS, runs


@click.command()
@click.argument("corpus")
@click.argument("output", type=click.Path(file_okay=False, path_type=Path))
@click.option(
    "--encoder",
    default="starter",
    metavar="PATH",
    help="Model folder, hub name, or URL#MODEL of an endpoint.",
)
@click.option(
    "--on",
    type=click.Choice(["local", "ray"]),
    default="local",
    help="Encode in this process, or as tasks of a Ray cluster.",
)
@click.option("--cpus", type=click.FloatRange(0.1), default=1, help="Processors of a task on Ray.")
@cuts
@reads
@click.option(
    "--prune", is_flag=True, help="Remove vectors of files that have changed or are gone."
)
@LAYERS
@runs
@AS_JSON
def encode(corpus: str, output: Path, as_json: bool, **options: Any) -> None:
    """Encode the documents of CORPUS into the folder OUTPUT.

    Then `searchengine index CORPUS COLLECTION --vectors OUTPUT` encodes nothing.
    CORPUS is a file or folder, as for `index`. Each file of it is encoded as a
    whole, a large file of JSON Lines in slices. After an interruption, or when
    files have changed, the same command encodes the rest. With --on ray, tasks
    run on the cluster of RAY_ADDRESS, on one that runs on this machine, or else
    on a new one; all machines must have this package, CORPUS and OUTPUT at the
    same paths. With --device cuda a task takes one GPU.

    \b
    Examples:
        searchengine encode papers.jsonl encoded/
        searchengine encode /shared/papers /shared/encoded --on ray --device cuda
        searchengine index papers.jsonl papers.index --vectors encoded/
    """
    from searchengine.cli.console import note, progress, show_json
    from searchengine.corpus.files import count_records
    from searchengine.ingest.bulk import EncodeOptions, Place, encode_corpus

    columns, passages = columns_of(options, needs_text=True), passages_of(options)
    loading = {name: options.pop(name) for name in ("encoder", "runtime", "layers")}
    on = Place(options.pop("on"))
    started = time.monotonic()
    try:
        with progress("Encoding", count_records(corpus)) as report:
            how = EncodeOptions(
                on=on, passages=passages, columns=columns, progress=report, **options
            )
            summary = encode_corpus(corpus, output, options=how, **loading)
    except (KeyboardInterrupt, Terminated) as error:
        note(f"Interrupted; the same command encodes what is missing in {output}")
        status = error.status if isinstance(error, Terminated) else 1
        raise click.exceptions.Exit(status) from None
    seconds = round(time.monotonic() - started, 2)
    if as_json:
        show_json({"output": str(output), **_counts(summary), "seconds": seconds})
        return
    _show(summary, output, seconds)


def _counts(summary: Any) -> dict[str, Any]:
    values = asdict(summary)
    unread = values.pop("unread")
    return values | {"unreadable": unread["failed"], "skipped": dict(unread["kinds"])}


def _show(summary: Any, output: Path, seconds: float) -> None:
    from searchengine.cli.console import counted, note
    from searchengine.cli.indexing.indexed import first_lines

    note(
        f"{counted(summary.documents, 'document')} in {counted(summary.passages, 'passage')} "
        f"encoded in {output}; {summary.encoded} of {counted(summary.parts, 'part')} now, "
        f"in {seconds} s"
    )
    for name, left_out in (("bad", summary.bad), ("unreadable", summary.unread.failed)):
        if left_out.count:
            note(f"{left_out.count} {name}, left out:{first_lines(left_out)}")
    if summary.others:
        note(
            f"{counted(summary.others, 'part')} of files that have changed, are gone, or are of "
            "another corpus; --prune removes them"
        )
    if sentence := summary.unread.sentence():
        note(sentence)
