"""What could make encoding on a GPU faster, each beside what is done.

    python benchmarks/gpu_encoding.py          # where there is no CUDA device, it says so
    python benchmarks/gpu_encoding.py --processor --documents 20 --shape MiniLM

The networks of gpu_training.py with random weights, in bf16, on the abstracts of SciFact. In turns:

- padded: batches of texts of similar length, one after another.
- as it is: without padding where that can be (not mpnet, whose positions are relative).
- in flight: padded, from and to pinned memory; the next batch starts before the last one is back.
- compiled: padded, layers by torch.compile, for any width.
- fp32, and with TF32: float32 sums of products of 10 bits.

Besides: what the tokenizer takes, what `encode` takes, which overlaps both; and the documents that
1, 2 and 4 processes on one GPU encode in a second together.
"""

import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click
import numpy as np
from encoding import scifact
from fresh import answer, measure
from gpu_training import SHAPES, write_network
from record import DATA, record, spread
from sides import Side, in_turn, run

PROCESSES = (1, 2, 4)
PADDED = "padded"


class Trial:
    """The ways to encode the same batches, with one encoder."""

    def __init__(self, folder: Path, texts: Sequence[str], device: str, precision: str):
        import torch

        from searchengine.trainer.encoder import Encoder
        from searchengine.trainer.model.modules import lowered
        from searchengine.trainer.runtimes.runtime import MIN_LENGTH_RATIO, token_budget_batches

        self.encoder = Encoder.load(folder, runtime="torch", precision=precision, device=device)
        self.encoder.encode(texts[:64])
        self.runtime: Any = self.encoder._handle.runtime
        types = {"bf16": torch.bfloat16, "fp32": torch.float32}
        self.plain = lowered(self.encoder.module, types[precision], self.runtime.device)
        self.tokens = self.encoder._tokens
        self.ids = self.tokens(texts)
        lengths = [len(row) for row in self.ids]
        budget = self.runtime.token_budget
        self.batches = [*token_budget_batches(lengths, budget, MIN_LENGTH_RATIO)]
        padded = sum(max(lengths[i] for i in batch) * len(batch) for batch in self.batches)
        self.about = {"tokens of a batch": budget, "padding": 1 - sum(lengths) / padded}

    def padded(self) -> Iterator[Any]:
        for batch in self.batches:
            yield self.tokens.pad([self.ids[i] for i in batch])

    def ordered(self, vectors: Sequence[np.ndarray]) -> np.ndarray:
        order = np.argsort([i for batch in self.batches for i in batch])
        return np.concatenate(vectors)[order]

    def as_it_is(self) -> np.ndarray:
        return self.ordered([self.runtime.run(batch) for batch in self.padded()])

    def in_flight(self) -> np.ndarray:
        import torch

        from searchengine.trainer.model.modules import Batch

        pending: deque[tuple[Any, Any]] = deque()
        vectors: list[np.ndarray] = []

        def finish() -> None:
            rows, event = pending.popleft()
            event.synchronize()
            vectors.append(rows.numpy().copy())

        for batch in self.padded():
            with torch.inference_mode():
                ids, mask = (
                    torch.from_numpy(part).pin_memory().to(self.runtime.device, non_blocking=True)
                    for part in (batch.ids, batch.mask)
                )
                found = self.plain.output(Batch(ids, mask, batch.prompt_tokens))
                rows = torch.empty(found.shape, pin_memory=True)
                rows.copy_(found, non_blocking=True)
                event = torch.cuda.Event()
                event.record()
            pending.append((rows, event))
            if len(pending) == 2:
                finish()
        while pending:
            finish()
        return self.ordered(vectors)

    def by(self, module: Any) -> np.ndarray:
        """As it is, by another module."""
        running, self.runtime.__dict__["_running"] = self.runtime._running, module
        try:
            return self.as_it_is()
        finally:
            self.runtime.__dict__["_running"] = running


def trials(folder: Path, data: Path, documents: int, device: str, rounds: int) -> Any:
    """Seconds of each way, in turns; and its vectors beside those of padded batches."""
    import torch

    texts = scifact(data, documents)
    trial = Trial(folder, texts, device, "bf16")
    found: dict[str, Any] = dict(trial.about)
    found["network"] = type(trial.runtime._running.transformer).__name__
    ways: dict[str, Callable[[], np.ndarray]] = {PADDED: lambda: trial.by(trial.plain)}
    ways["as it is"] = trial.as_it_is
    if device == "cuda":
        ways["in flight"] = trial.in_flight
        exact = Trial(folder, texts, device, "fp32")

        def tf32() -> np.ndarray:
            torch.set_float32_matmul_precision("high")
            try:
                return exact.as_it_is()
            finally:
                torch.set_float32_matmul_precision("highest")

        ways |= {"fp32": exact.as_it_is, "fp32, TF32": tf32}
    ways["tokenizer"] = lambda: np.zeros(len(trial.tokens(texts)))
    ways["encode"] = lambda: trial.encoder.encode(texts)
    vectors = {name: way() for name, way in ways.items()}
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(rounds):
        for name in in_turn([*ways], turn):
            start = time.perf_counter()
            ways[name]()
            seconds[name].append(time.perf_counter() - start)
    for name, took in seconds.items():
        found[name] = {"documents/s": spread([len(texts) / each for each in took])}
        if name not in (PADDED, "tokenizer"):
            cosines = np.einsum("nd,nd->n", vectors[name], vectors[PADDED], dtype=np.float64)
            found[name]["cosine, min"] = float(cosines.min())
            ratios = [a / b for a, b in zip(seconds[PADDED], took, strict=True)]
            found[name]["times padded"] = spread(ratios)
    return found


def compiled(folder: Path, data: Path, documents: int, device: str, rounds: int) -> Any:
    """Seconds of the same batches before and after torch.compile, and of compiling."""
    texts = scifact(data, documents)
    trial = Trial(folder, texts, device, "bf16")

    def seconds() -> float:
        start = time.perf_counter()
        trial.by(trial.plain)
        return time.perf_counter() - start

    before = [seconds() for _ in range(rounds + 1)][1:]
    trial.plain.transformer.compile(dynamic=True)
    first, *after = [seconds() for _ in range(rounds + 2)]
    ratios = [a / b for a, b in zip(before, after[1:], strict=True)]
    return {"times padded": spread(ratios), "first, s": first}


def be(folder: str, data: str, documents: int, device: str) -> tuple[Callable[..., Any], Any]:
    """A process that encodes when it is asked to."""
    from searchengine.trainer.encoder import Encoder

    encoder = Encoder.load(folder, runtime="torch", precision="bf16", device=device)
    texts = scifact(Path(data), documents)
    encoder.encode(texts)

    def answered(rounds: int) -> float:
        start = time.perf_counter()
        for _ in range(rounds):
            encoder.encode(texts)
        return time.perf_counter() - start

    return answered, {}


def together(folder: Path, data: Path, documents: int, device: str) -> dict[str, float]:
    """Documents per second of several processes at once."""
    found = {}
    with ExitStack() as stack, ThreadPoolExecutor(max(PROCESSES)) as pool:
        what = {"folder": str(folder), "data": str(data), "documents": documents}
        what["device"] = device
        started = [
            pool.submit(lambda: stack.enter_context(Side(__file__, **what)))
            for _ in range(max(PROCESSES))
        ]
        sides = [side.result() for side in started]
        texts = len(scifact(data, documents))
        for count in PROCESSES:
            start = time.perf_counter()
            [*pool.map(lambda side: side.ask(rounds=3), sides[:count])]
            found[f"{count}"] = 3 * count * texts / (time.perf_counter() - start)
    return found


@click.command()
@DATA
@click.option("--shape", "shapes", default=[*SHAPES], multiple=True, type=click.Choice([*SHAPES]))
@click.option("--documents", default=0, help="Of SciFact; 0 for all 5,183.")
@click.option("--rounds", default=5, show_default=True)
@click.option("--compile/--no-compile", "compiles", default=True, show_default=True)
@click.option("--processor", is_flag=True, help="Measure here, without a GPU, to try it.")
@click.option("--child", is_flag=True, hidden=True)
@click.option("--folder", type=click.Path(path_type=Path), hidden=True)
def main(
    data: Path,
    shapes: Sequence[str],
    documents: int,
    rounds: int,
    compiles: bool,
    processor: bool,
    child: bool,
    folder: Path,
) -> None:
    """Encode in turns with each shape."""
    import torch

    device = "cpu" if processor else "cuda"
    if child:
        try_out = compiled if compiles else trials
        answer(try_out(folder, data, documents, device, rounds))
        return
    if not processor and not torch.cuda.is_available():
        click.echo("There is no CUDA device here: nothing was measured.")
        return
    figures: dict[str, Any] = {}
    if not processor:
        figures["device"] = torch.cuda.get_device_name()
    for shape in shapes:
        told = ["--data", data, "--documents", documents, "--rounds", rounds]
        told += ["--processor"] if processor else []
        with tempfile.TemporaryDirectory() as scratch:
            write_network(Path(scratch), shape)
            options = [*told, "--folder", scratch]
            figures[shape] = found = measure(__file__, *options, "--no-compile")
            click.echo(f"{shape}: {found}")
            record("gpu_encoding", figures)
            if shape == "MiniLM":
                several = together(Path(scratch), data, documents, device)
                found["processes, documents/s"] = several
                if compiles:
                    found["compiled"] = measure(__file__, *options, "--compile")
                click.echo(f"{shape}: {found}")
                record("gpu_encoding", figures)


if __name__ == "__main__":
    run(main, be)
