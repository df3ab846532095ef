"""The fields of a file that hold the key, the title and the text.

By default they are `_id` (or `id`), `title` and `text`, in any case. A file without its text field
is refused: otherwise its titles alone would be indexed.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from searchengine.corpus.lines import bad, some_fields
from searchengine.errors import CorpusError, UnknownFields

RESERVED = ("_id", "title", "text")
"""Fields that belong to the document itself and cannot be metadata."""

IDS = frozenset({"_id", "id"})
_ANY_CASE = ("title", "text", "_id", "id")  # default names, which may be written in any case
_DEFAULTS = {"--text-field": "text", "--title-field": "title", "--id-field": "_id"}


@dataclass(frozen=True, slots=True)
class Columns:
    """Names of fields, matched without regard to case; None: the default name.

    Attributes:
        text: field of the text [`text`].
        title: field of the title [`title`].
        id: field of the key [`_id`, or else `id`].
        needs_text: whether every record must name a text or a title; not if vectors come along.
    """

    text: str | None = None
    title: str | None = None
    id: str | None = None
    needs_text: bool = True

    def __post_init__(self) -> None:
        chosen = [name.casefold() for name in (self.text, self.title, self.id) if name is not None]
        if len(set(chosen)) < len(chosen):
            raise CorpusError(
                "--text-field, --title-field and --id-field must name different fields, "
                f"got {', '.join(map(repr, chosen))}"
            )

    @property
    def chosen(self) -> dict[str, str]:
        """Option → field, for the options in use."""
        named = {"text": self.text, "title": self.title, "id": self.id}
        return {f"--{option}-field": name for option, name in named.items() if name is not None}

    def names(self, fields: Sequence[str], place: str, *, strict: bool = True) -> list[str]:
        """The fields, with default names for the chosen ones.

        Args:
            fields: those of a header or record.
            place: "file:line", for messages.
            strict: a chosen field that is missing is an error.

        Raises CorpusError.
        """
        names = list(fields)
        for option, name in self.chosen.items():
            index = _index(fields, name, option, place)
            if index is not None:
                names[index] = _DEFAULTS[option]
            elif strict:
                raise _unknown(
                    place, f"no field {name!r} for {option} (fields: {some_fields(fields)})"
                )
        for option, name in self.chosen.items():
            if names.count(_DEFAULTS[option]) > 1:
                raise _unknown(
                    place,
                    f"a field {_DEFAULTS[option]!r} besides {option} {name}; rename one of the two "
                    "in the file",
                )
        for default in _ANY_CASE:
            similar = [i for i, name in enumerate(names) if name.casefold() == default]
            if len(similar) == 1 and not (default in IDS and IDS.intersection(names)):
                names[similar[0]] = default
        return names

    def renamed(self, record: Mapping[str, Any], place: str, *, strict: bool) -> dict[str, Any]:
        """A record, with default names for the chosen fields. Raises CorpusError."""
        fields = list(record)
        names = self.names(fields, place, strict=strict)
        return {new: record[old] for old, new in zip(fields, names, strict=True)}


def check_text(names: Collection[str], fields: Collection[str], place: str) -> None:
    """Refuse a file without a text field, unless it has ids and titles and nothing else.

    Args:
        names: the first record's fields, under their default names.
        fields: the same, as named in the file.
        place: "file:line", for the message.
    """
    if "text" in names or set(names) - {"_id", "id"} == {"title"}:
        return
    raise _unknown(
        place,
        f"no field 'text' (fields: {some_fields(fields)}); name the field that holds the text, for "
        "example: --text-field body",
    )


def _unknown(place: str, what: str) -> UnknownFields:
    return UnknownFields(str(bad(place, what)))


def _index(fields: Sequence[str], name: str, option: str, place: str) -> int | None:
    """The position of a field: the same name, or else the only one that differs in case alone."""
    if name in fields:
        return fields.index(name)
    similar = [i for i, field in enumerate(fields) if field.casefold() == name.casefold()]
    if len(similar) > 1:
        names = ", ".join(repr(fields[i]) for i in similar)
        raise _unknown(place, f"{option} {name} fits several fields: {names}; give the exact name")
    return similar[0] if similar else None
