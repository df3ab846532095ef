"""What commands print and write of rankings that were measured by judgements."""

import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from searchengine.cli.console import counted

if TYPE_CHECKING:
    from searchengine.engine import SearchEngine
    from searchengine.measure.differences import Worse
    from searchengine.measure.metrics import RetrievalRow, Setting
    from searchengine.measure.retrieval import Task

    Losses = Mapping[str, Sequence[Worse]]

_WIDTH = 100  # characters of a line that is not for a terminal
_LOSSES = "the questions that lost most nDCG@10, and the relevant documents that fell"


def compared(names: Sequence[str], base: str, row: str | None) -> list[str]:
    """Return the rows whose losses against the baseline --worst shows: one, or all."""
    if rows := [name for name in names if name != base and row in (None, name)]:
        return rows
    if row is not None:
        raise click.UsageError(
            f"--of {row} is the baseline itself; name another row, or another --baseline"
        )
    raise click.UsageError(
        f"--worst needs a second row to compare with {base}; add one, such as --mode vector,text"
    )


def losses(
    engine: "SearchEngine",
    task: "Task",
    settings: Sequence["Setting"],
    base: str,
    names: Sequence[str],
    count: int | None,
) -> "Losses":
    """Return the questions that each of the named rows lost against the baseline."""
    from searchengine.measure.differences import worst

    by_name = {setting.name: setting for setting in settings}
    return {name: worst(engine, task, by_name[name], by_name[base], count or 0) for name in names}


def as_dicts(rows: Sequence["RetrievalRow"], losses: "Losses") -> list[dict[str, Any]]:
    """Return the rows and their losses as plain values, ready for JSON."""
    from searchengine.measure.significance import significant

    dicts = [row.as_dict() for row in rows]
    for row in dicts:
        if row["setting"] in losses:
            row["worst"] = [significant(asdict(each)) for each in losses[row["setting"]]]
    return dicts


def fitting(rows: Sequence["RetrievalRow"]) -> list[dict[str, Any]]:
    """Return the table for the width of the terminal, elsewhere of 100 characters.

    A note names the columns that have no room.
    """
    from searchengine.cli.console import note
    from searchengine.measure.metrics import cells

    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else _WIDTH
    table = cells(rows, width)
    if dropped := [name for name in cells(rows)[0] if name not in table[0]]:
        note(f"not shown in {width} characters, but with --json: {', '.join(dropped)}")
    return table


def show(
    rows: Sequence["RetrievalRow"], table: Sequence[Mapping[str, Any]], losses: "Losses", title: str
) -> None:
    """Print the table, a legend, and the questions that lost."""
    from searchengine.cli.console import note, say, show_rows
    from searchengine.measure.significance import MIN_QUESTIONS

    show_rows(table, title)
    if few := rows[0].questions < MIN_QUESTIONS:
        note(
            f"{counted(rows[0].questions, 'question')}: too few for intervals; at least "
            f"{MIN_QUESTIONS} are needed"
        )
    base = next((row.baseline for row in rows if row.baseline is not None), None)
    if base is not None:
        note(
            f"difference: in nDCG@10, to {base}; p: paired randomisation test, corrected for "
            f"{counted(len(rows) - 1, 'comparison')} (Holm)"
            + ("" if few else "; […]: 95 % interval")
        )
    for name, questions in losses.items():
        say(f"\n{name} against {base}: " + (_LOSSES if questions else "no question lost"))
        for question in questions:
            scores = f"{question.before:.3f} → {question.after:.3f}"
            say(f"\n  {scores}  {question.key}: {question.question:.200}")
            for document in question.documents:
                after = "–" if document.after is None else document.after
                ranks = f"rank {document.before} → {after}"
                label = f"{document.key}  {document.title:.80}"
                say(f"      {ranks:<14} grade {document.grade}  {label}")


def write_runs(folder: Path, settings: Sequence["Setting"]) -> None:
    from searchengine.cli.console import note
    from searchengine.measure.runs import write_run

    for setting in settings:
        write_run(folder / f"{setting.name}.run", setting.run, setting.name)
    note(f"Written: {counted(len(settings), 'run')} in {folder}")
