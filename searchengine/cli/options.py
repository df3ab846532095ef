"""Options and arguments that several commands share."""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from searchengine.cli.console import note
from searchengine.trainer.runtimes.runtime_config import Precision, RuntimeConfig, RuntimeKind

if TYPE_CHECKING:
    from searchengine.engine import SearchEngine


class Separated(click.ParamType[tuple[Any, ...]]):
    """Values separated by commas, without repeats, in their order."""

    def __init__(
        self, name: str, expected: str, parse: Callable[[str], Any], *, repeats: bool = False
    ) -> None:
        """`parse` raises ValueError or KeyError. `repeats` keeps repeated values."""
        self.name = name
        self._expected, self._parse, self._repeats = expected, parse, repeats

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[Any, ...]:
        """Return the values."""
        if isinstance(value, tuple):
            return value
        try:
            values = [self._parse(part.strip()) for part in value.split(",")]
        except (ValueError, KeyError):
            self.fail(f"expected {self._expected} separated by commas, got {value!r}", param, ctx)
        return tuple(values if self._repeats else dict.fromkeys(values))


def numbers(*, repeats: bool = False) -> Separated:
    """Positive integers: 768,256,64."""
    return Separated("N,N,…", "whole numbers of 1 or more", _positive, repeats=repeats)


def several(kinds: Iterable[StrEnum]) -> Separated:
    """Values of an enum: flat,hnsw."""
    by_name = {kind.value: kind for kind in kinds}
    return Separated("NAME,NAME,…", f"one or more of {', '.join(by_name)}", by_name.__getitem__)


def suffixes() -> Separated:
    """Suffixes or names of files: .foo,Makefile."""
    return Separated("NAME,NAME,…", "suffixes or names of files", _suffix)


def _suffix(text: str) -> str:
    if not text:
        raise ValueError(text)
    return text.lower() if text.startswith(".") else text


def _positive(text: str) -> int:
    if (number := int(text)) < 1:
        raise ValueError(text)
    return number


class Bytes(click.ParamType[int]):
    """A number of bytes: 500000000, 500MB, 2GiB."""

    name = "BYTES"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the number of bytes; kB to TB are powers of 1000, KiB to TiB of 1024."""
        if isinstance(value, int):
            return value
        match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) ?(?:([kmgt])(i?))?b?", value.lower())
        if match is None:
            self.fail(f"expected bytes, such as 500MB or 2GiB, got {value!r}", param, ctx)
        number, unit, binary = match.groups()
        power = " kmgt".index(unit or " ")
        return int(float(number) * (1024 if binary else 1000) ** power)


class Assignment(click.ParamType[tuple[str, Any]]):
    """NAME=VALUE, the value as JSON or else as text: temperature=0.1, pooling=cls."""

    name = "NAME=VALUE"

    def __init__(self, example: str) -> None:
        self._example = example

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, Any]:
        """Return name and value."""
        if isinstance(value, tuple):
            return value
        name, equals, text = value.partition("=")
        if not name or not equals:
            self.fail(f"expected NAME=VALUE, such as {self._example}, got {value!r}", param, ctx)
        try:
            return name, json.loads(text, parse_constant=_no_constant)
        except (ValueError, RecursionError):
            return name, text


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not a JSON number")


class Address(click.Path):
    """A collection: a folder, or the URL of a server."""

    name = "COLLECTION"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Path | str:
        """Return a path as Path, and a URL as it is: two slashes of it would become one."""
        return str(value) if "://" in str(value) else Path(value)


class Runtime(click.ParamType[RuntimeConfig]):
    """What runs the encoder: a runtime, a precision, a device, a permission; each at most once."""

    name = "WORD,…"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> RuntimeConfig:
        """Return the configuration. Raises ModelError for words that exclude each other."""
        if isinstance(value, RuntimeConfig):
            return value
        config: dict[str, Any] = {}
        for word in value.split(","):
            name = next((name for name, pattern in _WORDS.items() if pattern.fullmatch(word)), "")
            if not name or name in config:
                self.fail(
                    f"expected auto, native or torch; fp32, bf16 or fp16; cpu, cuda, cuda:1 or "
                    f"mps; trust-remote-code; each kind once, with commas, got {value!r}",
                    param,
                    ctx,
                )
            config[name] = name == "trust_remote_code" or word
        return RuntimeConfig(**config)


_WORDS = {
    "runtime": re.compile("|".join(RuntimeKind)),
    "precision": re.compile("|".join(Precision)),
    "device": re.compile("cpu|mps|(cuda|xpu)(:[0-9]+)?"),
    "trust_remote_code": re.compile("trust-remote-code"),
}
"""Field of RuntimeConfig → what the words of --runtime that set it look like."""
PATH = click.Path()
COLLECTION = click.argument("collection", type=Address())
ENCODER = click.option(
    "--encoder",
    metavar="PATH",
    type=PATH,
    help="Model folder, hub name, or URL#MODEL [default: the collection's encoder].",
)
MODEL = click.option("--encoder", default="starter", type=PATH, help="Model folder or hub name.")
MODELS = click.option(
    "--encoder",
    "encoders",
    multiple=True,
    default=("starter",),
    type=PATH,
    help="Model folder or hub name; repeatable, to compare models.",
)
PREFIXES = click.option("--prefixes", type=numbers(), help="Prefix lengths [default: the model's].")
AS_JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout.")
SHORTLIST = click.option(
    "--shortlist", type=click.IntRange(1), help="Number of candidates to rerank at full width."
)
PASSAGES = click.option(
    "--passages",
    type=click.IntRange(0),
    metavar="N",
    help="Maximum tokens per passage; 0 keeps documents whole [default: as stored, or as fit].",
)
WAIT = click.option(
    "--wait",
    type=click.FloatRange(0, 86400),
    default=0,
    metavar="SECONDS",
    help="Seconds to wait for another writer.",
)
runs = click.option(
    "--runtime",
    type=Runtime(),
    default="auto",
    metavar="WORD,…",
    help="What runs the encoder: native or torch; of torch, fp32, bf16 or fp16, and cpu, cuda or "
    "mps. trust-remote-code runs Python code that comes with a model. Several with commas.",
)
WHERE = click.option("--where", help="Metadata filter: year >= 2015 and lang in ('en', 'ko')")
INDEXED = click.option(
    "--field",
    "fields",
    metavar="FIELD",
    multiple=True,
    help="Metadata field to index for fast filters; repeatable.",
)


class Sectioned(click.Command):
    """A command whose help shows its options in sections.

    Attributes:
        sections: title → names of parameters. Other options come first, under "Options", and
            those that every command has come last.
    """

    sections: Mapping[str, Sequence[str]] = {}
    _LAST = ("wait", "as_json", "_click_default_help")

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options."""
        titles = {name: title for title, names in self.sections.items() for name in names}
        titles |= dict.fromkeys(self._LAST, "Other options")
        rows: dict[str, list[tuple[str, str]]] = {"Options": []}
        rows |= {title: [] for title in (*self.sections, "Other options")}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None and isinstance(parameter, click.Option):
                rows[titles.get(str(parameter.name), "Options")].append(record)
        for title, records in rows.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)


def sectioned(sections: Mapping[str, str]) -> type[click.Command]:
    """The class of a command with options in sections: title → names of parameters, with spaces."""
    split = {title: names.split() for title, names in sections.items()}
    return type("Sectioned", (Sectioned,), {"sections": split})


def choice(kinds: Iterable[StrEnum]) -> click.Choice[str]:
    """A choice among the values of an enum, as help texts show them and users type them."""
    return click.Choice([kind.value for kind in kinds])


def open_engine(collection: Path | str, *arguments: Any, **options: Any) -> "SearchEngine":
    """SearchEngine.open, imported here because that takes too long for --help."""
    from searchengine.engine import SearchEngine

    return SearchEngine.open(collection, *arguments, **options)


def passages_of(tokens: int | None) -> Any:
    """The passages of SearchEngine for --passages; None: no preference."""
    from searchengine.ingest.passages import PassageConfig

    return PassageConfig(tokens) if tokens else None if tokens is None else False


def named(collection: Path | str) -> str:
    """A collection in messages: its path, or its URL without the password."""
    from searchengine.backends.opening import name_of

    return name_of(collection)


def note_unknown_fields(engine: "SearchEngine", field: str) -> None:
    """Print a note if no document has a field: it may be misspelt."""
    from searchengine.backends.listing import unknown_fields

    with engine.collection.reading() as snapshot:
        for sentence in unknown_fields(snapshot, field):
            note(sentence)
