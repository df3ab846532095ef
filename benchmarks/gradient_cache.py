"""Memory and seconds of a training step as batches grow, with gradients cached and without.

    python benchmarks/gradient_cache.py

The packaged all-MiniLM-L6-v2 on NLI triplets of at most 64 tokens, nested loss, each run in a
process of its own. A run that the system ends for want of memory is written down as null. Some
twenty minutes on two cores, most of them for the largest batches.

    python benchmarks/gradient_cache.py --memory

The memory of training on 8,192 triplets with cached gradients, on one thread, in as many updates
as the batch size gives: 16 of 512 triplets, or one of all. The batches differ, the work does not:
oneDNN keeps the kernels of up to 1,024 shapes of passes, which grow with the texts seen, whatever
the batch. Freed blocks above 1 MB go back to the system at once. Half an hour.
"""

import os
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from fresh import MEGABYTE, answer, measure, peak_mb, resident_mb
from record import DATA, record
from train_speed import configure, train_ours

SIZES = (64, 512, 1024, 2048, 4096, 8192)
TRIPLETS = 8192  # of the epoch whose memory is measured


def memory_by_batch(data: Path, batches: tuple[int, ...]) -> dict[int, Any]:
    """`an_epoch` for each batch size, in a process of its own; None where memory ran out."""
    os.environ["MALLOC_MMAP_THRESHOLD_"] = str(MEGABYTE)
    found = {}
    for batch in batches:
        found[batch] = measure(__file__, "--memory", "--data", data, "--batch", batch)
        click.echo(f"{batch:5} {found[batch]}")
    return found


def an_epoch(data: Path, batch: int) -> dict[str, float]:
    """MB before the updates and at most, and the number of updates."""
    import torch

    from searchengine.trainer.training.loop import Report, train

    torch.set_num_threads(1)
    before: list[float] = []

    def report(line: Report) -> None:
        if line.step == 0:
            before.append(resident_mb())

    with tempfile.TemporaryDirectory() as scratch:
        config = configure(data, Path(scratch), 0, batch, nested=True, gradient_cache=True)
        steps = max(1, TRIPLETS // batch)
        train(replace(config, max_steps=steps), report)
    return {"updates": steps, "before_mb": before[0], "peak_mb": peak_mb()}


@click.command()
@DATA
@click.option("--steps", default=3, show_default=True, help="Timed steps of a run.")
@click.option("--batch", "batches", default=SIZES, show_default=True, multiple=True, type=int)
@click.option("--memory", is_flag=True, help="The memory of an epoch with cached gradients.")
@click.option("--cache/--no-cache", default=False, hidden=True)
@click.option("--child", is_flag=True, hidden=True, help="Train with the first batch size here.")
def main(
    data: Path,
    steps: int,
    batches: tuple[int, ...],
    memory: bool,
    cache: bool,
    child: bool,
) -> None:
    """Train a few steps at each batch size."""
    if memory and child:
        answer(an_epoch(data, batches[0]))
        return
    if memory:
        found = memory_by_batch(data, batches)
        record("gradient_cache_memory", {"batches": found})
        return
    if child:
        answer(train_ours(data, steps, batches[0], True, gradient_cache=cache))
        return
    results: list[dict[str, Any]] = []
    for batch in batches:
        for cache in (False, True):
            options = ("--data", data, "--steps", steps, "--batch", batch)
            switch = "--cache" if cache else "--no-cache"
            found = measure(__file__, *options, switch)
            results.append({"batch": batch, "gradient_cache": cache, "found": found})
            click.echo(
                f"{batch:5} {'cached' if cache else 'plain':7}"
                + (
                    f"{found['seconds']:7.2f} s/step, peak {found['peak_mb']:.0f} MB"
                    if found
                    else "  out of memory"
                )
            )
    record("gradient_cache", {"steps": steps, "results": results})


if __name__ == "__main__":
    main()
