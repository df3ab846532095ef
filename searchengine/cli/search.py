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
    FieldName,
    note_unknown_fields,
    open_engine,
    runs,
    sectioned,
)

_FACET_VALUES = 20  # values of a facet that are shown as text
_OPTIONS = (
    click.option("-k", default=10, help="Number of hits."),
    click.option("--where", help="Metadata filter: year >= 2015 and lang in ('en', 'ko')"),
    SHORTLIST,
    click.option("--exact", is_flag=True, help="Search exactly; slower."),
    click.option("--group-by", type=FieldName(), help="Show one hit per value of FIELD."),
    click.option(
        "--offset",
        type=click.IntRange(0),
        default=0,
        help="Number of hits to skip.",
    ),
    click.option("--min-score", type=float, help="Minimum score of a hit [default: none]."),
    click.option(
        "--timeout",
        type=click.FloatRange(0, min_open=True),
        metavar="SECONDS",
        help="Seconds the search may take, with the loading of its encoder [default: any].",
    ),
    AS_JSON,
)


_SHOWN = (
    click.option(
        "--facet",
        "facets",
        type=FieldName(),
        multiple=True,
        help="Count the values of FIELD over all documents that match the filter; repeatable.",
    ),
)
"""Of commands that show hits."""

_ASKED = (
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
)
"""Of commands that take a question."""


def _with(
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
            if (question := _read_as_option(words, error)) is None:
                raise error
            raise click.UsageError(
                f"{error.format_message()} To ask a question that begins with -, put -- "
                f"before it: {ctx.command_path} COLLECTION -- {shlex.quote(question)}",
                ctx,
            ) from error


def _read_as_option(words: list[str], error: click.UsageError) -> str | None:
    """Return the question that was parsed as an option, or None."""
    unknown = None
    if isinstance(error, click.NoSuchOption) and not error.possibilities:
        unknown = error.option_name
    for word in words:
        if word.startswith("-") and (" " in word or (unknown and word.startswith(unknown))):
            return word
    return None


_EXPLAINED = {
    "Which documents": "where group_by min_score offset k",
    "Order": "mode typo_tolerance phrases",
    "Effort": "shortlist exact timeout",
    "The encoder": "encoder runtime",
}
_SECTIONS = _EXPLAINED | {"Which documents": "where group_by min_score offset k facets"}


@click.command(cls=sectioned(_SECTIONS, _Asking))
@COLLECTION
@click.argument("question")
@_with(*_ASKED, *_OPTIONS, *_SHOWN)
@ENCODER
@runs
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
        hits = engine.search(question, k, **options)
        _show(hits, as_json, options)
        _explain_absence(engine, hits, options, question)


@click.command(cls=sectioned(_EXPLAINED, _Asking))
@COLLECTION
@click.argument("question")
@click.argument("key")
@_with(*_ASKED, *_OPTIONS)
@ENCODER
@runs
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
@_with(*_OPTIONS, *_SHOWN)
def similar(
    collection: Path | str, keys: tuple[str, ...], k: int, as_json: bool, **options: Any
) -> None:
    """Print the documents nearest to the document KEY, or to several, best first.

    \b
    Example:
        searchengine similar notes.index whales.txt -k 3
    """
    with open_engine(collection) as engine:
        hits = engine.similar(keys, k, **options)
        _show(hits, as_json, options)
        _explain_absence(engine, hits, options)


def _explain_absence(
    engine: Any, hits: Any, options: dict[str, Any], question: str | None = None
) -> None:
    """Print a note if there are no hits, or if a field of the options may be misspelt."""
    if not hits:
        note("no hits")
        required = engine.required_phrases(question, options["phrases"]) if question else ()
        if required and options["mode"] != Mode.VECTOR:
            quoted = " and ".join(f'"{phrase}"' for phrase in required)
            note(
                f"no document{' that matches' if options['where'] else ''} contains {quoted}; "
                "without --exact-phrases, and without + before it, a phrase only adds to the score"
            )
    fields = [options["group_by"], *options["facets"]]
    for field in dict.fromkeys(filter(None, fields)) if hits else ():
        note_unknown_fields(engine, field)


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


def _show(hits: Any, as_json: bool, options: dict[str, Any]) -> None:
    if as_json:
        facets = {
            name: [{"value": value, "count": count} for value, count in counts.items()]
            for name, counts in hits.facets.items()
        }
        found = {"hits": hits.to_dicts(), "facets": facets}
        names = ("exact", "notes", "replaced")
        show_json(found | {name: getattr(hits, name) for name in names})
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
