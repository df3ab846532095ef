"""Results of a bench, written to and read from `results.json`."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from searchengine.engine import SearchEngine
from searchengine.errors import QueryError
from searchengine.indexer.config import SegmentConfig
from searchengine.measure.significance import EXACT
from searchengine.trainer.files import write_json

FORMAT = 7
MIB = 2**20
RESULTS = "results.json"
RECOMMENDED = "recommended"
"""Name, after a path and #, of the row that is recommended."""


@dataclass(frozen=True, slots=True)
class Row:
    """One operating point.

    Attributes:
        name: unique name of the row.
        config: the index config and operating point, as `searchengine tune --apply` stores it.
        recall: mean share of the exact k nearest that were found.
        recall_low, recall_high: its 95 % interval (bootstrap over queries).
        ndcg: nDCG@10, by documents, in the mode of `Results.subject`; None without judgements.
        ms: latency of one query alone, warm: the median of the rounds' medians. Rows are measured
            in turns, so they share the machine's load.
        p99_ms: the slowest of a hundred queries.
        memory: bytes that should stay in memory.
    """

    name: str
    config: SegmentConfig
    recall: float
    recall_low: float
    recall_high: float
    ndcg: float | None
    ms: float
    p99_ms: float
    memory: int


@dataclass(frozen=True, slots=True)
class Results:
    """The results of a bench.

    Attributes:
        measured_at: start of the measurement, ISO 8601 in UTC.
        complete: False if the bench was interrupted.
        subject: the data set: name, path (of the collection; None for bare vectors), rows, dim,
            queries, k, judged (number of queries with judgements), mode (that of nDCG: the
            default mode, but vector where that is text; None for bare vectors).
        machine: processor, cores, threads.
        settings: repeats, and the goal: recall, confidence, k.
        encoding_ms: milliseconds to encode a question; None for bare vectors.
        now: the name of the row that searches as the collection does, or for bare vectors as a new
            collection would; None before it was measured.
        recommended: the name of the row that a tuning chose; None if none holds the goal.
        why: what held-out queries say of it, or why there is none.
        rows: the operating points, exact search first.
        curve: all points of the tuning, as it measured them: prefix, structure, code, shortlist,
            effort, recall, ms.
    """

    measured_at: str
    complete: bool
    subject: Mapping[str, Any]
    machine: Mapping[str, Any]
    settings: Mapping[str, Any]
    encoding_ms: float | None
    now: str | None
    recommended: str | None
    why: str
    rows: tuple[Row, ...]
    curve: tuple[Mapping[str, Any], ...]

    def named(self, name: str | None) -> Row | None:
        """The row with a name, in which -> may stand for →; None if there is none."""
        arrowed = None if name is None else name.replace("->", "→")
        return next((row for row in self.rows if row.name == arrowed), None)

    def point(self, name: str) -> Row:
        """The row with a name, or the one that is RECOMMENDED. Raises QueryError."""
        row = self.named(self.recommended if name == RECOMMENDED else name)
        if row is None and name == RECOMMENDED:
            raise QueryError(f"the bench recommends nothing: {self.why}")
        if row is None:
            names = ", ".join([RECOMMENDED, *(row.name for row in self.rows)])
            raise QueryError(f"the bench has no point {name!r}; its points are {names}")
        return row

    def table(self) -> list[dict[str, str]]:
        """A line for each point: the recommended one, the present one, exact search, then by speed.

        Recall has its interval.
        """
        about, order = self.subject, {EXACT: 2, self.now: 1, self.recommended: 0}
        rows = sorted(self.rows, key=lambda row: (order.get(row.name, 3), row.ms))
        marks = {RECOMMENDED: self.recommended, "now" if about["path"] else "default": self.now}
        quality = "nDCG@10" + ("" if about["mode"] == "vector" else f", {about['mode']}")
        return [
            {
                "": ", ".join(mark for mark, name in marks.items() if name == row.name),
                "point": row.name,
                f"recall@{about['k']}": with_ends(row.recall, row.recall_low, row.recall_high),
                **({quality: fraction(row.ndcg)} if about["judged"] else {}),
                "search, ms": short(row.ms),
                "p99, ms": short(row.p99_ms),
                "memory, MiB": short(row.memory / MIB),
            }
            for row in rows
        ]

    def as_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {"format": FORMAT, **asdict(self)}

    def write(self, folder: Path) -> Path:
        """Write `results.json` to a folder, whole or not at all."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / RESULTS
        partial = path.with_name(f".{RESULTS}.partial")
        write_json(partial, self.as_dict())
        partial.replace(path)
        return path

    @classmethod
    def read(cls, path: Path) -> "Results":
        """Read results from the file or its folder. Raises QueryError."""
        path = path / RESULTS if path.is_dir() else path
        try:
            value = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            message = f"{path}: no such file; searchengine bench --out DIR writes one"
            raise QueryError(message) from None
        except (OSError, ValueError) as error:
            raise QueryError(f"{path} cannot be read as JSON ({error})") from error
        number = value.pop("format", None) if isinstance(value, dict) else None
        if number != FORMAT:
            raise QueryError(
                f"{path} must contain bench results in format {FORMAT}, got format {number!r}; "
                "measure again: searchengine bench --out DIR"
            )
        try:
            configs = [SegmentConfig.from_dict(row["config"]) for row in value["rows"]]
            pairs = zip(value["rows"], configs, strict=True)
            rows = tuple(Row(**row | {"config": config}) for row, config in pairs)
            return cls(**value | {"rows": rows, "curve": tuple(value["curve"])})
        except (KeyError, TypeError, ValueError) as error:
            raise QueryError(f"{path} is damaged: {error!r}; measure again") from error


def point_at(address: str, engine: SearchEngine) -> Row:
    """The row of FILE#NAME, measured on vectors as wide as those of a collection.

    FILE is a results.json or its folder, NAME as in `Results.point`. Raises QueryError.
    """
    path, _, name = address.partition("#")
    results, collection = Results.read(Path(path)), engine.collection
    if (measured := results.subject["dim"]) != (dim := collection.settings["encoder"]["dim"]):
        raise QueryError(
            f"{address} was measured on vectors of {measured} dimensions, and {collection.path} "
            f"has {dim}; bench this collection"
        )
    return results.point(name or RECOMMENDED)


def short(value: float) -> str:
    """Three significant digits: 0.0123, 1.23, 1,230."""
    rounded = float(f"{value:.3g}")
    if not rounded or abs(rounded) >= 1000:
        return f"{rounded:,.0f}"
    return f"{rounded:#.3g}".rstrip(".")  # "#" keeps the zeros of 1.20


def fraction(value: float | None) -> str:
    """A share such as recall, three digits; a value below 1 is never written as 1."""
    if value is None:
        return "–"  # not measured
    texts = (f"{value:.{digits}f}" for digits in (3, 4, 5))
    return next((text for text in texts if value >= 1 or float(text) < 1), "0.99999")


def with_ends(value: float, low: float, high: float) -> str:
    """A share and the ends of its interval; only the share if all are equal."""
    text, *ends = map(fraction, (value, low, high))
    return text if ends == [text, text] else f"{text} ({ends[0]}–{ends[1]})"
