"""Options and arguments that several commands share."""

import functools
import re
from collections.abc import Callable, Iterable
from enum import StrEnum
from pathlib import Path
from typing import Any

import click

from searchengine.cli.console import note
from trainer.runtimes.config import Precision, RuntimeConfig, RuntimeKind


class Numbers(click.ParamType[tuple[int, ...]]):
    """Whole numbers above zero with commas between: 768,256,64."""

    name = "N,N,…"

    def __init__(self, *, repeats: bool = False) -> None:
        """`repeats` keeps numbers named twice, for a caller that refuses them."""
        self._repeats = repeats

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, ...]:
        """The numbers in the order given, each once where repeats are not kept."""
        if isinstance(value, tuple):
            return value
        try:
            given = tuple(int(part) for part in value.split(","))
        except ValueError:
            self.fail(f"expected whole numbers with commas between, got {value!r}", param, ctx)
        if min(given) < 1:
            self.fail(f"expected numbers above zero, got {value!r}", param, ctx)
        return given if self._repeats else tuple(dict.fromkeys(given))


class Stages(click.ParamType[tuple[tuple[int, int], ...]]):
    """Stages of a funnel, WIDTH:KEEP with commas between: 256:50,512:20."""

    name = "WIDTH:KEEP,…"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[tuple[int, int], ...]:
        """Pairs of a width and how many to keep, in the order given."""
        if isinstance(value, tuple):
            return value
        try:
            pairs = [tuple(map(int, part.split(":"))) for part in value.split(",")]
            return tuple((width, keep) for width, keep in pairs)
        except ValueError:
            self.fail(f"expected WIDTH:KEEP with commas between, got {value!r}", param, ctx)


class Several(click.ParamType[tuple[str, ...]]):
    """Values of an enum with commas between: flat,hnsw."""

    def __init__(self, kinds: Iterable[StrEnum]) -> None:
        self.name = "NAME,NAME,…"
        self._kinds = {kind.value: kind for kind in kinds}

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, ...]:
        """The values in the order given, each once."""
        if isinstance(value, tuple):
            return value
        try:
            return tuple(dict.fromkeys(self._kinds[part.strip()] for part in value.split(",")))
        except KeyError:
            choices = ", ".join(self._kinds)
            self.fail(f"expected some of {choices} with commas between, got {value!r}", param, ctx)


class Names(click.ParamType[tuple[str, ...]]):
    """Names with commas between: MR,CR."""

    name = "NAME,NAME,…"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, ...]:
        """The names in the order given."""
        if isinstance(value, tuple):
            return value
        names = tuple(name.strip() for name in value.split(","))
        if not all(names):
            self.fail(f"expected names with commas between, got {value!r}", param, ctx)
        return names


class Bytes(click.ParamType[int]):
    """A number of bytes: 500000000, 500MB, 2GiB."""

    name = "BYTES"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """How many bytes; kB, MB, GB and TB are powers of 1000, KiB to TiB of 1024."""
        if isinstance(value, int):
            return value
        found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) ?(?:([kmgt])(i?))?b?", value.lower())
        if found is None:
            self.fail(f"expected bytes, such as 500MB or 2GiB, got {value!r}", param, ctx)
        number, unit, binary = found.groups()
        power = " kmgt".index(unit or " ")
        return int(float(number) * (1024 if binary else 1000) ** power)


COLLECTION = click.argument("collection", type=click.Path(path_type=Path))
ENCODER = click.option(
    "--encoder", metavar="PATH", help="Model folder or hub name [default: the collection's own]."
)
AS_JSON = click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
SHORTLIST = click.option(
    "--shortlist", type=click.IntRange(1), help="Candidates scored at full width."
)
PLOTS = click.option(
    "--plots",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Folder for a picture (SVG).",
)
WAIT = click.option(
    "--wait",
    type=click.FloatRange(0, 86400),
    default=0,
    metavar="SECONDS",
    help="How long to wait for another that is writing [default: not at all].",
)
LAYERS = click.option(
    "--layers", type=click.IntRange(1), help="The first layers of the network alone [default: all]."
)
TRUST = click.option(
    "--trust-remote-code", is_flag=True, help="Run Python code that comes with the model."
)


def choice(kinds: Iterable[StrEnum]) -> click.Choice[str]:
    """One of an enum's values, which is what help texts show and users type."""
    return click.Choice([kind.value for kind in kinds])


def tell_compiling(engine: Any) -> None:
    """Say what takes seconds before the first text is encoded, once for a model."""
    if not getattr(engine.encoder, "ready", True):
        note("Compiling the encoder, once…")


def runs(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options that say how to run an encoder, which it gets as `runtime`."""

    @functools.wraps(command)
    def with_runtime(
        engine: str, precision: str, device: str | None, trust_remote_code: bool, **options: Any
    ) -> None:
        runtime = RuntimeConfig(engine, precision, device, trust_remote_code)
        command(runtime=runtime, **options)

    for option in (
        TRUST,
        click.option("--device", help="cpu, cuda or mps [default: the fastest]."),
        click.option(
            "--precision",
            type=choice(Precision),
            default="auto",
            show_default=True,
            help="What the network computes in.",
        ),
        click.option(
            "--engine",
            type=choice(RuntimeKind),
            default="auto",
            show_default=True,
            help="What runs the encoder.",
        ),
    ):
        with_runtime = option(with_runtime)
    return with_runtime
