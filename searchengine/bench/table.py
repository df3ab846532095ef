"""A few rows of a bench for the terminal: what one would choose among."""

from collections.abc import Sequence
from typing import Any

from searchengine.bench.results import Kind, Results, Row


def frontier(rows: Sequence[Row]) -> list[Row]:
    """The rows than which none is both faster and finds as much, fastest first."""
    best: list[Row] = []
    for row in sorted(rows, key=lambda row: (row.p50_ms.median, -row.recall)):
        if not best or row.recall > best[-1].recall:
            best.append(row)
    return best


def table(results: Results) -> list[dict[str, Any]]:
    """Exact search and what was configured, then of every kind what is on its frontier."""
    rows = list(results.rows)
    listed = [row for row in rows if row.kind is Kind.EXACT or row.name.startswith(CONFIGURED)]
    for kind in (Kind.CASCADE, Kind.FUNNEL, Kind.TRUNCATED, Kind.FULL, Kind.PEER):
        some = [row for row in rows if row.kind is kind and row not in listed]
        listed += sorted(frontier(some), key=lambda row: row.recall)
    k = results.subject["k"]
    shown = [
        {
            "": row.name,
            f"recall@{k}": row.recall,
            "ndcg@10": row.ndcg,
            "p50 ms": row.p50_ms.median,
            "p99 ms": row.p99_ms.median,
            "cold ms": None if row.cold_ms is None else row.cold_ms.median,
            "queries/s": None if row.batch_qps is None else row.batch_qps.median,
            "× theory": row.theoretical,
            "× measured": row.measured.median,
            "MiB": None if row.hot_bytes is None else row.hot_bytes / 2**20,
        }
        for row in listed
    ]
    empty = {name for name in shown[0] if all(row[name] is None for row in shown)} if shown else ()
    return [{name: row[name] for name in row if name not in empty} for row in shown]


CONFIGURED = "as configured"
