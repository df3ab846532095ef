"""Metadata fields on the command line: as an option, and a word on those that no document has."""

from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from searchengine.engine import SearchEngine


class FieldName(click.ParamType[str]):
    """The name of a metadata field, as filters have it: year, author.name, `two words`."""

    name = "FIELD"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The name as it was given."""
        from searchengine.errors import FilterError
        from searchengine.storage.filters.language import field_named

        try:
            field_named(value)
        except FilterError:
            self.fail(
                f"expected a field such as year, author.name or `two words`, got {value!r}",
                param,
                ctx,
            )
        return str(value)


INDEXED = click.option(
    "--field",
    "fields",
    type=FieldName(),
    multiple=True,
    help="Index this metadata field, for fast filters; repeatable.",
)


def tell_unknown(engine: "SearchEngine", filter_: str | None) -> None:
    """Say on stderr which fields of a filter no document has: they may be misspelt.

    Cheap where there is such a field; to see that there is none, all metadata are read.
    """
    from searchengine.cli.console import note
    from searchengine.storage.filters.language import field_name, parse

    if filter_ is None:
        return
    with engine.collection.reading() as snapshot:
        for name in dict.fromkeys(map(field_name, _fields(parse(filter_)))):
            condition, parameters = snapshot.store.condition(f"exists({name})")
            sql = f"SELECT EXISTS (SELECT 1 FROM documents WHERE {condition})"
            if not snapshot.store.read(sql, parameters)[0][0]:
                note(f"no document has a field {name}; is it misspelt?")


def _fields(node: Any) -> list[tuple[str, ...]]:
    """The fields of a filter's tree, in their order."""
    from searchengine.storage.filters.conditions import And, Not, Or

    if isinstance(node, And | Or):
        return [field for operand in node.operands for field in _fields(operand)]
    return _fields(node.operand) if isinstance(node, Not) else [node.field]
