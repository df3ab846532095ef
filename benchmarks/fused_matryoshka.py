"""Time and memory of the nested loss, forward and backward: each number multiplied once, or not.

python benchmarks/fused_matryoshka.py

`nested_cosines` adds up the products of blocks between the prefixes, `plain_cosines` multiplies
every prefix again. Times alternate in one process; memory is that of a process of its own, above
what it had before. One minute.
"""

import time
from collections.abc import Callable
from typing import Any

import click
from fresh import answer, measure, peak_mb, resident_mb
from record import record, spread

DIMS = (768, 512, 256, 128, 64)
SIZES = ("128x256", "512x1024", "2048x4096")  # anchors x candidates
FORMS = ("nested_cosines", "plain_cosines")


def make_step(form: str, size: str) -> Callable[[], None]:
    """Forward and backward on float32 vectors of this size."""
    import torch

    from searchengine.trainer.training import losses

    nested = losses.matryoshka(losses.info_nce, DIMS, form=getattr(losses, form))
    anchors, candidates = map(int, size.split("x"))
    generator = torch.Generator().manual_seed(0)
    a, c = (torch.randn(n, DIMS[0], generator=generator) for n in (anchors, candidates))
    a.requires_grad_()
    c.requires_grad_()

    def step() -> None:
        a.grad = c.grad = None
        torch.autograd.backward(nested(a, c))

    return step


def memory(form: str, size: str) -> float:
    """MB that a step needs above its input."""
    make_step(form, "8x8")()  # threads and kernels
    step = make_step(form, size)
    before = resident_mb()
    step()
    return peak_mb() - before


def times(size: str, rounds: int) -> dict[str, list[float]]:
    """Milliseconds of each form, in turn."""
    steps = {form: make_step(form, size) for form in FORMS}
    for step in steps.values():
        step()
    found: dict[str, list[float]] = {form: [] for form in FORMS}
    for number in range(rounds):
        for form in FORMS if number % 2 == 0 else FORMS[::-1]:
            start = time.perf_counter()
            steps[form]()
            found[form].append(1e3 * (time.perf_counter() - start))
    return found


@click.command()
@click.option("--rounds", default=15, show_default=True, help="Timed steps of each form.")
@click.option("--repeats", default=3, show_default=True, help="Processes that measure memory.")
@click.option("--size", "sizes", default=SIZES, show_default=True, multiple=True)
@click.option("--form", default=FORMS[0], hidden=True)
@click.option("--child", is_flag=True, hidden=True, help="Measure the memory of one form here.")
def main(rounds: int, repeats: int, sizes: tuple[str, ...], form: str, child: bool) -> None:
    """Compare the two at several sizes (anchors x candidates)."""
    if child:
        answer(memory(form, sizes[0]))
        return
    results: list[dict[str, Any]] = []
    for size in sizes:
        spent = times(size, rounds)
        needed = {
            form: [measure(__file__, "--size", size, "--form", form) for _ in range(repeats)]
            for form in FORMS
        }
        ratios = [plain / fused for fused, plain in zip(*(spent[f] for f in FORMS), strict=True)]
        row: dict[str, Any] = {"size": size, "times as fast": spread(ratios)}
        for form in FORMS:
            row[form] = {"ms": spread(spent[form]), "mb": spread(needed[form])}
            ms, mb = (row[form][unit]["median"] for unit in ("ms", "mb"))
            click.echo(f"{size:>10}  {form:14} {ms:9.2f} ms {mb:8.1f} MB")
        results.append(row)
    record("fused_matryoshka", {"dims": DIMS, "results": results})


if __name__ == "__main__":
    main()
