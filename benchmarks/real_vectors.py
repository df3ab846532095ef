"""Real sentence vectors for the index benchmarks, encoded once and kept.

    python benchmarks/real_vectors.py vectors.npy          # 316k sentences, 12 minutes on two cores

The distinct sentences of text/sentences_mixed, shuffled, by the starter encoder at 768 numbers.
"""

import gzip
import random
from pathlib import Path

import click
import numpy as np
import numpy.typing as npt
from record import DATA

from searchengine.cli.console import progress

BLOCK = 8192
SPARE = 12_000
"""Rows kept out of every index: queries, and questions to tune on."""

VECTORS = click.option(
    "--vectors",
    required=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="What benchmarks/real_vectors.py wrote.",
)


def split(path: Path, rows: int) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """`rows` vectors to index, and SPARE others: the last of the file."""
    stored = np.load(path, mmap_mode="r")
    if len(stored) < rows + SPARE:
        raise click.UsageError(f"{path} holds {len(stored)} rows, needed {rows + SPARE}")
    return np.ascontiguousarray(stored[:rows]), np.ascontiguousarray(stored[-SPARE:])


@click.command()
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--rows", default=0, help="Number of rows to take, from the first; 0 for all.")
@DATA
def main(path: Path, rows: int, data: Path) -> None:
    """Encode and write a float32 array (n, 768)."""
    from searchengine.trainer.encoder import Encoder

    source = data / "text" / "sentences_mixed.tsv.gz"
    with gzip.open(source, "rt", encoding="utf-8", newline="\n") as file:
        lines = file.read().split("\n")[1:]
    texts = list(dict.fromkeys(line.split("\t", 1)[1] for line in lines if "\t" in line))
    random.Random(0).shuffle(texts)
    texts = texts[: rows or len(texts)]
    encoder = Encoder.load("starter-768")
    shape = (len(texts), encoder.dim)
    out = np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=shape)
    with progress("Encoding", len(texts)) as advance:
        for start in range(0, len(texts), BLOCK):
            part = texts[start : start + BLOCK]
            out[start : start + len(part)] = encoder.encode(part)
            advance(len(part))
    out.flush()


if __name__ == "__main__":
    main()
