"""searchengine search, explain and similar."""

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from searchengine.backends.mode import Mode
from searchengine.cli.console import note, say, show_json
from searchengine.cli.options import (
    AS_JSON,
    COLLECTION,
    ENCODER,
    SHORTLIST,
    WHERE,
    note_unknown_fields,
    open_engine,
    runs,
)

_FACET_VALUES = 20  # values of a facet that are shown as text
_WHICH = (
    click.option("-k", default=10, help="Number of hits."),
    WHERE,
)
_PAGE = (
    click.option("--group-by", metavar="FIELD", help="Show one hit per value of FIELD."),
    click.option("--offset", type=click.IntRange(0), default=0, help="Number of hits to skip."),
    click.option("--min-score", type=float, help="Minimum score of a hit [default: none]."),
    click.option("--exact", is_flag=True, help="Search exactly; slower."),
)
_ORDER = (
    click.option(
        "--mode",
        type=click.Choice([mode.value for mode in Mode]),
        default=Mode.AUTO.value,
        help="Ranking by vectors, by words, by both, or as the collection was made for.",
    ),
    click.option(
        "--no-typo-tolerance",
        "typo_tolerance",
        flag_value=False,
        default=True,
        show_default=False,
        help="Leave words that no document has as they are, instead of replacing them by the "
        "nearest that documents have.",
    ),
    click.option(
        "--exact-phrases",
        "phrases",
        flag_value="required",
        default="scored",
        show_default=False,
        help='Find only documents with all phrases in quotation marks, as with +"…" for one of '
        "them.",
    ),
    SHORTLIST,
)


def _takes(
    *options: Callable[[Callable[..., None]], Callable[..., None]],
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add options to a command."""

    def add(command: Callable[..., None]) -> Callable[..., None]:
        for option in reversed(options):
            command = option(command)
        return command

    return add


class _Asking(click.Command):
    """A command with errors that say how to search for a question that begins with "-"."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments. Raises UsageError."""
        words = list(args)
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            unknown = None
            if isinstance(error, click.NoSuchOption) and not error.possibilities:
                unknown = error.option_name
            for word in words:
                if word.startswith("-") and (" " in word or (unknown and word.startswith(unknown))):
                    raise click.UsageError(
                        f"{error.format_message()} To ask a question that begins with -, put -- "
                        f"before it: {ctx.command_path} COLLECTION -- {shlex.quote(word)}",
                        ctx,
                    ) from error
            raise


@click.command(cls=_Asking)
@COLLECTION
@click.argument("question")
@_takes(*_WHICH, *_PAGE, *_ORDER)
@click.option(
    "--facet",
    "facets",
    metavar="FIELD",
    multiple=True,
    help="Count the values of FIELD over all documents that match the filter; repeatable.",
)
@ENCODER
@runs
@AS_JSON
def search(
    collection: Path | str,
    question: str,
    k: int,
    encoder: str | None,
    runtime: Any,
    as_json: bool,
    **options: Any,
) -> None:
    """Print the documents nearest to QUESTION, best first.

    \b
    Example:
        searchengine search notes.index "when do whales sleep" -k 3
    """
    with open_engine(collection, encoder, runtime=runtime) as engine:
        _show(engine, engine.search(question, k, **options), as_json, options, question)


@click.command(cls=_Asking)
@COLLECTION
@click.argument("question")
@click.argument("key")
@_takes(*_WHICH, *_ORDER)
@ENCODER
@runs
@AS_JSON
def explain(
    collection: Path | str,
    question: str,
    key: str,
    k: int,
    encoder: str | None,
    runtime: Any,
    as_json: bool,
    **options: Any,
) -> None:
    """Tell why a search finds the document KEY or not.

    The options are those of the search. Prints its ranks by vectors, words and prefix.

    \b
    Example:
        searchengine explain notes.index "when do whales sleep" whales.txt
    """
    with open_engine(collection, encoder, runtime=runtime) as engine:
        explanation = engine.explain(question, key, k, **options)
    if as_json:
        show_json(explanation.as_dict())
    else:
        say(str(explanation))


@click.command()
@COLLECTION
@click.argument("keys", metavar="KEY...", nargs=-1, required=True)
@_takes(*_WHICH, *_PAGE)
@AS_JSON
def similar(
    collection: Path | str, keys: tuple[str, ...], k: int, as_json: bool, **options: Any
) -> None:
    """Print the documents nearest to the document KEY, or to several, best first.

    \b
    Example:
        searchengine similar notes.index whales.txt -k 3
    """
    with open_engine(collection) as engine:
        _show(engine, engine.similar(keys, k, **options), as_json, options)


def _counted(counts: dict[Any, int]) -> str:
    """The most frequent values of a facet, on one line."""
    most = [f"{value} {count}" for value, count in list(counts.items())[:_FACET_VALUES]]
    if len(counts) > _FACET_VALUES:
        most.append(f"… and {len(counts) - _FACET_VALUES} more values; --json lists all")
    return ", ".join(most)


def _indented(hit: Any) -> str:
    """A hit as text; a snippet of code keeps its lines."""
    head, *lines = str(hit).split("\n")
    return "\n".join([head, *lines[:1], *(f"       {line}" for line in lines[1:])])


def _show(
    engine: Any, hits: Any, as_json: bool, options: dict[str, Any], question: str = ""
) -> None:
    """Print hits and facets; note why there are none, and fields that may be misspelt."""
    if as_json:
        facets = {
            name: [{"value": value, "count": count} for value, count in counts.items()]
            for name, counts in hits.facets.items()
        }
        names = ("exact", "notes", "replaced")
        noted = {name: getattr(hits, name) for name in names}
        show_json({"hits": hits.to_dicts(), "facets": facets} | noted)
    else:
        for hit in hits:
            say(_indented(hit))
        for name, counts in hits.facets.items():
            say(f"{name}: {_counted(counts)}")
    for word, new in hits.replaced.items():
        note(f"no document has {word!r}; searched for {new!r} instead (--no-typo-tolerance)")
    if options["exact"] and hits.exact:
        matching = " that match" if options["where"] else ""
        note(f"exact: these are the true {len(hits)} nearest{matching}")
    if not hits:
        note("no hits")
        phrases = engine.required_phrases(question, options["phrases"]) if question else ()
        if phrases and options["mode"] != Mode.VECTOR:
            quoted = " and ".join(f'"{phrase}"' for phrase in phrases)
            note(
                f"no document{' that matches' if options['where'] else ''} contains {quoted}; "
                "without --exact-phrases, and without + before it, a phrase only adds to the score"
            )
        return
    for field in dict.fromkeys(filter(None, [options["group_by"], *options.get("facets", ())])):
        note_unknown_fields(engine, field)
