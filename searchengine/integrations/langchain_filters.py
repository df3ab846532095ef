"""Filters of LangChain as `where`: dicts, and the filters of structured queries."""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, cast

from langchain_core.structured_query import (
    Comparator,
    Comparison,
    FilterDirective,
    Operation,
    Operator,
    StructuredQuery,
    Visitor,
)

from searchengine.errors import FilterError
from searchengine.integrations import filters
from searchengine.integrations.metadata import stored_path

Filter: TypeAlias = str | Mapping[str, Any] | FilterDirective | None
"""A `where` text, a dict (`where_of`), or the filter of a structured query."""


class WhereTranslator(Visitor):
    """Structured queries to searches, for self-querying retrievers.

    `like` has the pattern of a filter: % is any text. `contain` is for lists. An attribute with a
    dot is a field within a field.
    """

    allowed_comparators = tuple(Comparator)
    allowed_operators = tuple(Operator)

    def visit_operation(self, operation: Operation) -> str:
        """The test of several."""
        tests = [argument.accept(self) for argument in operation.arguments]
        if operation.operator == Operator.NOT:
            return filters.negated(filters.every(tests))
        join = filters.every if operation.operator == Operator.AND else filters.either
        return join(tests)

    def visit_comparison(self, comparison: Comparison) -> str:
        """The test of a field."""
        value = comparison.value
        if isinstance(value, Mapping) and "date" in value:  # as self-querying retrievers write them
            name = _field(comparison.attribute)
            return _dated(name, comparison.comparator, str(value["date"]))
        operator = _COMPARATORS[comparison.comparator]
        return _test(comparison.attribute, operator, value)

    def visit_structured_query(
        self, structured_query: StructuredQuery
    ) -> tuple[str, dict[str, Any]]:
        """The question, and the keywords of a search."""
        kwargs: dict[str, Any] = {}
        if structured_query.filter is not None:
            kwargs["filter"] = structured_query.filter.accept(self)
        if structured_query.limit is not None:
            kwargs["k"] = structured_query.limit
        return structured_query.query, kwargs


def where_of(filter: Filter) -> str | None:
    """A filter as `where`. Raises FilterError for what a filter of a collection cannot say.

    A dict has a value, or operators, for each field: {"year": {"$gte": 2015}, "lang": "en"}. The
    operators are $eq $ne $gt $gte $lt $lte $in $nin $between $exists $like $contains, and $and,
    $or and $not of dicts. They compare as Python does: a field that is missing is not equal to
    anything.
    """
    if filter is None or isinstance(filter, str):
        return filter
    if isinstance(filter, FilterDirective):
        return cast(str, filter.accept(WhereTranslator()))
    if isinstance(filter, Mapping):
        return _all_of(filter) if filter else None
    raise FilterError(
        "filter must be a text such as \"year >= 2015\", a dict such as {'year': {'$gte': 2015}} "
        f"or the filter of a structured query, got {type(filter).__name__}"
    )


_COMPARATORS = {
    Comparator.EQ: "$eq",
    Comparator.NE: "$ne",
    Comparator.GT: "$gt",
    Comparator.GTE: "$gte",
    Comparator.LT: "$lt",
    Comparator.LTE: "$lte",
    Comparator.CONTAIN: "$contains",
    Comparator.LIKE: "$like",
    Comparator.IN: "$in",
    Comparator.NIN: "$nin",
}


def _all_of(filter: Any) -> str:
    if not isinstance(filter, Mapping):
        raise FilterError(f"a filter must be a dict, got {filter!r:.80}")
    tests = []
    for name, value in filter.items():
        if name == "$not":
            tests.append(filters.negated(_all_of(value)))
        elif name in ("$and", "$or"):
            if not isinstance(value, list | tuple):
                raise FilterError(f"{name} takes a list of dicts, got {value!r:.80}")
            join = filters.every if name == "$and" else filters.either
            tests.append(join([_all_of(each) for each in value]))
        elif str(name).startswith("$"):
            raise FilterError(f"a filter has no {name}; it has $and, $or, $not and names of fields")
        elif isinstance(value, Mapping):
            tests += [_test(name, operator, operand) for operator, operand in value.items()]
        else:
            tests.append(_test(name, "$eq", value))
    return filters.every(tests)


def _field(name: str) -> str:
    return filters.field(stored_path(tuple(str(name).split("."))))


def _test(name: str, operator: str, value: Any) -> str:
    """A test of a field, by an operator of a dict."""
    if operator not in _TESTS:
        raise FilterError(f"a filter has no {operator}; it has {', '.join(_TESTS)}")
    return _TESTS[operator](_field(name), value)


def _equal(field: str, value: Any) -> str:
    return filters.missing(field) if value is None else filters.equal(field, value)


def _among(field: str, values: Any) -> str:
    if not isinstance(values, list | tuple | set):
        raise FilterError(f"$in and $nin take a list, got {values!r:.80}")
    return filters.member(field, values)


def _between(field: str, bounds: Any) -> str:
    if not isinstance(bounds, list | tuple) or len(bounds) != 2:
        raise FilterError(f"$between takes a list of two values, got {bounds!r:.80}")
    low, high = bounds
    return filters.every([filters.ordered(field, ">=", low), filters.ordered(field, "<=", high)])


def _like(field: str, pattern: Any) -> str:
    if not isinstance(pattern, str):
        raise FilterError(f"$like takes a text such as 'deep%', got {pattern!r:.80}")
    return f"{field} like {filters.literal(pattern)}"


def _exists(field: str, wanted: Any) -> str:
    if not isinstance(wanted, bool):
        raise FilterError(f"$exists takes true or false, got {wanted!r:.80}")
    return f"exists({field})" if wanted else f"not exists({field})"


_TESTS: dict[str, Callable[[str, Any], str]] = {
    "$eq": _equal,
    "$ne": lambda field, value: filters.negated(_equal(field, value)),
    "$gt": lambda field, value: filters.ordered(field, ">", value),
    "$gte": lambda field, value: filters.ordered(field, ">=", value),
    "$lt": lambda field, value: filters.ordered(field, "<", value),
    "$lte": lambda field, value: filters.ordered(field, "<=", value),
    "$in": _among,
    "$nin": lambda field, values: filters.negated(_among(field, values)),
    "$between": _between,
    "$contains": filters.contains,
    "$like": _like,
    "$exists": _exists,
}


def _dated(name: str, comparator: Comparator, day: str) -> str:
    """A comparison with a date; the filter's parser checks it."""
    signs = {
        Comparator.EQ: "=",
        Comparator.NE: "!=",
        Comparator.GT: ">",
        Comparator.GTE: ">=",
        Comparator.LT: "<",
        Comparator.LTE: "<=",
    }
    if comparator not in signs:
        raise FilterError(f"a date compares by {', '.join(signs)}, got {comparator.value}")
    return f"{name} {signs[comparator]} date({filters.literal(day)})"
