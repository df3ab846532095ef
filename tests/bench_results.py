"""Results of a bench that might have been measured: made by a seed, no index and no clock."""

from dataclasses import replace
from typing import Any

import numpy as np

from searchengine.indexer.config import ALL_ROWS, SegmentConfig
from searchengine.measure.results import Kind, Results, Row, Spread

DIM, ROWS, K = 384, 200_000, 10
EXACT_MS = 12.0
SHARES = {64: 0.30, 128: 0.12, 192: 0.05, 384: 0.02}  # of the neighbours a shortlist of 50 misses


FIVE = (1.0, 1.1, 0.9, 1.0, 1.2)


def times(factor: float, rounds: tuple[float, ...] = FIVE) -> tuple[float, ...]:
    """Five rounds, the same for all but for a factor."""
    return tuple(factor * each for each in rounds)


def row(name: str, rounds: tuple[float, ...] = (1.0, 1.0, 1.0), **fields: Any) -> Row:
    """A row by hand: a cascade that holds 0.95, unless told otherwise."""
    latency = Spread.from_values(rounds)
    values: dict[str, Any] = {
        "kind": Kind.CASCADE,
        "recall": 0.97,
        "recall_low": 0.96,
        "recall_high": 0.98,
        "ndcg": None,
        "ndcg_loss": None,
        "p50_ms": latency,
        "p95_ms": latency,
        "p99_ms": latency,
        "rounds_ms": rounds,
        "batch_qps": None,
        "measured": Spread(10.0, 10.0, 10.0),
        "hot_bytes": 2**20,
        "cold_bytes": 2**24,
        "build_s": 1.0,
    }
    config = {"structure": "hnsw", "code": "int8", "prefix": 64, "shortlist": 100}
    for key in [key for key in fields if key in SegmentConfig.__dataclass_fields__]:
        config[key] = fields.pop(key)
    values["config"] = SegmentConfig(**config)  # type: ignore[arg-type]
    return Row(name=name, **(values | fields))


def exact(rounds: tuple[float, ...] = (10.0, 10.0, 10.0), **fields: Any) -> Row:
    """Exact search by hand."""
    values: dict[str, Any] = {
        "kind": Kind.EXACT,
        "structure": "flat",
        "code": "fp16",
        "shortlist": ALL_ROWS,
        "recall": 1.0,
        "recall_low": 1.0,
        "recall_high": 1.0,
        "measured": Spread(1.0, 1.0, 1.0),
        "hot_bytes": 0,
        "build_s": None,
    }
    return row("exact", rounds, **(values | fields))


def results(*rows: Row, **fields: Any) -> Results:
    """Results by hand, of these rows; nothing but the search takes time, unless told otherwise."""
    sample = plausible()
    return replace(sample, rows=rows, **({"missing": {}, "overhead_ms": None} | fields))


def plausible(seed: int = 0, noise: float = 0.03, rounds: int = 5, busy: float = 0.0) -> Results:
    """Some 25 rows of all kinds, as a bench on a machine of its own might find them.

    noise: standard deviation of the logarithm of a row's median in one round; busy: the same of
    what slows a whole round down. The truth, and so every recall, is the same for every seed.
    """
    generator = np.random.default_rng(seed)
    slowed = np.exp(np.abs(generator.normal(0, busy, rounds)))
    measured_rows = [
        _measured(one, ms, generator.normal(0, noise, rounds), slowed) for one, ms in _points()
    ]
    measured_rows = [_against(one, measured_rows[0]) for one in measured_rows]
    return Results(
        measured_at="2026-01-02T03:04:05+00:00",
        complete=True,
        subject={
            "name": "sentences.index",
            "path": "data/sentences.index",
            "rows": ROWS,
            "dim": DIM,
            "queries": 1000,
            "k": K,
            "segments": 1,
            "storage": "float16",
            "encoder": "starter",
            "judged": 300,
            "default_mode": "vector",
            "mode": "vector",
        },
        machine={
            "processor": "A Processor 9000",
            "cores": 2,
            "threads": 1,
            "memory": 16 * 2**30,
            "system": "Linux",
            "python": "3.11.4",
            "versions": {"faiss": "1.15.1", "numpy": "2.3.0"},
        },
        settings={
            "repeats": rounds,
            "prefixes": [64, 128, 192],
            "shortlists": [20, 50, 100, 200],
            "structures": ["flat", "hnsw"],
            "codes": ["int8"],
            "target": 0.95,
        },
        overhead_ms=Spread(1.42, 1.38, 1.51),
        now=None,
        rows=tuple(measured_rows),
        missing={"hnsw fp16 384, ef 512": "it needs more memory than is left"},
    )


def _points() -> list[tuple[Row, float]]:
    """Every row, and its true median in milliseconds; what is measured is put in later."""
    points = [(exact(ndcg=0.645), EXACT_MS)]
    for structure in ("flat", "hnsw"):
        for prefix in (64, 128, 192):
            for shortlist in (20, 50, 200) if structure == "hnsw" else (50, 200):
                points.append(_cascade(structure, prefix, shortlist, Kind.CASCADE))
    points += [_cascade("hnsw", 64, shortlist, Kind.TRUNCATED) for shortlist in (50, 200)]
    one, ms = _cascade("flat", 64, 200, Kind.FUNNEL)
    points.append(
        (
            replace(
                one,
                name="flat int8 64 → 200 → 128: 50",
                config=replace(one.config, stages=((128, 50),)),
            ),
            0.9 * ms,
        )
    )
    points += [_cascade("hnsw", DIM, effort, Kind.FULL) for effort in (50, 200)]
    return points


def _cascade(structure: str, prefix: int, shortlist: int, kind: Kind) -> tuple[Row, float]:
    missed = SHARES[prefix] * (50 / shortlist) ** 0.8
    if kind is Kind.TRUNCATED:
        missed = min(0.9, 2.5 * missed)
    work = ROWS * prefix if structure == "flat" else 30 * shortlist * prefix
    ms = 0.08 + work / 1e7 + shortlist / 2000
    name, code = f"{structure} int8 {prefix} → {shortlist}", "int8"
    if kind is Kind.TRUNCATED:
        name = f"{name}, not rotated"
    if kind is Kind.FULL:  # the effort is what is named, and all found are scored already
        ms, name, code = 2.2 * ms, f"{structure} fp16 {prefix}, ef {shortlist}", "fp16"
    one = row(
        name,
        kind=kind,
        structure=structure,
        code=code,
        prefix=prefix,
        shortlist=K if kind is Kind.FULL else shortlist,
        effort=shortlist if kind is Kind.FULL else 0,
        **_share(1 - missed),
        ndcg=round(0.645 - 0.2 * missed, 4),
        hot_bytes=ROWS * (prefix + (280 if structure == "hnsw" else 0)),
        cold_bytes=ROWS * DIM * 2,
        build_s=0.4 if structure == "flat" else 4.0 + prefix / 64,
    )
    return one, ms


def _share(recall: float) -> dict[str, float]:
    half = 1.2 * (recall * (1 - recall)) ** 0.5 / 30
    low, high = max(0.0, recall - half), min(1.0, recall + half)
    return {"recall": round(recall, 4), "recall_low": round(low, 4), "recall_high": round(high, 4)}


def _measured(one: Row, ms: float, off: np.ndarray, slowed: np.ndarray) -> Row:
    rounds = ms * np.exp(off) * slowed
    return replace(
        one,
        p50_ms=Spread.from_values(rounds.tolist()),
        p95_ms=Spread.from_values((1.4 * rounds).tolist()),
        p99_ms=Spread.from_values((2 * rounds).tolist()),
        rounds_ms=tuple(rounds.tolist()),
        batch_qps=Spread.from_values((3000 / rounds).tolist()),
    )


def _against(one: Row, scan: Row) -> Row:
    times = [a / b for a, b in zip(scan.rounds_ms, one.rounds_ms, strict=True)]
    return replace(one, measured=Spread.from_values(times))
