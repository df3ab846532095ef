"""What gpu.py, gpu_training.py and gpu_encoding.py measure, in one process and within a time.

    python benchmarks/gpu_short.py --seconds 240

For a GPU that is lent for minutes: each of their processes imports for up to 20 s. Pieces follow
one another, the most telling first; what is left when the time is over is left out. Figures are
written after each piece. A piece that fails is recorded with its error, and the next one begins.
"""

import time
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click
import encoding
import gpu
import gpu_encoding
import gpu_training
from gpu_training import COMPILED, SHAPES, TF32
from peaks import matmul
from record import DATA, record

DOCUMENTS = {"MiniLM": 5183, "mpnet-base": 1500, "0.6B decoder": 500}
LARGE = {"MiniLM": 1024, "mpnet-base": 512}  # triplets of a large step
STEPS, ROUNDS = 15, 3
TEXTS = {"scifact": 1500, "sentences": 4000}
QUESTIONS = 168


class Here:
    """A side in this process."""

    def __init__(self, **what: Any):
        self._answer, self.about = encoding.be(**what)

    def ask(self, **request: Any) -> Any:
        return self._answer(**request)


class Pieces:
    """Measures one piece after another, until the time is over."""

    def __init__(self, seconds: float, figures: dict[str, Any]):
        self._end, self.figures = time.monotonic() + seconds, figures

    def measure(self, piece: Callable[[], Any], *place: str, takes: float = 0) -> None:
        """Record a piece at a place among the figures. takes: seconds, about."""
        name = ", ".join(place)
        if time.monotonic() + takes > self._end:
            click.echo(f"{name}: left out")
            return
        try:
            found = piece()
        except Exception:
            found = {"error": traceback.format_exc()[-600:]}
        at = self.figures
        for key in place[:-1]:
            at = at.setdefault(key, {})
        at[place[-1]] = found
        click.echo(f"{name}: {found}")
        record("gpu_short", self.figures)


class Networks:
    """The shapes in folders, and what is measured of them; tiny sizes on a processor."""

    def __init__(self, scratch: Path, data: Path, shapes: Sequence[str], device: str, peak: float):
        self.data, self.device, self.peak = data, device, peak
        self.tiny = device == "cpu"
        self.folders = {s: gpu_training.write_network(scratch / s, s) for s in shapes}

    def steps(self, shape: str, arithmetic: str, batch: int = 128) -> Any:
        """Training steps per second."""
        batch, timed = (4, 1) if self.tiny else (batch, STEPS)
        found = gpu_training.steps_of(self.folders[shape], self.data, batch, timed, arithmetic)
        return gpu_training.rates(found, 1, self.peak)

    def documents(self, shape: str) -> Any:
        """Documents per second of `encode`, and the share of the peak."""
        count = 6 if self.tiny else DOCUMENTS[shape]
        found = gpu_training.documents_of(self.folders[shape], self.data, count, self.device)
        return gpu_training.rates(found, count, self.peak)

    def trials(self, shape: str) -> Any:
        """Documents per second, in each way."""
        documents, rounds = (6, 1) if self.tiny else (DOCUMENTS[shape], ROUNDS)
        return gpu_encoding.trials(self.folders[shape], self.data, documents, self.device, rounds)


def usual(pieces: Pieces, networks: Networks) -> None:
    """Each shape as it is."""
    for shape in networks.folders:
        for name in ("bf16",) if networks.tiny else ("bf16", "fp32", TF32):
            pieces.measure(partial(networks.steps, shape, name), "steps", shape, name)
        pieces.measure(partial(networks.documents, shape), "documents", shape, "encode, bf16")
        pieces.measure(partial(networks.trials, shape), "documents", shape, "ways")


def beside(pieces: Pieces, scratch: Path, data: Path) -> None:
    """Questions and texts beside sentence-transformers."""
    sides: dict[str, Any] = {}

    def opened(name: str, what: dict[str, Any]) -> Any:
        sides[name] = Here(device="cuda", **what)
        return sides[name].about

    for name, what in gpu.SIDES.items():
        pieces.measure(partial(opened, name, what), "sides", name, takes=10)
    if gpu.COUNTING not in sides or gpu.THEIRS not in sides:
        return
    mixed = encoding.mixed(data, QUESTIONS + TEXTS["sentences"])
    pieces.measure(partial(gpu.one_by_one, sides, mixed[:QUESTIONS]), "one question")
    products: Any = Here(tool="matmul", device="cuda")
    texts = {"scifact": encoding.scifact(data, TEXTS["scifact"]), "sentences": mixed[QUESTIONS:]}
    for name, some in texts.items():
        path = encoding.written(scratch / f"{name}.json", some)
        rates = partial(gpu.rates, sides, products, path, ROUNDS)
        pieces.measure(rates, "beside sentence-transformers", name, takes=10)


def others(pieces: Pieces, networks: Networks) -> None:
    """Large steps, several processes, compiled layers."""
    for shape in LARGE.keys() & networks.folders.keys():
        large = partial(networks.steps, shape, "bf16", LARGE[shape])
        pieces.measure(large, "steps", shape, f"bf16, {LARGE[shape]} triplets")
    folder = networks.folders.get("MiniLM")
    if folder is None:
        return
    several = partial(gpu_encoding.together, folder, networks.data, 0, "cuda")
    pieces.measure(several, "processes, documents/s", takes=30)
    compiled = partial(gpu_encoding.compiled, folder, networks.data, 1500, "cuda", ROUNDS)
    pieces.measure(compiled, "documents", "MiniLM", "compiled", takes=30)
    steps = partial(networks.steps, "MiniLM", COMPILED)
    pieces.measure(steps, "steps", "MiniLM", COMPILED, takes=30)


@click.command()
@DATA
@click.option("--seconds", default=240.0, show_default=True, help="After which nothing begins.")
@click.option("--shape", "shapes", default=[*SHAPES], multiple=True, type=click.Choice([*SHAPES]))
@click.option("--processor", is_flag=True, help="Try it here, without a GPU, on few texts.")
def main(data: Path, seconds: float, shapes: Sequence[str], processor: bool) -> None:
    """Measure what the time allows."""
    import torch

    device = "cpu" if processor else "cuda"
    if not processor and not torch.cuda.is_available():
        click.echo("There is no CUDA device here: nothing was measured.")
        return
    peak = matmul(device)[0]()["bf16"][0]
    pieces = Pieces(seconds, {"bf16 peak, FLOP/s": peak})
    with TemporaryDirectory() as name:
        networks = Networks(Path(name), data, shapes, device, peak)
        if processor:
            usual(pieces, networks)
            return
        pieces.figures["device"] = torch.cuda.get_device_name()
        usual(pieces, networks)
        beside(pieces, Path(name), data)
        others(pieces, networks)


if __name__ == "__main__":
    main()
