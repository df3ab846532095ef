"""Texts per second of a static model beside sentence-transformers' and the starter encoder.

    python benchmarks/static_models.py

The table has a random row of 256 dimensions for each of the starter's 30,522 tokens: the speed of a
static model depends on its tokenizer, not on its numbers. SciFact's abstracts and questions, in
turn, in one process; ratios are of the same turn. `cpu` is processor time of all threads.
"""

import gzip
import json
import tempfile
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import click
import numpy as np
from record import DATA, record, spread
from safetensors.numpy import save_file
from tokenizers import Tokenizer

from searchengine.trainer.encoder import Encoder
from searchengine.trainer.sources.source import starter_folder

OURS, THEIRS, STARTER = "static model", "sentence-transformers", "starter"
SHARE = {STARTER: 20}  # it encodes one text in 20 of the others'


@click.command()
@DATA
@click.option("--repeats", default=7, show_default=True)
@click.option("--documents", default=5183, show_default=True)
@click.option("--dim", default=256, show_default=True)
def main(data: Path, repeats: int, documents: int, dim: int) -> None:
    """Measure in turn and report texts per second."""
    folder = data / "beir" / "scifact"
    sets = {"abstracts": read(folder / "corpus.jsonl.gz", documents)}
    sets["questions"] = read(folder / "queries.jsonl.gz", documents)
    with tempfile.TemporaryDirectory() as scratch:
        sides = encoders(Path(scratch), dim)
        figures = {name: measure(sides, texts, repeats) for name, texts in sets.items()}
    for name, rows in figures.items():
        for side, row in rows.items():
            click.echo(f"{name:10} {side:24} {row}", err=True)
    record("static models", {"dim": dim, **figures})


def read(path: Path, limit: int) -> list[str]:
    """The texts of a BEIR file."""
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        return [json.loads(line)["text"] for line in islice(lines, limit)]


def encoders(folder: Path, dim: int) -> dict[str, Callable[[list[str]], Any]]:
    """What is timed, by name, each used once."""
    from sentence_transformers import SentenceTransformer

    tokenizer = Tokenizer.from_file(str(starter_folder() / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.save(str(folder / "tokenizer.json"))
    rng = np.random.default_rng(0)
    table = rng.standard_normal((tokenizer.get_vocab_size(), dim)).astype(np.float32)
    save_file({"embedding.weight": table}, folder / "model.safetensors")
    kind = "sentence_transformers.models.StaticEmbedding"
    modules = [{"idx": 0, "name": "0", "path": "", "type": kind}]
    (folder / "modules.json").write_text(json.dumps(modules))
    theirs = SentenceTransformer(str(folder), device="cpu")
    sides: dict[str, Callable[[list[str]], Any]] = {
        OURS: Encoder.load(folder).encode,
        THEIRS: lambda texts: theirs.encode(texts, batch_size=1024, normalize_embeddings=True),
        STARTER: Encoder.load("starter").encode,
    }
    for encode in sides.values():
        encode(["warm"] * 4)
    return sides


def measure(
    sides: dict[str, Callable[[list[str]], Any]], texts: list[str], repeats: int
) -> dict[str, dict[str, Any]]:
    """Texts per second, of wall and of processor time, and the ratio of OURS to each."""
    rates: dict[str, dict[str, list[float]]] = {name: {"wall": [], "cpu": []} for name in sides}
    for turn in range(repeats):
        for name in [*sides][:: -1 if turn % 2 else 1]:
            part = texts[turn % SHARE.get(name, 1) :: SHARE.get(name, 1)]
            begin, cpu = time.perf_counter(), time.process_time()
            sides[name](part)
            rates[name]["wall"].append(len(part) / (time.perf_counter() - begin))
            rates[name]["cpu"].append(len(part) / (time.process_time() - cpu))
    return {
        name: {
            kind: {
                "texts per second": spread(values),
                "static model, times": spread(
                    [ours / own for ours, own in zip(rates[OURS][kind], values, strict=True)]
                ),
            }
            for kind, values in kinds.items()
        }
        for name, kinds in rates.items()
    }


if __name__ == "__main__":
    main()
