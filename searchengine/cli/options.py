"""Options and arguments that several commands share."""

from pathlib import Path
from typing import Any

import click


class Numbers(click.ParamType[tuple[int, ...]]):
    """Whole numbers above zero with commas between: 768,256,64."""

    name = "N,N,…"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, ...]:
        """The numbers, in the order given."""
        if isinstance(value, tuple):
            return value
        try:
            numbers = tuple(int(part) for part in value.split(","))
        except ValueError:
            self.fail(f"expected whole numbers with commas between, got {value!r}", param, ctx)
        if min(numbers) < 1:
            self.fail(f"expected numbers above zero, got {value!r}", param, ctx)
        return numbers


COLLECTION = click.argument("collection", type=click.Path(path_type=Path))
ENCODER = click.option(
    "--encoder", metavar="PATH", help="Model folder or hub name [default: the collection's own]."
)
QUERIES = click.option(
    "--queries", required=True, type=click.Path(path_type=Path), help="Questions: .jsonl or .txt."
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
