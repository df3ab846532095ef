"""Time of a search at equal recall: our segment and its peers, on other people's files or ours.

    python benchmarks/search_speed.py                                  # synthetic rows
    python benchmarks/search_speed.py --vectors vectors.npy            # real sentences
    python benchmarks/search_speed.py --peer "ours by faiss"           # what the kernel gains
    python benchmarks/search_speed.py --hdf5 glove-100-angular.hdf5    # of ann-benchmarks or VIBE
    OPENBLAS_CORETYPE=Prescott python benchmarks/search_speed.py       # as on an unknown processor

Each side (peer_runner.py) is a process of its own, stopped while another works: the idle threads
of a peer spin, and would take time from the others. Peers that are not installed are named and left
out. Settings are chosen for each side on the first half of the queries, for recall@10 of 0.95 and
0.98; every figure is of the other half, and a ratio compares times of the same round. Recall is the
share of the first ten in `neighbors`. Memory is what the process grew by, and the files it maps.

--hdf5 reads the layout that ann-benchmarks and VIBE share: train (n, D), test (q, D), neighbors
(q, at least 10), and the attribute distance.
"""

import signal
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import h5py
import numpy as np
from peer_runner import OURS, PEERS, K, processors
from record import record, spread, times
from sides import Side, in_turn
from vectors import FILE, ROWS, VECTORS, blocks_of, nearest, queries_of

from searchengine.cli.console import show_rows
from searchengine.indexer.arrays import Floats, RowNumbers, unit_rows
from searchengine.indexer.native.library import description
from searchengine.measure.bench import processor_name

SCRIPT = str(Path(__file__).with_name("peer_runner.py"))
TARGETS = (0.95, 0.98)
QUERIES = 2000  # where they do not come from a file
ALONE = 300  # queries timed one by one in a round
COSINES = ("angular", "cosine", "normalized")  # the names of ann-benchmarks, and of VIBE
UNIT = ("euclidean", "ip")  # distances with the order of the cosine among rows of unit length


@dataclass(frozen=True, slots=True)
class Data:
    """What is searched: unit rows (n, D) and queries (q, D) float32, neighbors (q, K) int64."""

    name: str
    rows: Floats
    queries: Floats
    neighbors: RowNumbers


class Stopped(Side):
    """A side that is stopped except while it answers."""

    def __init__(self, side: str, folder: Path) -> None:
        """Start it; returns when its index is built."""
        super().__init__(SCRIPT, side=side, folder=str(folder))
        self._process.send_signal(signal.SIGSTOP)

    def ask(self, **request: Any) -> Any:
        self._process.send_signal(signal.SIGCONT)
        answer = super().ask(**request)
        self._process.send_signal(signal.SIGSTOP)
        return answer

    def __exit__(self, *exception: object) -> None:
        self._process.send_signal(signal.SIGCONT)
        super().__exit__(*exception)


def read_hdf5(path: Path) -> Data:
    """A data set of ann-benchmarks or VIBE. Raises click.UsageError for what cannot be measured."""
    with h5py.File(path) as file:
        distance = str(file.attrs.get("distance"))
        if distance not in COSINES + UNIT:
            names = ", ".join(COSINES + UNIT)
            raise click.UsageError(f"distance must be one of {names}, got {distance} in {path}")
        if missing := {"train", "test", "neighbors"} - set(file):
            raise click.UsageError(f"{path} has no data set {', '.join(sorted(missing))}")
        rows, queries, neighbors = (file[name][:] for name in ("train", "test", "neighbors"))
    if neighbors.shape[1] < K:
        raise click.UsageError(f"neighbors must have {K} columns, got {neighbors.shape[1]}")
    lengths = np.concatenate([np.linalg.norm(part, axis=1) for part in (rows, queries)])
    if distance in UNIT and abs(lengths - 1).max() > 1e-3:
        raise click.UsageError(
            f"distance {distance} needs vectors of length 1, got lengths from {lengths.min():.3g} "
            f"to {lengths.max():.3g} in {path}: the nearest by cosine would be others"
        )
    return Data(path.stem, unit_rows(rows), unit_rows(queries), neighbors[:, :K].astype(np.int64))


def exact(name: str, rows: Floats, queries: Floats) -> Data:
    """Unit rows and queries with their true neighbors by cosine."""
    return Data(name, rows, queries, nearest(rows, queries, K))


def measure(data: Data, names: list[str], rounds: int) -> dict[str, Any]:
    """Build all sides, choose settings, and measure in turns; returns figures by side."""
    figures: dict[str, Any] = {}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        for part in ("rows", "queries", "neighbors"):
            np.save(folder / f"{part}.npy", getattr(data, part))
        sides: dict[str, Stopped] = {}
        for name in names:
            try:
                side = stack.enter_context(Stopped(name, folder))
                figures[name] = side.about
            except RuntimeError as error:  # its process ended, of a signal perhaps
                if name == OURS:
                    raise
                figures[name] = {"left_out": str(error).strip().splitlines()[-1]}
            if "left_out" in figures[name]:
                click.echo(f"left out: {name}: {figures[name]['left_out']}", err=True)
                continue
            sides[name] = side
            click.echo(f"{name}: built in {side.about['build_s']:.1f} s", err=True)
        for target in TARGETS:
            for name, figure in at_recall(sides, target, rounds).items():
                figures[name][f"at {target}"] = figure
    return figures


def at_recall(sides: dict[str, Stopped], target: float, rounds: int) -> dict[str, dict[str, Any]]:
    """Figures of every side at one recall: settings, times, and times over ours."""
    shown = {name: side.ask(do="choose", target=target) for name, side in sides.items()}
    batches: dict[str, list[float]] = {name: [] for name in sides}
    alone: dict[str, list[float]] = {name: [] for name in sides}
    for turn in range(rounds):
        for name in in_turn(list(sides), turn):
            answer = sides[name].ask(do="batch", setting=shown[name]["setting"])
            batches[name].append(answer["seconds"] * 1e6)
            shown[name]["recall"] = answer["recall"]
        for name in in_turn(list(sides), turn):
            seconds = sides[name].ask(do="alone", setting=shown[name]["setting"], count=ALONE)
            alone[name].append(seconds * 1e6)
    for name, figure in shown.items():
        for kind, measured in (("batch", batches), ("alone", alone)):
            figure[f"{kind}_us"] = spread(measured[name])
            figure[f"{kind}_times_ours"] = times(measured[name], measured[OURS])
    return shown


def table(figures: dict[str, Any], target: float) -> list[dict[str, Any]]:
    """The lines to print of one recall: each side that was measured."""
    lines = []
    for name, about in figures.items():
        if (figure := about.get(f"at {target}")) is None:
            continue
        line = {
            "index": f"{name}: {about['index']}",
            "setting": ", ".join(f"{key} {value}" for key, value in figure["setting"].items()),
            "recall": f"{figure['recall']:.4f}" + " (missed)" * (not figure["reached"]),
        }
        for kind in ("alone", "batch"):
            ratio = figure[f"{kind}_times_ours"]
            line[f"µs {kind}"] = f"{figure[f'{kind}_us']['median']:.1f}"
            line["× ours" + " " * (kind == "batch")] = (
                f"{ratio['median']:.2f} ({ratio['q1']:.2f}–{ratio['q3']:.2f})"
            )
        line["bytes a row + mapped"] = (
            f"{about['private_bytes_a_row']:.0f} + {about['mapped_bytes_a_row']:.0f}"
        )
        lines.append(line | {"build, s": f"{about['build_s']:.1f}"})
    return lines


@click.command()
@click.option("--hdf5", type=FILE, help="Data set in the layout of ann-benchmarks and VIBE.")
@VECTORS
@ROWS
@click.option("--dim", default=768, show_default=True, help="Dimensions of synthetic rows.")
@click.option("--rounds", default=9, show_default=True)
@click.option("--peer", "peers", multiple=True, type=click.Choice(list(PEERS)), help="Not all.")
def main(
    hdf5: Path | None,
    vectors: Path | None,
    rows: int,
    dim: int,
    rounds: int,
    peers: tuple[str, ...],
) -> None:
    """Measure our segment and its peers at equal recall."""
    if hdf5:
        data = read_hdf5(hdf5)
    else:
        base = unit_rows(np.concatenate([*blocks_of(vectors, rows, dim)]))
        queries = unit_rows(queries_of(vectors, rows, QUERIES, dim))
        data = exact(vectors.stem if vectors else f"synthetic-{dim}", base, queries)
    figures = measure(data, [OURS, *(peers or PEERS)], rounds)
    for target in TARGETS:
        click.echo(f"recall@{K} {target}: {len(data.rows)} rows, {data.name}")
        show_rows(table(figures, target))
    click.echo(f"{processor_name()}, {processors()} threads, kernel: {description()}")
    for library in figures[OURS]["blas"]:
        click.echo("BLAS of {of}: {library} {version}, kernel {kernel}".format(**library))
    about = {"rows": len(data.rows), "dim": data.rows.shape[1], "data": data.name}
    record("search_speed", about | {"sides": figures})


if __name__ == "__main__":
    main()
