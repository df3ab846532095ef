"""Find documents: searchengine search, similar, explain, get, list and duplicates."""

import json
from collections.abc import Sequence
from enum import StrEnum
from typing import Any, get_args, get_origin, get_type_hints

import click

from searchengine.cli import options as opt
from searchengine.cli.console import counted, note, say, show_json, show_json_items, steps
from searchengine.cli.options import command, open_engine

_FACET_VALUES = 20  # values of a facet that are shown as text
_SHOWN = 80  # characters of a text in a line of `list`
_FLAGS = {
    "exact": ("--exact", True),
    "typo_tolerance": ("--no-typo-tolerance", False),
    "phrases": ("--exact-phrases", "required"),
}
"""Field of Query → the option that gives it another value than the default."""
_PAGE = ("k", "where", "group_by", "offset", "min_score", "exact")
_ORDER = ("mode", "typo_tolerance", "phrases", "shortlist")


def _query_option(name: str) -> click.Option:
    """The option of a field of Query, with its type, sentence and default."""
    from searchengine.query.request import Query

    kind, help = get_args(get_type_hints(Query, include_extras=True)[name])
    default, kinds = getattr(Query(), name), get_args(kind) or (kind,)
    option = "-k" if name == "k" else f"--{name.removesuffix('s').replace('_', '-')}"
    if name in _FLAGS:
        option, value = _FLAGS[name]
        flag: dict[str, Any] = {"flag_value": value, "show_default": False}
        help = help if value else f"Do not {help[0].lower()}{help[1:]}"
        return click.Option([option, name], default=default, help=help, **flag)
    if get_origin(kind) is Sequence:
        return click.Option([option, name], multiple=True, help=f"{help} Repeatable.")
    if issubclass(kinds[0], StrEnum):
        return click.Option(
            [option], type=click.Choice([*map(str, kinds[0])]), default=default.value, help=help
        )
    return click.Option([option, name], type=kinds[0], default=default, help=help)


class _Asking(click.Command):
    """A command with options of a search.

    Attributes:
        fields: those of Query; their options need numpy, so they are made when they are needed.
    """

    fields: tuple[str, ...] = ()

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Return the parameters, those of a search after the arguments."""
        if self.fields:
            at = sum(isinstance(parameter, click.Argument) for parameter in self.params)
            self.params[at:at] = [_query_option(name) for name in self.fields]
            self.fields = ()
        return super().get_params(ctx)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments. Raises UsageError."""
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            way = "before a question that begins with -, and behind all options, put --"
            raise click.UsageError(f"{error.format_message().rstrip('.?')}; {way}", ctx) from error


def _asking(*fields: str) -> type[_Asking]:
    return type("Asking", (_Asking,), {"fields": fields})


_QUESTION = click.argument("question")
_KEYS = click.argument("keys", metavar="KEY...", nargs=-1, required=True)
_NO_TEXTS = opt.flag("--no-texts", "With --json: hits without their texts.")


@command(
    _QUESTION,
    opt.ENCODER,
    _NO_TEXTS,
    cls=_asking(*_PAGE, "facets", *_ORDER),
    example='search notes.index "when do whales sleep" -k 3',
)
def search(collection: str, question: str, **options: Any) -> None:
    """Print the documents nearest to QUESTION, best first."""
    shown = {name: options.pop(name) for name in ("no_texts", "as_json")}
    with open_engine(collection, options) as engine:
        _show(engine.search(question, **options), **shown)


@command(_KEYS, _NO_TEXTS, cls=_asking(*_PAGE), example="similar notes.index whales.txt -k 3")
def similar(collection: str, keys: tuple[str, ...], **options: Any) -> None:
    """Print the documents nearest to the document KEY, or to several, best first."""
    shown = {name: options.pop(name) for name in ("no_texts", "as_json")}
    with open_engine(collection) as engine:
        _show(engine.similar(keys, **options), **shown)


def _show(hits: Any, no_texts: bool, as_json: bool) -> None:
    """Print hits and facets; note that there are none."""
    if as_json:
        facets = {
            name: [{"value": value, "count": count} for value, count in counts.items()]
            for name, counts in hits.facets.items()
        }
        shown = hits.to_dicts()
        for hit in shown if no_texts else ():
            del hit["text"]
        noted = {name: getattr(hits, name) for name in ("exact", "notes", "replaced")}
        show_json({"hits": shown, "facets": facets} | noted)
    else:
        for hit in hits:
            say(str(hit))
        for name, counts in hits.facets.items():
            values = [f"{value} {count}" for value, count in counts.items()]
            if (more := len(values) - _FACET_VALUES) > 0:
                values[_FACET_VALUES:] = [f"… and {more} more values; --json lists all"]
            say(f"{name}: {', '.join(values)}")
    for word, new in hits.replaced.items():
        note(f"no document has {word!r}; searched for {new!r} instead (--no-typo-tolerance)")
    if not hits:
        note("no hits")


@command(
    _QUESTION,
    click.argument("key"),
    opt.ENCODER,
    cls=_asking("k", "where", *_ORDER),
    example='explain notes.index "when do whales sleep" whales.txt',
)
def explain(collection: str, question: str, key: str, as_json: bool, **options: Any) -> None:
    """Tell why a search finds the document KEY or not.

    Give the options of the search that you ask about. Prints ranks by vectors, words and prefix.
    """
    with open_engine(collection, options) as engine:
        explanation = engine.explain(question, key, **options)
    show_json(explanation.as_dict()) if as_json else say(str(explanation))


@command(_KEYS, example="get notes.index whales.txt")
def get(collection: str, keys: tuple[str, ...], as_json: bool) -> None:
    """Print documents by key.

    The exit status is 1 if a key is unknown.
    """
    with open_engine(collection) as engine:
        by_key = dict(zip(keys, engine.get(keys), strict=True))
    documents = [document for key in keys if (document := by_key[key]) is not None]
    if as_json:
        show_json([document.as_record() for document in documents])
    else:
        for document in documents:
            say(f"{document.key}  {document.title}".rstrip(), bold=True)
            if document.metadata:
                say(json.dumps(dict(document.metadata), ensure_ascii=False))
            say(document.text)
    for key in keys:
        if by_key[key] is None:
            note(f"no document {key!r}")
    if len(documents) < len(keys):
        raise click.exceptions.Exit(1)


@command(
    opt.WHERE,
    click.option("--offset", default=0, help="Number of documents to skip."),
    click.option("--limit", type=int, help="Maximum number of documents [default: all]."),
    name="list",
    example='list notes.index --where "year >= 2015" --limit 10',
)
def list_documents(collection: str, where: str | None, as_json: bool, **options: Any) -> None:
    """List documents in the order in which they were first added."""
    with open_engine(collection) as engine:
        documents = engine.documents(where, **options)
        if as_json:
            show_json_items(document.as_record() for document in documents)
            return
        for document in documents:
            start = " ".join(document.text[: 4 * _SHOWN].split())
            if len(start) > _SHOWN or len(document.text) > 4 * _SHOWN:
                start = f"{start[:_SHOWN]}…"
            say("  ".join(filter(None, (document.key, document.title, start))))


@command(
    click.option("--above", default=0.95, help="Minimum cosine to the first one of a group, 0–1."),
    opt.WHERE,
    example="duplicates notes.index --above 0.97",
)
def duplicates(collection: str, above: float, where: str | None, as_json: bool) -> None:
    """Print groups of documents that are nearly the same.

    The first of each group is the one that was added first. After deleting the others,
    no two documents have a cosine of --above or more.
    """
    with open_engine(collection) as engine, steps() as step:
        groups = engine.duplicates(
            above, where=where, progress=lambda done, total: step("compare", done, total)
        )
    if as_json:
        show_json({"groups": [group.as_dict() for group in groups]})
        return
    for group in groups:
        say("\n".join(f"{c:.3f}  {key}" for key, c in zip(group.keys, group.cosines, strict=True)))
        say()
    more = sum(len(group.keys) - 1 for group in groups)
    note(f"{counted(len(groups), 'group')}, {counted(more, 'document')} nearly the same as another")


COMMANDS = (search, similar, explain, get, list_documents, duplicates)
