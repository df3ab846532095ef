"""searchengine repair."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from searchengine.cli.options import AS_JSON, COLLECTION, ENCODER, WAIT, runs


@click.command()
@COLLECTION
@click.option("--dry-run", is_flag=True, help="Report what is damaged and change nothing.")
@ENCODER
@runs
@WAIT
@AS_JSON
@click.pass_context
def repair(
    ctx: click.Context,
    collection: Path,
    dry_run: bool,
    encoder: str | None,
    runtime: Any,
    wait: float,
    as_json: bool,
) -> None:
    """Mend a damaged collection from the texts it stores.

    Damaged or missing segments are encoded again, indexes are built again, and a
    damaged documents.db is copied, row by row, into a new file. Exits with status 0
    if the collection is whole afterwards, else with 1.

    \b
    Example:
        searchengine repair notes.index --dry-run
        searchengine repair notes.index
    """
    from searchengine.cli.console import counted, say, show_json, steps
    from searchengine.maintenance.repair import repair as mend

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
