"""Options and arguments that several commands share."""

import json
import re
from collections.abc import Callable
from inspect import cleandoc
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from searchengine.trainer.runtimes.runtime_config import Precision, RuntimeConfig, RuntimeKind

if TYPE_CHECKING:
    from searchengine.engine import SearchEngine

Decorator = Callable[[Any], Any]
WAIT = 60.0
"""Seconds that a command waits for another writer."""
_WORDS: dict[str, str] = {
    **dict.fromkeys(Precision, "precision"),
    **dict.fromkeys(RuntimeKind, "runtime"),
}
"""Word of --runtime → the field of RuntimeConfig that it sets."""


def separated(parse: Callable[[str], Any]) -> Callable[[str], tuple[Any, ...]]:
    """Read values separated by commas, without repeats; `parse`: a type of click, or a function."""

    def read(text: str) -> tuple[Any, ...]:
        return tuple(dict.fromkeys(parse(part.strip()) for part in text.split(",")))

    read.__name__ = "a,b,…"  # shown in help texts
    return read


def assignment(text: str) -> tuple[str, Any]:
    """NAME=VALUE, the value as JSON or else as text: temperature=0.1, pooling=cls."""
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise click.BadParameter(f"expected NAME=VALUE, got {text!r}")
    try:
        return name, json.loads(value, parse_constant=str)
    except (ValueError, RecursionError):
        return name, value


def _runtime(text: str) -> RuntimeConfig:
    """A runtime, a precision, a device; each at most once. Raises ModelError."""
    config: dict[str, Any] = {}
    for word in text.split(","):
        is_device = re.fullmatch("cpu|mps|(cuda|xpu)(:[0-9]+)?", word)
        name = "device" if is_device else _WORDS.get(word, "")
        if not name or name in config:
            raise click.BadParameter(
                "expected auto, native or torch; fp32, bf16 or fp16; cpu, cuda, cuda:1 or mps; "
                f"each kind once, with commas, got {text!r}"
            )
        config[name] = word
    return RuntimeConfig(**config)


PATH = click.Path()
FILE, PRESENT = click.Path(path_type=Path), click.Path(exists=True, path_type=Path)


def flag(name: str, help: str) -> Decorator:
    """An option without a value."""
    return click.option(name, is_flag=True, help=help)


def file(name: str, help: str, **settings: Any) -> Decorator:
    """An option that names a file or folder."""
    return click.option(name, type=FILE, help=help, **settings)


COLLECTION = click.argument("collection", type=PATH)
WHERE = click.option("--where", help="Metadata filter: year >= 2015 and lang in ('en', 'ko')")
AS_JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout.")
NUMBERS = separated(click.IntRange(1))
PREFIXES = click.option("--prefixes", type=NUMBERS, help="Prefix lengths [default: as trained].")
PASSAGES = click.option(
    "--passages",
    type=click.IntRange(0),
    help="Maximum tokens per passage; 0: whole documents [default: as stored, or as many as fit].",
)
RUNTIME = click.option(
    "--runtime",
    type=_runtime,
    default="auto",
    metavar="WORD,…",
    help="Runtime of the encoder: native or torch; with torch also fp32, bf16 or fp16, and cpu, "
    "cuda or mps, with commas.",
)


def assignments(help: str) -> Decorator:
    """The option --set, with its help."""
    names = ("--set", "assignments")
    return click.option(*names, multiple=True, type=assignment, metavar="NAME=VALUE", help=help)


def takes(*parameters: Decorator) -> Decorator:
    """Add arguments and options to a command, in the order of its help."""

    def add(function: Any) -> Any:
        for parameter in reversed(parameters):
            function = parameter(function)
        return function

    return add


def command(
    *parameters: Decorator,
    example: str | tuple[str, ...],
    collection: bool = True,
    json: bool = True,
    **settings: Any,
) -> Callable[..., click.Command]:
    """Make a command of a function, with its parameters in the order of its help.

    `collection`: COLLECTION is the first argument. `json`: it has --json. `settings`: of click.
    """
    examples = (example,) if isinstance(example, str) else example
    shown = "".join(f"\n    searchengine {each}" for each in examples)
    every = (*[COLLECTION] * collection, *parameters, *[AS_JSON] * json)

    def make(function: Any) -> click.Command:
        help = f"{cleandoc(function.__doc__)}\n\n\b\nExample{'s' * (len(examples) > 1)}:{shown}"
        decorate: Callable[[Any], click.Command] = click.command(help=help, **settings)
        return decorate(takes(*every)(function))

    return make


def encoder(help: str, name: str = "encoder", **settings: Any) -> Decorator:
    """The options --encoder and --runtime."""
    return takes(click.option("--encoder", name, type=PATH, help=help, **settings), RUNTIME)


ENCODER = encoder("Model folder, hub name, or URL#MODEL [default: the collection's encoder].")
MODEL = encoder("Model folder or hub name.", default="starter")


def alone(option: str, *others: str) -> None:
    """Raise UsageError if the user has given one of other parameters beside an option."""
    ctx = click.get_current_context()
    for parameter in ctx.command.params:
        name = str(parameter.name)
        if name in others and ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise click.UsageError(f"{parameter.opts[0]} does not go with {option}; leave one out")


def named(collection: Path | str) -> str:
    """A collection in messages: its path as it was typed, or its URL without the password."""
    from searchengine.backends.opening import name_of

    return name_of(collection)


def open_engine(collection: str, options: dict[str, Any] | None = None) -> "SearchEngine":
    """SearchEngine.open, imported here because that takes too long for --help.

    It takes --encoder and --runtime from the options of the command.
    """
    from searchengine.engine import SearchEngine

    options = options or {}
    names = [name for name in ("encoder", "runtime") if name in options]
    return SearchEngine.open(collection, wait=WAIT, **{name: options.pop(name) for name in names})


def passages_of(tokens: int | None) -> Any:
    """The passages of SearchEngine for --passages; None: no preference."""
    from searchengine.ingest.passages import PassageConfig

    return PassageConfig(tokens) if tokens else None if tokens is None else False
