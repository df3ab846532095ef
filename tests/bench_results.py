"""Results of a bench by hand: no index and no clock."""

from typing import Any

from searchengine.indexer.config import ALL_ROWS, SegmentConfig
from searchengine.measure.points import point_name
from searchengine.measure.results import Results, Row
from searchengine.measure.significance import EXACT


def row(config: SegmentConfig, ms: float, recall: float, **fields: Any) -> Row:
    values = {
        "name": point_name(config, 384),
        "config": config,
        "recall": recall,
        "recall_low": max(0.0, recall - 0.01),
        "recall_high": min(1.0, recall + 0.01),
        "ndcg": None,
        "ms": ms,
        "p99_ms": ms,
        "memory": 2**20,
    }
    return Row(**(values | fields))


def graph(shortlist: int, ms: float, recall: float, **fields: Any) -> Row:
    config = SegmentConfig(prefix=64, structure="hnsw", code="int8", shortlist=shortlist)  # type: ignore[arg-type]
    return row(config, ms, recall, **fields)


SCAN = row(SegmentConfig(prefix=64, shortlist=ALL_ROWS), 12.0, 1.0, name=EXACT, recall_low=1.0)
ROWS = (
    SCAN,
    row(SegmentConfig(prefix=128, shortlist=100), 2.0, 0.99, ndcg=0.65),
    graph(20, 0.2, 0.91),
    graph(50, 0.3, 0.972),
)


def results(*rows: Row, **fields: Any) -> Results:
    """Results of these rows: the collection searches by the second, the last is recommended."""
    rows = rows or ROWS
    curve = [
        {"recall": each.recall - 0.01, "ms": 2 * each.ms, "hot_row": 64.0}
        | {
            n: each.config.as_dict()[n]
            for n in ("prefix", "structure", "code", "shortlist", "effort")
        }
        for each in rows
    ]
    values: dict[str, Any] = {
        "measured_at": "2026-01-02T03:04:05+00:00",
        "complete": True,
        "subject": {
            "name": "sentences.index", "path": "data/sentences.index", "rows": 200_000, "dim": 384,
            "queries": 1000, "k": 10, "judged": 300, "mode": "hybrid",
        },
        "machine": {"processor": "A Processor 9000", "cores": 2, "threads": 1},
        "settings": {"repeats": 5, "recall": 0.95, "confidence": 0.95, "k": 10},
        "encoding_ms": 4.0,
        "now": rows[1].name if len(rows) > 1 else None,
        "recommended": rows[-1].name,
        "why": "500 held-out queries show it.",
        "rows": rows,
        "curve": tuple(curve),
    }  # fmt: skip
    return Results(**(values | fields))
