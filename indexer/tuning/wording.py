"""Index configs and tunings in words."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from searchengine.indexer.config import ALL_ROWS, Structure
from searchengine.indexer.tuning.tune import Tuning


def in_words(config: Mapping[str, Any], dim: int) -> str:
    """An index config (SegmentConfig.as_dict) as a line, without the fields it does not use."""
    stages = "".join(f", then {keep} by {width}" for width, keep in config["stages"])
    size = "all rows" if config["shortlist"] == ALL_ROWS else config["shortlist"] or "measured"
    parts = [f"shortlist {size}{stages}"]
    structure = config["structure"]
    if structure == Structure.HNSW:
        parts.append(f"links {config['hnsw_m']}")
    if structure == Structure.IVF:
        parts.append(f"lists {config['lists'] or 'by the rows'}")
    if structure in (Structure.IVF, Structure.HNSW):
        parts.append(f"effort {config['effort'] or 'by the shortlist'}")
    over = f"over {config['prefix']} of {dim} dimensions"
    return f"{structure} {config['code']} {over}, {', '.join(parts)}"


def ladder(tuning: Tuning) -> list[dict[str, Any]]:
    """The operating points of the chosen index config and shortlist, cheapest first."""
    return [
        {
            "effort": point.config.effort,
            f"recall@{tuning.goal.k}": point.recall,
            "ms": point.ms,
            "chosen": "yes" if point.config == tuning.config else "",
        }
        for point in tuning.curve
        if replace(point.config, effort=0) == replace(tuning.config, effort=0)
    ]


def summary(tuning: Tuning, dim: int) -> str:
    """The result of a tuning in one sentence: the recall that was shown, and the index config."""
    goal = tuning.goal
    chosen = next(point for point in tuning.curve if point.config == tuning.config)
    encoding = ""
    if tuning.question_ms:
        encoding = (
            f"; encoding a question takes {tuning.question_ms:.2g} ms more, and of the points "
            "whose whole time is within 5 % of the fastest it is the one that finds most"
        )
    filtered = ", ".join(
        f"{value:.4f} under filters that {100 * float(share):g} % of the rows match"
        for share, value in tuning.filtered.items()
    )
    return (
        f"recall@{goal.k} above {goal.recall:g} with {100 * goal.confidence:g} % confidence on "
        f"{tuning.held_out} held-out {query_source(tuning.source)} (mean {tuning.recall:.4f}"
        f"{'; ' + filtered if filtered else ''}): "
        f"{in_words(tuning.config.as_dict(), dim)}; "
        f"{tuning.ms:.2g} ms per query, {chosen.hot_row:.0f} hot bytes per row{encoding}"
    )


def query_source(source: str) -> str:
    """What `Tuning.source` says that the queries were."""
    return "queries" if source == "given" else "documents taken as queries"
