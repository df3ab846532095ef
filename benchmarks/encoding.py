"""Documents per second of `encode`, and what the speed costs, against sentence-transformers.

    python benchmarks/encoding.py                       # all of SciFact, 20,000 sentences
    python benchmarks/encoding.py --documents 500 --sentences 2000 --repeats 3
    python benchmarks/encoding.py --device cuda --no-quality

all-MiniLM-L6-v2 everywhere, on SciFact abstracts and on single sentences (text/sentences_mixed,
drawn with a fixed seed). Each side is in a process of its own, with its threads as it sets them by
itself; they take turns, and ratios are of the same turn. Use `taskset` to measure fewer processors.

- cosine: of each vector to the same text's in float32 by torch; the least and the mean.
- nDCG@10: of exact search for SciFact's test questions, encoded by the same side, as are all of its
  documents, however few are timed. Sides that compute float32 rank as torch does. Published: 0.645.
  Some minutes; --no-quality leaves it out.
- by processor time: the same ratio of processor seconds, for machines that are busy.

sentence-transformers is as it comes (float32, 32 texts at a time); --peers adds its fastest
configurations, and fastembed: see encoding_peers.py.
"""

import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click
import numpy as np
from encoding_peers import SIDES, WARM, Seconds, answering
from record import DATA, record, spread, times
from sides import Side, in_turn, once, run
from texts import Judged, abstracts, sentences

from searchengine.trainer.encoder import Encoder
from searchengine.trainer.sources.source import starter_folder

CLOCKS = ("", ", by processor time")
REFERENCE = "torch fp32"
THEIRS = "sentence-transformers"
OURS: dict[str, dict[str, Any]] = {
    "auto": {},
    "torch bf16": {"runtime": "torch", "precision": "bf16"},
    REFERENCE: {"runtime": "torch", "precision": "fp32"},
}
SAME_RANKING = 0.99999
"""Sides whose every vector has at least this cosine to float32 rank as torch in float32 does."""
PEERS = str(Path(__file__).with_name("encoding_peers.py"))


@click.command()
@DATA
@click.option("--repeats", default=5, show_default=True)
@click.option("--documents", default=0, help="Of SciFact; 0 for all 5,183.")
@click.option("--sentences", "count", default=20_000, show_default=True)
@click.option("--device", default="cpu", show_default=True, help="cpu or cuda, of all but --peers.")
@click.option("--quality/--no-quality", default=True, show_default=True, help="nDCG@10, too.")
@click.option("--peers", help="Python of an environment with the peers of encoding_peers.py.")
@click.option("--only", multiple=True, help="Sides to measure, beside sentence-transformers.")
def main(
    data: Path,
    repeats: int,
    documents: int,
    count: int,
    device: str,
    quality: bool,
    peers: str | None,
    only: tuple[str, ...],
) -> None:
    """Encode in turns, then compare the vectors."""
    texts = {"scifact": abstracts(data, documents or None), "sentences": sentences(data, count)}
    with tempfile.TemporaryDirectory() as place, ExitStack() as stack:
        scratch = Path(place)
        sides: dict[str, dict[str, Any]] = {
            name: {"script": __file__, "device": device, **loading}
            for name, loading in OURS.items()
        }
        model = {"script": PEERS, "model": str(starter_folder())}
        sides[THEIRS] = {**model, "tool": "torch", "device": device}
        if peers:
            model |= {"python": peers, "exported": str(scratch / "exported")}
            once(tool="export", **model)
            sides |= {f"peer {tool}": {**model, "tool": tool} for tool in SIDES}
        if only:
            sides = {name: sides[name] for name in sides if name in (REFERENCE, THEIRS, *only)}
        started = {name: stack.enter_context(Side(**what)) for name, what in sides.items()}
        figures = {
            name: compare(scratch, started, written(scratch / f"{name}.json", some), repeats)
            for name, some in texts.items()
        }
        if quality:
            rounded = [
                name
                for name in started
                if name == REFERENCE or figures["scifact"][name]["cosine"]["min"] < SAME_RANKING
            ]
            judged = Judged(data)
            figures["ndcg@10"] = {name: ndcg(judged, scratch, started[name]) for name in rounded}
    click.echo(json.dumps(figures, indent=2))
    record("encoding", {"repeats": repeats, "device": device, **figures})


def compare(scratch: Path, sides: Mapping[str, Side], path: Path, repeats: int) -> dict[str, Any]:
    """Speed of every side on a file of texts, and the cosines of its vectors to float32."""
    texts = len(json.loads(path.read_text()))
    seconds: dict[str, list[Seconds]] = {name: [] for name in sides}
    for turn in range(repeats):
        for name in in_turn([*sides], turn):
            keep = str(scratch / f"{name}.npy")
            seconds[name].append(sides[name].ask(texts=str(path), keep=keep))
            wall, busy = seconds[name][-1]
            click.echo(f"{path.stem} {name}: {wall:.2f} s, processor {busy:.2f} s", err=True)
    whole = np.load(scratch / f"{REFERENCE}.npy")
    figures: dict[str, Any] = {"texts": texts}
    for name, took in seconds.items():
        cosines = np.einsum("nd,nd->n", np.load(scratch / f"{name}.npy"), whole, dtype=np.float64)
        cosine = {"min": float(cosines.min()), "mean": float(cosines.mean())}
        figures[name] = speed(texts, took, seconds[THEIRS]) | {"cosine": cosine}
    return figures


def speed(texts: int, ours: Sequence[Seconds], theirs: Sequence[Seconds]) -> dict[str, Any]:
    """Texts per second, and how many times theirs in the same turn."""
    shown: dict[str, Any] = {}
    for clock, name in enumerate(CLOCKS):
        took, other = ([turn[clock] for turn in turns] for turns in (ours, theirs))
        shown[f"texts/s{name}"] = spread([texts / each for each in took])
        shown[f"times sentence-transformers{name}"] = times(other, took)
    return shown


def ndcg(judged: Judged, scratch: Path, side: Side) -> float:
    """Of the questions and all documents as the side encodes them."""
    vectors = []
    for texts, role in ((judged.questions, "query"), (judged.texts, "document")):
        path, keep = written(scratch / "judged.json", texts), scratch / "judged.npy"
        side.ask(texts=str(path), keep=str(keep), role=role)
        vectors.append(np.load(keep))
    return judged.ndcg(*vectors)


def written(path: Path, texts: Sequence[str]) -> Path:
    """Texts in a file that a side reads."""
    path.write_text(json.dumps(texts))
    return path


def be(**loading: Any) -> tuple[Callable[..., Any], dict[str, Any]]:
    """This project's encoder."""
    encoder = Encoder.load("starter", **loading)
    encoder.encode(WARM)
    about = {"engine": encoder.runtime, "precision": encoder.precision}
    return answering(lambda texts, role: encoder.encode(texts, role=role)), about


if __name__ == "__main__":
    run(main, be)
