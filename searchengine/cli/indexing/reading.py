"""Options of `index` and `encode`: the fields of records, and how documents are cut."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from searchengine.corpus.tabular import Columns

_CUTS = (
    click.option(
        "--overlap",
        type=click.IntRange(0),
        help="Tokens that passages share [default: an eighth of a passage].",
    ),
    click.option(
        "--passage-tokens",
        type=click.IntRange(0),
        help="Tokens per passage [default: as many as fit].",
    ),
    click.option(
        "--passages/--no-passages",
        default=None,
        help="Cut long documents into passages, or keep them whole [default: cut].",
    ),
)
_READS = (
    click.option("--skip-bad", is_flag=True, help="Skip malformed records and count them."),
    click.option("--id-field", metavar="NAME", help="Name of the key field [default: _id or id]."),
    click.option("--title-field", metavar="NAME", help="Name of the title field [default: title]."),
    click.option("--text-field", metavar="NAME", help="Name of the text field [default: text]."),
)


def cuts(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that `passages_of` reads."""
    for option in _CUTS:
        command = option(command)
    return command


def reads(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that `columns_of` reads, and `skip_bad`."""
    for option in _READS:
        command = option(command)
    return command


def columns_of(options: dict[str, Any], needs_text: bool) -> "Columns":
    """Take the fields of records from the options of a command."""
    from searchengine.corpus.tabular import Columns

    names = {name: options.pop(f"{name}_field") for name in ("text", "title", "id")}
    return Columns(**names, needs_text=needs_text)


def passages_of(options: dict[str, Any]) -> Any:
    """Take the passages from the options of a command; None: no preference."""
    from searchengine.ingest.passages import PassageConfig

    wanted = options.pop("passages")
    sizes = {"tokens": options.pop("passage_tokens"), "overlap": options.pop("overlap")}
    sizes = {name: value for name, value in sizes.items() if value is not None}
    if sizes and wanted is False:
        raise click.UsageError(
            "--no-passages keeps documents whole; leave out --passage-tokens and --overlap"
        )
    return PassageConfig(**sizes) if sizes else wanted
