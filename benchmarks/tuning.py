"""How often a tuning's statement is wrong, and whether a tuning that starts has a result.

    python benchmarks/tuning.py

Synthetic rows (vectors.py), tuned again and again by the tuner's own code: with new
questions each time (600 are given), or with other rows each time, some of which stand in for
questions. Each result is then judged by --judges questions that no tuning saw, searched in an index
of all rows: the statement is wrong where their mean recall@10 is not above the target. `bound` is
what the stated confidence allows: alpha and three standard errors of this number of runs.
"""

import tempfile
from dataclasses import dataclass
from pathlib import Path

import click
import numpy as np
from record import record
from vectors import Synthetic

from searchengine.errors import QueryError
from searchengine.indexer.arrays import Floats
from searchengine.indexer.errors import TuneError
from searchengine.indexer.search.scoring import Allowed
from searchengine.indexer.segment import Segment, SegmentConfig
from searchengine.indexer.tuning.tune import Goal, Tuning, shares, tune
from searchengine.upkeep.tuning import queries_of

QUERIES = 600


@dataclass
class Tally:
    """What came of the tunings of one kind."""

    runs: int = 0
    refused: int = 0
    failed: int = 0
    wrong: int = 0
    lowest: float = 1.0

    def add(self, outcome: float | str, target: float) -> None:
        """One more: the recall that the judges reached, or "refused" or "failed"."""
        self.runs += 1
        if isinstance(outcome, str):
            setattr(self, outcome, getattr(self, outcome) + 1)
        else:
            self.wrong += outcome <= target
            self.lowest = min(self.lowest, outcome)


@click.command()
@click.option("--rows", default="500,2000,20000", show_default=True)
@click.option("--runs", default="40,20,8", show_default=True, help="Tunings of each, by --rows.")
@click.option("--dim", default=96, show_default=True)
@click.option("--target", default=0.95, show_default=True)
@click.option("--confidence", default=0.95, show_default=True)
@click.option("--judges", default=1000, show_default=True)
def main(rows: str, runs: str, dim: int, target: float, confidence: float, judges: int) -> None:
    """Tune, judge, print a table and record it."""
    goal, figures = Goal(target, confidence), {}
    plan = zip(map(int, rows.split(",")), map(int, runs.split(",")), strict=True)
    for size, count in plan:
        for source in ("given", "documents"):
            tally = Tally()
            for run in range(count):
                tally.add(outcome(size, run, source, goal, dim, judges), target)
            alpha, tuned = 1 - confidence, tally.runs - tally.refused
            bound = tuned * alpha + 3 * (tuned * alpha * confidence) ** 0.5
            figures[f"{size} {source}"] = {**vars(tally), "bound": round(bound, 1)}
            click.echo(f"{size:6} {source:10} {figures[f'{size} {source}']}")
    settings = {"target": target, "confidence": confidence, "dim": dim, "judges": judges}
    record("tuning", {**settings, **figures})


def outcome(size: int, run: int, source: str, goal: Goal, dim: int, judges: int) -> float | str:
    """The judges' recall with what was tuned; "refused" before measuring, "failed" after it."""
    # Given questions are what varies, or else the rows: those of the run's own source.
    synthetic = Synthetic(dim, seed=run if source == "documents" else 0)
    queries = synthetic.queries(judges + (run + 1) * QUERIES)
    own_queries = queries[judges + run * QUERIES :] if source == "given" else None
    with tempfile.TemporaryDirectory() as scratch:
        blocks = np.concatenate(list(synthetic.blocks(size)))
        with Segment.build(Path(scratch) / "s", blocks, SegmentConfig(prefix=32)) as segment:
            try:
                tuned = tuned_on(segment, own_queries, goal)
            except QueryError:
                return "refused"
            except TuneError:
                return "failed"
            view = segment.over(tuned.config)
            found, truth = (each(queries[:judges], goal.k) for each in (view.search, segment.exact))
            return float(shares(found, truth, segment.dim).mean())


def tuned_on(segment: Segment, tuning_queries: Floats | None, goal: Goal) -> Tuning:
    """What SearchEngine.tune finds for one segment."""
    others: list[Allowed] | None = None
    if tuning_queries is None:
        tuning_queries, others = queries_of([segment], [None], goal)
    return tune([segment], tuning_queries, goal, searched=others)


if __name__ == "__main__":
    main()
