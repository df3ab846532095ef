"""searchengine evaluate retrieval --encoder A --encoder B: encoders on the same questions."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from searchengine.cli.console import counted
from searchengine.cli.measuring import judged
from searchengine.cli.measuring.evaluate import load_all, titles_of

if TYPE_CHECKING:
    from searchengine.corpus.documents import Document
    from searchengine.measure.judgements import Qrels
    from searchengine.measure.metrics import RetrievalRow

# Parameters that only say how a collection is searched.
_OF_COLLECTIONS = ("modes", "prefixes", "shortlist", "plots")


@dataclass(frozen=True, slots=True)
class Comparison:
    """What a user asks for; the fields are the options of the command."""

    encoders: tuple[str, ...]
    baseline: str | None
    worst: int | None
    worst_of: str | None
    exclude_self: bool | None
    run_out: Path | None


def only(encoders: Sequence[str]) -> str | None:
    """Return the encoder of a collection; None: the one that built it. Raises UsageError."""
    if len(encoders) > 1:
        raise click.UsageError(
            "a collection has one encoder; leave COLLECTION out to compare several on the "
            "documents of --beir FOLDER"
        )
    return encoders[0] if encoders else None


def folder(encoders: Sequence[str], beir: Path | None) -> Path:
    """Return the folder whose documents the encoders encode. Raises UsageError."""
    from searchengine.corpus.files import beir_corpus

    context = click.get_current_context()
    if not encoders:
        raise click.UsageError(
            "name a COLLECTION, or an --encoder for the documents of --beir FOLDER"
        )
    if repeated := next((name for name in encoders if encoders.count(name) > 1), None):
        raise click.UsageError(f"--encoder {repeated} is given twice; name another encoder")
    for parameter in context.command.params:
        given = context.get_parameter_source(parameter.name or "") is ParameterSource.COMMANDLINE
        if given and parameter.name in _OF_COLLECTIONS:
            raise click.UsageError(
                f"{parameter.opts[0]} needs a COLLECTION; without one, encoders are compared by "
                "exact search at full width"
            )
    if beir is None:
        raise click.UsageError(
            "--encoder without a COLLECTION needs --beir FOLDER, whose documents are encoded"
        )
    if beir_corpus(beir) is None:
        raise click.UsageError(
            f"{beir} has no corpus.jsonl (.gz too), whose documents the encoders encode; name a "
            "folder in BEIR's layout, or a COLLECTION"
        )
    return beir


def compare(
    wanted: Comparison,
    folder: Path,
    queries: Mapping[str, str],
    qrels: "Qrels",
    *,
    runtime: Any,
    as_json: bool,
) -> None:
    """Measure the encoders on the documents of a BEIR folder, and print how they differ."""
    from searchengine.cli.console import note, say, show_json, steps
    from searchengine.corpus.files import count_records
    from searchengine.measure.encoders import by_encoders, conclusion
    from searchengine.measure.formatting import fitted
    from searchengine.measure.metrics import table

    titles = titles_of(wanted.encoders)
    names = list(titles.values())
    base = names[0] if wanted.baseline is None else _named(titles, wanted.baseline)
    compared = _compared(titles, base, wanted)
    if wanted.run_out is not None:
        _check_runs(wanted.run_out, names, queries)
    encoders = {titles[name]: model for name, model in load_all(wanted.encoders, None, runtime)}
    total = count_records(folder)
    with steps() as report:
        with by_encoders(
            encoders,
            lambda: _documents(folder, wanted.run_out),
            queries,
            qrels,
            exclude_self=wanted.exclude_self,
            progress=lambda name, done: report(f"Encoding by {name}", done, total),
        ) as (engine, task, settings):
            losses = judged.losses(engine, task, settings, base, compared, wanted.worst)
    for sentence in task.notes:
        note(f"Note: {sentence}")
    rows = table(settings, base)
    conclusions = [conclusion(row) for row in rows]
    if as_json:
        dicts = judged.as_dicts(rows, losses)
        for fields, encoder, shown in zip(dicts, wanted.encoders, conclusions, strict=True):
            fields |= {"encoder": encoder, "conclusion": shown}
        show_json(dicts)
    else:
        for shown in filter(None, conclusions):
            say(shown, bold=True)
        title = f"{folder}, {counted(len(task.queries), 'question')}"
        judged.show(rows, fitted([_cells(row) for row in rows], None, ()), losses, title)
    if wanted.run_out is not None:
        judged.write_runs(wanted.run_out, settings)


def _named(titles: Mapping[str, str], name: str) -> str:
    """Return the row of an encoder, named as in --encoder or as in the table."""
    from searchengine.measure.metrics import position

    names = list(titles.values())
    return names[position(names, titles.get(name, name))]


def _compared(titles: Mapping[str, str], base: str, wanted: Comparison) -> list[str]:
    """Return the encoders whose losses against the baseline --worst shows."""
    row = None if wanted.worst_of is None else _named(titles, wanted.worst_of)
    if wanted.worst is None:
        return []
    if len(titles) == 1:
        raise click.UsageError("--worst needs a second encoder to compare with; add --encoder")
    return judged.compared(list(titles.values()), base, row)


def _check_runs(folder: Path, names: Sequence[str], queries: Mapping[str, str]) -> None:
    """Refuse names that a run file cannot have or contain before encoding."""
    from searchengine.measure.runs import check_names

    check_names(folder, queries, ())
    for name in names:
        if name != Path(name).name or name.split() != [name]:
            raise click.UsageError(
                f"--run-out names files by encoders, and {name!r} is no name of a file; give "
                "folders whose last parts differ and have no white space"
            )


def _documents(folder: Path, run_out: Path | None) -> Iterator["Document"]:
    """Read the documents, and refuse keys that a run file cannot contain."""
    from searchengine.corpus.files import read_corpus
    from searchengine.measure.runs import check_names

    for document in read_corpus(folder):
        if run_out is not None:
            check_names(run_out, (), [document.key])
        yield document


def _cells(row: "RetrievalRow") -> dict[str, Any]:
    """The row as text, for a terminal of 80 columns: --json has the other metrics."""
    cells, comparison = row.as_cells(), row.comparison
    difference = None
    if comparison is not None and not row.intervals:
        difference = cells["difference"]
    elif comparison is not None:
        difference = f"{cells['difference']} [{comparison.low:+.3f} to {comparison.high:+.3f}]"
    return {
        "encoder": cells["setting"],
        "ndcg@10": cells["ndcg@10"],
        "difference": difference,
        "p": cells["p"],
    }
