"""A few rows of a bench for the terminal: what one would choose among."""

import shutil
import sys
from collections.abc import Sequence
from typing import Any

from searchengine.bench.results import CONFIGURED, Kind, Results, Row

ALWAYS = ("", "p50 ms", "× measured")  # and recall, whose name tells k
ROOM_FOR = ("× theory", "MiB", "p99 ms", "ndcg@10", "queries/s", "cold ms")  # the first ones first
BESIDE = 3  # characters that a column takes besides its text
SHORTEST = 12  # characters that are left of a name, however narrow the terminal is


def frontier(rows: Sequence[Row]) -> list[Row]:
    """The rows than which none is both faster and finds as much, fastest first."""
    best: list[Row] = []
    for row in sorted(rows, key=lambda row: (row.p50_ms.median, -row.recall)):
        if not best or row.recall > best[-1].recall:
            best.append(row)
    return best


def peer_of(row: Row) -> str:
    """Which engine a row of another engine is of: its name up to the point, as in "usearch: …"."""
    return row.name.partition(":")[0]


def telling_peers(results: Results, target: float) -> list[Row]:
    """One row of every other engine: its fastest that holds the target, or that finds most."""
    rows: dict[str, list[Row]] = {}
    for row in results.rows:
        if row.kind is Kind.PEER:
            rows.setdefault(peer_of(row), []).append(row)
    return [min(each, key=lambda row: _telling(row, target)) for each in rows.values()]


def _telling(row: Row, target: float) -> tuple[bool, float]:
    holds = row.recall_low >= target
    return not holds, row.p50_ms.median if holds else -row.recall


def table(results: Results, width: int | None = None) -> list[dict[str, Any]]:
    """Exact search and what was configured, then of every kind what is on its frontier.

    Of every other engine there is its telling row. width: characters to a line, into which the
    columns should fit; by default those of the terminal, and in a pipe as many as it takes.
    """
    rows = list(results.rows)
    listed = [row for row in rows if row.kind is Kind.EXACT or row.name.startswith(CONFIGURED)]
    for kind in (Kind.CASCADE, Kind.FUNNEL, Kind.TRUNCATED, Kind.FULL):
        some = [row for row in rows if row.kind is kind and row not in listed]
        listed += sorted(frontier(some), key=lambda row: row.recall)
    peers = telling_peers(results, results.settings.get("target", 0.95))
    listed += sorted(peers, key=lambda row: row.recall)
    shown = [_shown(row, f"recall@{results.subject['k']}") for row in listed]
    if width is None and sys.stdout.isatty():
        width = shutil.get_terminal_size().columns
    return _fitting(shown, width) if shown else []


def _shown(row: Row, recall: str) -> dict[str, Any]:
    return {
        "": row.name,
        recall: row.recall,
        "ndcg@10": row.ndcg,
        "p50 ms": row.p50_ms.median,
        "p99 ms": row.p99_ms.median,
        "cold ms": None if row.cold_ms is None else row.cold_ms.median,
        "queries/s": None if row.batch_qps is None else row.batch_qps.median,
        "× theory": row.theoretical,
        "× measured": row.measured.median,
        "MiB": None if row.hot_bytes is None else row.hot_bytes / 2**20,
    }


def _fitting(shown: list[dict[str, Any]], width: int | None) -> list[dict[str, Any]]:
    """The columns that fit and that somebody has a value in, in their order."""
    columns = [name for name in shown[0] if any(row[name] is not None for row in shown)]
    if width is not None:
        needed = {name: BESIDE + max(map(len, (name, *_texts(shown, name)))) for name in columns}
        kept = [name for name in columns if name in ALWAYS or name.startswith("recall@")]
        room = width - 1 - sum(needed[name] for name in kept)
        for name in ROOM_FOR:
            if needed.get(name, width) <= room:
                kept.append(name)
                room -= needed[name]
        columns = [name for name in columns if name in kept]
        longest = max(SHORTEST, needed[""] - BESIDE + min(0, room))
        shown = [row | {"": _shortened(row[""], longest)} for row in shown]
    return [{name: row[name] for name in columns} for row in shown]


def _texts(shown: Sequence[dict[str, Any]], column: str) -> list[str]:
    """As they are printed (`searchengine.cli.console.show_rows`)."""
    values = [row[column] for row in shown]
    return [f"{each:.4g}" if isinstance(each, float) else str(each or "–") for each in values]


def _shortened(name: str, longest: int) -> str:
    return name if len(name) <= longest else f"{name[: longest - 1]}…"
