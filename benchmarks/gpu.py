"""Encoding on a CUDA device: documents and questions per second, and the share of its peak.

    python benchmarks/gpu.py                       # where there is no CUDA device, it says so

all-MiniLM-L6-v2 by torch in bfloat16 and float16, against sentence-transformers as it comes
(float32) and in bfloat16, on all of SciFact and on sentences: see benchmarks/encoding.py for the
texts, the useful work and the peak. A question is a sentence encoded alone, from text to numbers in
the processor's memory; the sides take turns every few questions.
"""

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
import encoding
from encoding import (
    THEIRS,
    mixed,
    scifact,
    shares,
    speed,
    taking_turns,
    useful_flops,
    written,
)
from record import DATA, record, spread
from sides import Side, in_turn, percentiles, run, running, times

COUNTING = "torch fp16"  # which every CUDA device computes
SIDES: dict[str, dict[str, Any]] = {
    "torch bf16": {"tool": "ours", "runtime": "torch", "precision": "bf16"},
    "torch fp16": {"tool": "ours", "runtime": "torch", "precision": "fp16"},
    THEIRS: {"tool": "theirs"},
    "sentence-transformers bf16": {"tool": "theirs", "dtype": "bfloat16"},
}
BLOCK, LEAD = 25, 3
"""Questions a side answers before the next one's turn, and more before them that do not count."""


@click.command()
@DATA
@click.option("--repeats", default=7, show_default=True)
@click.option("--documents", default=0, help="Of SciFact; 0 for all 5,183.")
@click.option("--sentences", default=100_000, show_default=True)
@click.option("--questions", default=1000, show_default=True)
def main(data: Path, repeats: int, documents: int, sentences: int, questions: int) -> None:
    """Encode in turns on the first CUDA device."""
    import torch

    if not torch.cuda.is_available():
        click.echo("There is no CUDA device here: nothing was measured.")
        return
    mixed_texts = mixed(data, sentences + questions // BLOCK * (BLOCK + LEAD))
    texts = {"scifact": scifact(data, documents), "sentences": mixed_texts[:sentences]}
    figures: dict[str, Any] = {"device": torch.cuda.get_device_name()}
    started = {name: {"device": "cuda", **what} for name, what in SIDES.items()}
    started["matmul"] = {"tool": "matmul", "device": "cuda"}
    with tempfile.TemporaryDirectory() as scratch, running(__file__, started) as found:
        matmul = found.pop("matmul")
        figures["sides"] = {name: side.about for name, side in found.items()}
        found = encoding.able(found)
        for name, some in texts.items():
            path = written(Path(scratch) / f"{name}.json", some)
            figures[name] = rates(found, matmul, path, repeats)
        figures["one question"] = one_by_one(found, mixed_texts[sentences:])
    click.echo(json.dumps(figures, indent=2))
    record("gpu", figures)


def rates(found: Mapping[str, Side], matmul: Side, path: Path, repeats: int) -> dict[str, Any]:
    """Texts per second of every side, and its share of the peak; the cosine to float32."""
    kept = {name: path.with_suffix(f".{i}.npy") for i, name in enumerate(found)}
    turns, peaks = taking_turns(found, matmul, path, kept, repeats)
    counted = found[COUNTING].ask(count=str(path))
    texts = len(json.loads(path.read_text()))
    shown: dict[str, Any] = {"texts": texts}
    shown["bf16 peak, FLOP/s"] = spread([peak["bf16"][0] for peak in peaks])
    for name, each in turns.items():
        work = useful_flops(**counted) * found[name].about["layers"]
        shown[name] = speed(texts, each, turns[THEIRS]) | shares(work, each, peaks)
        shown[name] |= {
            "cosine": encoding.cosine(kept[name], kept[THEIRS]),
        }
    return shown


def one_by_one(found: Mapping[str, Side], questions: list[str]) -> dict[str, Any]:
    """Milliseconds of a question; how many times as long theirs takes."""
    seconds: dict[str, list[float]] = {name: [] for name in found}
    size = BLOCK + LEAD
    for turn in range(len(questions) // size):
        some = questions[turn * size : (turn + 1) * size]
        for name in in_turn([*found], turn):
            seconds[name] += found[name].ask(alone=some)[LEAD:]
    theirs = seconds[THEIRS]
    return {
        name: percentiles(took) | {f"times {THEIRS}": times(theirs, took)}
        for name, took in seconds.items()
    }


if __name__ == "__main__":
    run(main, encoding.be)
