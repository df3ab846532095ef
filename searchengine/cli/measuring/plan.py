"""searchengine plan."""

from dataclasses import asdict

import click

from searchengine.cli.options import Bytes, Count, Separated

_HOURS = 730  # of a month


def _measured(text: str) -> tuple[int, int]:
    rows, shortlist = text.split(":")
    return int(float(rows)), int(shortlist)


@click.command()
@click.option("--rows", type=Count(), required=True, help="Number of vectors: 1000000, 2e9.")
@click.option("--dim", type=click.IntRange(2), default=768, help="Dimensions of a vector.")
@click.option(
    "--structure", type=click.Choice(["ivf", "hnsw"]), default="ivf", help="Coarse structure."
)
@click.option("--prefix", type=click.IntRange(1), default=192, help="Dimensions of the prefix.")
@click.option(
    "--code", type=click.Choice(["fp16", "int8"]), default="int8", help="Format of the prefix."
)
@click.option(
    "--target", type=click.Choice(["0.95", "0.99"]), default="0.95", help="Recall of the top 10."
)
@click.option(
    "--shortlists",
    type=Separated("ROWS:K,…", "ROWS:K", _measured, repeats=True),
    help="Shortlists that reach the target, measured at two sizes or more of your own corpus "
    "[default: those of English sentences].",
)
@click.option("--copies", type=click.IntRange(1), default=2, help="Copies of every shard.")
@click.option("--rate", type=click.FloatRange(0), default=100, help="Questions per second.")
@click.option("--shard-rows", type=Count(), default="10000000", help="Maximum rows of a shard.")
@click.option("--ram", type=Bytes(), default="64GiB", help="Memory of a machine.")
@click.option("--disk", type=Bytes(), default="2TB", help="Disk of a machine.")
@click.option("--cores", type=click.IntRange(1), default=16, help="Processors of a machine.")
@click.option("--price", type=click.FloatRange(0), help="Price of a machine per hour.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def plan(
    rows: int,
    dim: int,
    structure: str,
    prefix: int,
    code: str,
    target: str,
    shortlists: tuple[tuple[int, int], ...] | None,
    ram: int,
    disk: int,
    cores: int,
    price: float | None,
    as_json: bool,
    copies: int,
    rate: float,
    shard_rows: int,
) -> None:
    """Estimate the machines for a number of vectors.

    Memory, disk, shards, machines, latency and build time follow from measured constants by the
    formulas of docs/scaling.md. Nothing is read or written.

    \b
    Examples:
        searchengine plan --rows 1e9 --ram 128GiB --rate 500
        searchengine plan --rows 5e7 --shortlists 10000:40,100000:60,1000000:95
    """
    from indexer.config import SegmentConfig
    from indexer.tuning import capacity
    from searchengine.bench.formatting import size
    from searchengine.cli.console import say, show_json, show_rows

    config = SegmentConfig.from_dict({"structure": structure, "prefix": prefix, "code": code})
    demand = capacity.Demand(rows, dim, copies=copies, rate=rate, shard_rows=shard_rows)
    growth = capacity.fitted(shortlists) if shortlists else capacity.measured(prefix, float(target))
    planned = capacity.plan(config, demand, capacity.Machine(ram, disk, cores), growth)
    monthly = None if price is None else price * planned.machines * _HOURS
    if as_json:
        show_json(asdict(planned) | {"price_per_month": monthly})
        return
    expected, low, high = planned.shortlist
    shown = [
        ("machines", f"{planned.machines:,}", f"{planned.copies} copies"),
        ("shards of a copy", f"{planned.shards:,}", f"{rows / planned.shards:,.0f} rows each"),
        ("memory", size(planned.memory), "all copies, with a margin of 30 %"),
        ("disk", size(planned.disk), "all copies, with room for merges"),
        ("shortlist", f"{expected:,.0f}", f"likely {low:,.0f} to {high:,.0f}"),
        ("shortlist of a shard", f"{planned.shard_shortlist:,}", "at least this many"),
        ("pages read", f"{planned.pages:,.0f}", "4 KiB each, at full width, a question"),
        ("question, median", f"{1e3 * planned.median:.2f} ms", "encoding and network included"),
        ("question, p99", f"{1e3 * planned.p99:.2f} ms", "of the slowest machine"),
        ("processor time", f"{1e3 * planned.busy:.1f} ms", "a question, in all shards"),
        ("build", f"{planned.build / 3600:,.1f} h", "one copy on one processor; vectors are there"),
    ]
    if monthly is not None:
        shown.append(("price", f"{monthly:,.0f}", "a month of 730 hours"))
    names = ("quantity", "estimate", "note")
    show_rows([dict(zip(names, row, strict=True)) for row in shown])
    say("Estimates from measured constants; docs/scaling.md has the formulas.")
