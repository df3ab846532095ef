"""Training files larger than memory: what the loader takes, and that a resumed run goes on exactly.

    python benchmarks/streaming.py --work FOLDER

Writes pairs of sentences, as JSONL and as Parquet, and reads each size in a process of its own as a
training run does: examples to the disk, some held out, batches of 64 drawn and tokenised, for 2,000
updates. Then another process begins at update 1,000, and its batches must be those of the first.

Peak memory is of the process (its greatest resident set) less what it had before the first example.
"""

import gzip
import hashlib
import json
import random
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import click
from record import DATA, record

UPDATES, BATCH = 2000, 64


@click.command()
@DATA
@click.option("--work", required=True, type=click.Path(file_okay=False, path_type=Path))
@click.option("--sizes", default="10000,100000,1000000", show_default=True)
@click.option("--read", type=click.Path(path_type=Path), hidden=True)
@click.option("--first", default=0, hidden=True)
def main(data: Path, work: Path, sizes: str, read: Path | None, first: int) -> None:
    """Write the files, read each in its own process, and record."""
    if read is not None:
        click.echo(json.dumps(measured(read, first)))
        return
    work.mkdir(parents=True, exist_ok=True)
    rows = []
    for count in map(int, sizes.split(",")):
        for path in written(data, work, count):
            whole, later = (in_a_process(path, first) for first in (0, UPDATES // 2))
            equal = whole["second half"] == later["second half"]
            row = {"pairs": count, "file": path.suffix, "MB": path.stat().st_size // 1_000_000}
            row |= {k: v for k, v in whole.items() if k != "second half"}
            rows.append(row | {"resumed exactly": equal, "seconds to resume": later["to read"]})
            click.echo(json.dumps(rows[-1]), err=True)
    record("streaming", {"batch": BATCH, "updates": UPDATES, "rows": rows})


def written(data: Path, work: Path, count: int) -> list[Path]:
    """Pairs of sentences in both formats."""
    import datasets

    lines, table = work / f"{count}.jsonl", work / f"{count}.parquet"
    if not table.exists():
        with gzip.open(data / "text/sentences_mixed.tsv.gz", "rt", encoding="utf-8") as file:
            texts = [line.rstrip("\n").split("\t")[1] for line in file][1:]
        rng = random.Random(0)
        with lines.open("w") as out:
            for number in range(count):
                pair = {"anchor": f"{rng.choice(texts)} {number}", "positive": rng.choice(texts)}
                out.write(json.dumps(pair) + "\n")
        datasets.Dataset.from_json(str(lines), cache_dir=str(work)).to_parquet(str(table))
    return [lines, table]


def in_a_process(path: Path, first: int) -> dict[str, Any]:
    """What a new process measures from this update on."""
    command = [sys.executable, __file__, "--work", str(path.parent)]
    command += ["--read", str(path), "--first", str(first)]
    return dict(json.loads(subprocess.run(command, check=True, capture_output=True).stdout))


def measured(path: Path, first: int) -> dict[str, Any]:
    """Read, hold out, and draw batches from update `first` on."""

    from searchengine.trainer.encoder import Encoder
    from searchengine.trainer.training.batches import BatchPlan, load
    from searchengine.trainer.training.examples import read_examples
    from searchengine.trainer.training.judging import hold_out
    from searchengine.trainer.training.objectives import Contrastive
    from searchengine.trainer.training.passes import Passes
    from searchengine.trainer.training.processes import Processes
    from searchengine.trainer.training.train_config import TrainConfig
    from searchengine.trainer.training.training_model import TrainingModel

    config = TrainConfig(
        train=(path,), out=path.parent / "out", base="starter", batch_size=BATCH, max_steps=UPDATES
    )
    encoder = Encoder.load("starter", runtime="torch")
    model = TrainingModel(encoder.model, config, None)
    passes = Passes(model, encoder, config, Processes())
    before, start = peak(), time.perf_counter()
    examples = read_examples(config)
    examples.digest()
    split = hold_out(examples, 0)
    to_read = time.perf_counter() - start
    plan = BatchPlan(config, split.train)
    objective = Contrastive(config, (384,), model)
    seen = hashlib.sha256()
    start = time.perf_counter()
    for step, batches in enumerate(load(plan, objective, passes, first), first):
        for loaded in batches if step >= UPDATES // 2 else ():
            seen.update(json.dumps(loaded.rows).encode())
            for view in loaded.views:
                seen.update(b"".join(ids.tobytes() for ids in view.ids))
    seconds = time.perf_counter() - start
    return {
        "peak MB": round(peak() - before, 1),
        "process before MB": round(before),
        "to read": round(to_read, 1),
        "ms an update": round(1000 * seconds / (UPDATES - first), 2),
        "second half": seen.hexdigest(),
    }


def peak() -> float:
    """The greatest resident set so far, MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    main()
