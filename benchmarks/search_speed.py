"""Time of a search at equal recall: our segment and its peers, on other people's files or ours.

    python benchmarks/search_speed.py                                  # synthetic rows
    python benchmarks/search_speed.py --vectors vectors.npy            # real sentences
    python benchmarks/search_speed.py --hdf5 glove-100-angular.hdf5    # of ann-benchmarks or VIBE
    OPENBLAS_CORETYPE=Prescott python benchmarks/search_speed.py       # as on an unknown processor

Each side (search_sides.py) is a process of its own, stopped while another works: the idle threads
of a peer spin, and would take time from the others. Peers that are not installed are named and left
out. Settings are chosen for each side on the first half of the queries, for recall@10 of 0.95 and
0.98; every figure is of the other half, and a ratio compares times of the same round. Recall is the
share of the first ten in `neighbors`. Memory is what the process grew by, and the files it maps.

--hdf5 reads the layout that ann-benchmarks and VIBE share: train (n, D), test (q, D), neighbors
(q, at least 10), distances, and the attribute distance. --out writes, for each side and setting,
a file as `store_results` of ann-benchmarks at commit f402b2c (June 2025) does, below
DATASET/10/SIDE and, for a batch, DATASET/10/SIDE-batch. It has the first half of the queries too,
because its readers compare line by line with the file of the data set. index_size is in KiB.
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
from real_vectors import split
from record import RESULTS, record, spread
from search_sides import OURS, PEERS, K, processors
from sides import Side, in_turn, times
from synthetic import Synthetic

from searchengine.cli.console import show_rows
from searchengine.indexer.arrays import Floats, RowNumbers, unit_rows
from searchengine.indexer.native.library import description
from searchengine.measure.points import processor_name

SCRIPT = str(Path(__file__).with_name("search_sides.py"))
TARGETS = (0.95, 0.98)
QUERIES = 2000  # where they do not come from a file
ALONE = 300  # queries timed one by one in a round
COSINES = ("angular", "cosine", "normalized")  # the names of ann-benchmarks, and of VIBE
UNIT = ("euclidean", "ip")  # distances with the order of the cosine among rows of unit length
FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@dataclass(frozen=True, slots=True)
class Data:
    """What is searched: unit rows (n, D) and queries (q, D) float32, neighbors (q, K) int64."""

    name: str
    distance: str
    rows: Floats
    queries: Floats
    neighbors: RowNumbers

    def distances(self, found: RowNumbers) -> Floats:
        """Distances of rows (q, K) to their queries, as ann-benchmarks and VIBE define them."""
        lines = []
        for rows, query in zip(found, self.queries, strict=True):
            if self.distance == "euclidean":
                lines.append(np.linalg.norm(self.rows[rows] - query, axis=1))
            else:
                lines.append((self.distance != "ip") - self.rows[rows] @ query)
        return np.array(lines, np.float32)


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
    return Data(
        path.stem, distance, unit_rows(rows), unit_rows(queries), neighbors[:, :K].astype(np.int64)
    )


def exact(name: str, rows: Floats, queries: Floats) -> Data:
    """Unit rows and queries with their true neighbors by cosine."""
    found = []
    for start in range(0, len(queries), 100):
        scores = queries[start : start + 100] @ rows.T
        best = np.argpartition(-scores, K, axis=1)[:, :K]
        order = np.argsort(-np.take_along_axis(scores, best, 1), axis=1, kind="stable")
        found.append(np.take_along_axis(best, order, 1))
    return Data(name, "angular", rows, queries, np.concatenate(found))


def measure(data: Data, names: list[str], rounds: int, out: Path | None) -> dict[str, Any]:
    """Build all sides, choose settings, and measure in turns; returns figures by side."""
    figures: dict[str, Any] = {}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        for part in ("rows", "queries", "neighbors"):
            np.save(folder / f"{part}.npy", getattr(data, part))
        sides = {}
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
                if out:
                    for batch in (False, True):
                        write_results(data, sides[name], name, figures[name], figure, batch, out)
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


def write_results(
    data: Data, side: Side, name: str, about: Any, figure: Any, batch: bool, out: Path
) -> None:
    """Search all queries, and write what ann-benchmarks would of this side and setting."""
    answer = side.ask(do="results", setting=figure["setting"], batch=batch)
    rows, seconds = np.array(answer["rows"]), np.array(answer["seconds"])
    setting = "_".join(f"{key}_{value}" for key, value in figure["setting"].items())
    size = (about["private_bytes_a_row"] + about["mapped_bytes_a_row"]) * len(data.rows)
    folder = out / data.name / str(K) / (name + "-batch" * batch)
    folder.mkdir(parents=True, exist_ok=True)
    with h5py.File(folder / f"{setting}.hdf5", "w") as file:
        file.attrs.update(
            algo=name,
            batch_mode=batch,
            best_search_time=seconds.mean(),
            build_time=about["build_s"],
            candidates=float((rows >= 0).sum(axis=1).mean()),
            count=K,
            dataset=data.name,
            distance=data.distance,
            expect_extra=False,
            index_size=size / 1024,
            name=f"{name}({setting})",
            run_count=1,
        )
        file["times"] = seconds.astype(np.float32)
        file["neighbors"] = rows.astype(np.int32)
        file["distances"] = np.where(rows < 0, np.inf, data.distances(rows))


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
@click.option("--vectors", type=FILE, help="Rows: a .npy file (n, D).")
@click.option("--queries", type=FILE, help="Queries: a .npy file (q, D); the last of --vectors.")
@click.option("--rows", default=200_000, show_default=True, help="Rows, except with --hdf5.")
@click.option("--dim", default=768, show_default=True, help="Dimensions of synthetic rows.")
@click.option("--rounds", default=9, show_default=True)
@click.option("--peer", "peers", multiple=True, type=click.Choice(list(PEERS)), help="Not all.")
@click.option("--out", type=click.Path(path_type=Path), help="Folder for results, JSON and HDF5.")
def main(
    hdf5: Path | None,
    vectors: Path | None,
    queries: Path | None,
    rows: int,
    dim: int,
    rounds: int,
    peers: tuple[str, ...],
    out: Path | None,
) -> None:
    """Measure our segment and its peers at equal recall."""
    if hdf5:
        data = read_hdf5(hdf5)
    elif vectors and queries:
        data = exact(vectors.stem, unit_rows(np.load(vectors)[:rows]), unit_rows(np.load(queries)))
    elif vectors:
        base, spare = split(vectors, rows)
        data = exact(vectors.stem, unit_rows(base), unit_rows(spare[:QUERIES]))
    else:
        source = Synthetic(dim=dim)
        base = np.concatenate(list(source.blocks(rows)))
        data = exact(f"synthetic-{dim}-angular", base, source.queries(QUERIES))
    figures = measure(data, [OURS, *(peers or PEERS)], rounds, out)
    for target in TARGETS:
        click.echo(f"recall@{K} {target}: {len(data.rows)} rows, {data.name}")
        show_rows(table(figures, target))
    click.echo(f"{processor_name()}, {processors()} threads, kernel: {description()}")
    for library in figures[OURS]["blas"]:
        click.echo("BLAS of {of}: {library} {version}, kernel {kernel}".format(**library))
    about = {"rows": len(data.rows), "dim": data.rows.shape[1], "data": data.name}
    record("search_speed", about | {"sides": figures}, out or RESULTS)


if __name__ == "__main__":
    main()
