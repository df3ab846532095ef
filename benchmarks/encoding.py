"""Documents per second of `encode`, and what the speed costs, against sentence-transformers.

    python benchmarks/encoding.py                       # all of SciFact, 20,000 sentences
    python benchmarks/encoding.py --documents 500 --sentences 2000 --repeats 3

all-MiniLM-L6-v2 everywhere, on SciFact abstracts and on single sentences (text/sentences_mixed,
drawn with a fixed seed). Each side is in a process of its own, with its threads as it sets them by
itself; they take turns, and ratios are of the same turn. Use `taskset` to measure fewer processors.

- cosine: of each vector to the same text's in float32 by torch; the least and the mean.
- nDCG@10: of exact search for SciFact's test questions, encoded by the same side, as are all of its
  documents, however few are timed. Sides that compute float32 rank as torch does. Published: 0.645.
  Some minutes; --no-quality leaves it out.
- share of the peak: useful work (see `useful_flops`) a second, of what large matrix products by
  torch in bf16, int8 and fp32 do, measured between the turns.
- by processor time: the same ratio or share of processor seconds, for machines that are busy.

A side that cannot be run here, or is not accurate enough for this encoder to run it, is left out.
sentence-transformers is as it comes (float32, 32 texts at a time); with --rivals also in bfloat16,
which it does not do unless told to. --peers adds its fastest configurations, and fastembed: see
encoding_peers.py.
"""

import json
import random
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

import click
import numpy as np
import numpy.typing as npt
from peaks import Turn, matmul
from record import DATA, record, spread
from sides import Side, in_turn, run, running, times

Vectors = npt.NDArray[np.float32]
CLOCKS = ("", ", by processor time")
REFERENCE = {"tool": "ours", "device": "cpu", "runtime": "torch", "precision": "fp32"}
THEIRS = "sentence-transformers"
OURS: dict[str, dict[str, Any]] = {
    "auto": {},
    "torch bf16": {"runtime": "torch", "precision": "bf16"},
}
RIVALS: dict[str, dict[str, Any]] = {"sentence-transformers bf16": {"dtype": "bfloat16"}}
LEFT_OUT = "left out"
SAME_RANKING = 0.99999
"""Sides whose every vector has at least this cosine to float32 rank as torch in float32 does."""
PEERS = Path(__file__).with_name("encoding_peers.py")
PEER = "peer "
WARM = ["warm"] * 4


@click.command()
@DATA
@click.option("--repeats", default=5, show_default=True)
@click.option("--documents", default=0, help="Of SciFact; 0 for all 5,183.")
@click.option("--sentences", default=20_000, show_default=True)
@click.option("--layers", default=4, show_default=True, help="Of the shallower side; 0 for none.")
@click.option("--quality/--no-quality", default=True, show_default=True, help="nDCG@10, too.")
@click.option("--rivals", is_flag=True, help="sentence-transformers in bfloat16, too.")
@click.option("--peers", help="Python of an environment with the peers of encoding_peers.py.")
@click.option("--only", multiple=True, help="Sides to measure, beside sentence-transformers.")
def main(
    data: Path,
    repeats: int,
    documents: int,
    sentences: int,
    layers: int,
    quality: bool,
    rivals: bool,
    peers: str | None,
    only: tuple[str, ...],
) -> None:
    """Encode in turns, then compare the vectors."""
    sides = {name: {"tool": "ours", **loading} for name, loading in OURS.items()}
    if layers:
        sides[f"auto, {layers} layers"] = {"tool": "ours", "layers": layers}
    sides |= {THEIRS: {"tool": "theirs"}}
    if rivals:
        sides |= {name: {"tool": "theirs", **loading} for name, loading in RIVALS.items()}
    texts = {"scifact": scifact(data, documents), "sentences": mixed(data, sentences)}
    judged = Judged(data) if quality else None
    with tempfile.TemporaryDirectory() as scratch:
        if peers:
            sides |= peer_sides(peers, Path(scratch) / "exported")
        if only:
            sides = {name: side for name, side in sides.items() if name in (THEIRS, *only)}
        figures = compare(Path(scratch), sides, texts, judged, repeats)
    click.echo(json.dumps(figures, indent=2))
    record("encoding", {"repeats": repeats, **figures})


def peer_sides(python: str, exported: Path) -> dict[str, dict[str, Any]]:
    """The sides of encoding_peers.py, their files exported."""
    import encoding_peers

    from searchengine.trainer.sources.source import starter_folder

    where = {"python": python, "model": str(starter_folder()), "exported": str(exported)}
    with Side(str(PEERS), tool="export", **where) as side:
        side.ask()
    return {PEER + tool: {"tool": tool, **where} for tool in encoding_peers.SIDES}


def compare(
    scratch: Path,
    sides: dict[str, dict[str, Any]],
    texts: dict[str, list[str]],
    judged: "Judged | None",
    repeats: int,
) -> dict[str, Any]:
    """The figures of every side on every set of texts."""
    started = {name: {"device": "cpu", **what} for name, what in sides.items()}
    started["matmul"] = {"tool": "matmul", "device": "cpu"}
    scripts = {name: str(PEERS) for name in sides if name.startswith(PEER)}
    figures: dict[str, Any] = {}
    with running(__file__, started, scripts) as found:
        figures["sides"] = {name: found[name].about for name in sides}
        matmul = found.pop("matmul")
        found = able(found)
        for name, some in texts.items():
            path = written(scratch / f"{name}.json", some)
            kept = {side: scratch / f"{name}.{i}.npy" for i, side in enumerate(found)}
            turns, peaks = taking_turns(found, matmul, path, kept, repeats)
            figures[name] = {"texts": len(some)}
            whole = scratch / f"{name}.whole.npy"
            work = referred(path, whole)
            for side, each in turns.items():
                shown = speed(len(some), each, turns[THEIRS])
                shown |= shares(work * found[side].about["layers"], each, peaks)
                shown["cosine"] = cosine(kept[side], whole)
                figures[name][side] = shown
                click.echo(f"{name} {side}: {shown}", err=True)
        if judged is not None:
            rounded = [n for n in found if figures["scifact"][n]["cosine"]["min"] < SAME_RANKING]
            figures["ndcg@10"] = judged.scores(scratch, {name: found[name] for name in rounded})
    return figures


def able(found: dict[str, Side]) -> dict[str, Side]:
    """The sides that can encode here; says which cannot."""
    for name, side in found.items():
        if LEFT_OUT in side.about:
            click.echo(f"{name} is left out: {side.about[LEFT_OUT]}", err=True)
    return {name: side for name, side in found.items() if LEFT_OUT not in side.about}


def referred(path: Path, whole: Path) -> float:
    """Write float32 vectors of the texts; the useful work of a layer."""
    with Side(__file__, **REFERENCE) as reference:
        reference.ask(texts=str(path), keep=str(whole))
        return useful_flops(**reference.ask(count=str(path)))


def taking_turns(
    found: Mapping[str, Side], matmul: Side, path: Path, kept: Mapping[str, Path], repeats: int
) -> tuple[dict[str, list[Turn]], list[dict[str, Turn]]]:
    """Seconds of each side, and FLOP/s of the matrix products by precision, turn by turn.

    The vectors of the first turn are kept in files.
    """
    turns: dict[str, list[Turn]] = {name: [] for name in found}
    peaks = []
    for turn in range(repeats):
        for name in in_turn([*found], turn):
            keep = None if turn else str(kept[name])
            turns[name].append(found[name].ask(texts=str(path), keep=keep))
            wall, busy = turns[name][-1]
            click.echo(f"{path.stem} {name}: {wall:.2f} s, processor {busy:.2f} s", err=True)
        peaks.append(matmul.ask())
    return turns, peaks


def speed(texts: int, each: Sequence[Turn], theirs: Sequence[Turn]) -> dict[str, Any]:
    """Texts per second, and how many times theirs in the same turn."""
    shown: dict[str, Any] = {}
    for clock, name in enumerate(CLOCKS):
        seconds, other = ([turn[clock] for turn in turns] for turns in (each, theirs))
        shown[f"texts/s{name}"] = spread([texts / one for one in seconds])
        shown[f"times sentence-transformers{name}"] = times(other, seconds)
    return shown


def shares(
    work: float, each: Sequence[Turn], peaks: Sequence[Mapping[str, Turn]]
) -> dict[str, float]:
    """The rate of useful work (FLOP in a turn) as a share of each precision's peak."""
    return {
        f"share of {precision} peak{name}": work
        / median([turn[clock] for turn in each])
        / median([found[precision][clock] for found in peaks])
        for clock, name in enumerate(CLOCKS)
        for precision in peaks[0]
    }


def cosine(path: Path, whole: Path) -> dict[str, float]:
    """Of every row of one file to the same row of another; both hold unit rows."""
    cosines = np.einsum("nd,nd->n", np.load(path), np.load(whole), dtype=np.float64)
    return {"min": float(cosines.min()), "mean": float(cosines.mean())}


def useful_flops(tokens: int, squares: int, width: int) -> float:
    """Floating-point operations of one layer's matrix products over texts: 2 a multiply-add.

    Projections of queries, keys, values and output (4·H² a token), the feed-forward network of
    four times the width (8·H²), and attention's two products (2·H·t² a text of t tokens). Only
    real tokens count, special ones included: padding is no useful work.
    """
    return 2.0 * (12 * width**2 * tokens + 2 * width * squares)


class Judged:
    """Questions of a BEIR set, and nDCG@10 of exact search with someone's vectors."""

    def __init__(self, data: Path, name: str = "scifact", split: str = "test") -> None:
        from searchengine.corpus.files import read_corpus
        from searchengine.measure.judgements import read_qrels, read_queries

        folder = data / "beir" / name
        self.qrels = read_qrels(folder / "qrels" / f"{split}.tsv")
        queries = read_queries(folder / "queries.jsonl.gz")
        self.questions = {key: queries[key] for key in self.qrels}
        documents = [*read_corpus(folder)]
        self.keys = [document.key for document in documents]
        self.texts = [document.full_text for document in documents]

    def scores(self, scratch: Path, sides: Mapping[str, Side]) -> dict[str, float]:
        """Of our sides, the peers, and float32 by torch."""
        texts = written(scratch / "whole.json", self.texts)
        figures = {}
        with Side(__file__, **REFERENCE) as reference:
            for name, side in {"torch fp32": reference, **sides}.items():
                vectors = scratch / "whole.npy"
                side.ask(texts=str(texts), keep=str(vectors))
                figures[name] = self.score(side, vectors)
                click.echo(f"{name}: nDCG@10 {figures[name]:.4f}", err=True)
        return figures

    def score(self, side: Side, documents: Path) -> float:
        """Encode the questions by the same side and rank all documents by inner product."""
        questions = written(documents.with_suffix(".questions.json"), [*self.questions.values()])
        vectors = documents.with_suffix(".questions.npy")
        side.ask(texts=str(questions), keep=str(vectors), role="query")
        return self.ranked(np.load(vectors), np.load(documents))

    def ranked(self, questions: Vectors, documents: Vectors) -> float:
        """nDCG@10 of the ranking by inner products."""
        import ir_measures

        scores = questions @ documents.T
        best = np.argsort(-scores, axis=1, kind="stable")[:, :10]
        run = {
            question: {self.keys[row]: float(-rank) for rank, row in enumerate(rows)}
            for question, rows in zip(self.questions, best, strict=True)
        }
        measure = ir_measures.nDCG @ 10
        return float(ir_measures.calc_aggregate([measure], self.qrels, run)[measure])


def scifact(data: Path, most: int) -> list[str]:
    """The first abstracts with their titles, at most `most`; 0: all."""
    from searchengine.corpus.files import read_corpus

    documents = read_corpus(data / "beir" / "scifact")
    return [document.full_text for document in islice(documents, most or None)]


def mixed(data: Path, most: int) -> list[str]:
    """Distinct sentences, drawn at random with a fixed seed."""
    import gzip

    source = data / "text" / "sentences_mixed.tsv.gz"
    with gzip.open(source, "rt", encoding="utf-8", newline="\n") as file:
        lines = file.read().split("\n")[1:]
    sentences = dict.fromkeys(line.split("\t", 1)[1] for line in lines if "\t" in line)
    return random.Random(0).sample([*sentences], min(most, len(sentences)))


def written(path: Path, texts: Sequence[str]) -> Path:
    """Texts in a file that a side reads."""
    path.write_text(json.dumps(texts))
    return path


def be(tool: str, **loading: Any) -> tuple[Callable[..., Any], dict[str, Any]]:
    """The function that answers a side's requests, and a description of the side."""
    make = {"ours": ours, "theirs": theirs, "matmul": matmul}[tool]
    return make(**loading)


def answering(
    encode: Callable[[list[str], str], Vectors],
    counted: Callable[[list[str]], dict[str, int]] | None = None,
) -> Callable[..., Any]:
    """What a side does when asked: encode a file of texts, or questions alone; count tokens."""

    def timed(texts: list[str], role: str, keep: str | None = None) -> Turn:
        start, busy = time.perf_counter(), time.process_time()
        vectors = encode(texts, role)
        turn = [time.perf_counter() - start, time.process_time() - busy]
        if keep:
            np.save(keep, vectors)
        return turn

    def answer(
        texts: str | None = None,
        keep: str | None = None,
        role: str = "document",
        alone: list[str] | None = None,
        count: str | None = None,
    ) -> Any:
        if alone:
            return [timed([question], "query")[0] for question in alone]
        if count and counted:
            return counted(json.loads(Path(count).read_text()))
        return timed(json.loads(Path(str(texts)).read_text()), role, keep)

    return answer


def ours(**loading: Any) -> tuple[Callable[..., Any], dict[str, Any]]:
    """This project's encoder, loaded as asked; also counts tokens."""
    from searchengine.trainer.encoder import Encoder
    from searchengine.trainer.errors import ModelError

    try:
        encoder = Encoder.load("starter", **loading)
        encoder.encode(WARM)
    except ModelError as error:  # a runtime that is not installed, or is not accurate here
        return answering(unable), {LEFT_OUT: str(error)}

    def counted(texts: list[str]) -> dict[str, int]:
        room, specials = encoder.room(), encoder.max_tokens - encoder.room()
        tokens = [min(len(spans), room) + specials for spans in encoder.token_spans(texts)]
        squares = sum(each**2 for each in tokens)
        return {"tokens": sum(tokens), "squares": squares, "width": encoder.dim}

    about = {
        "engine": encoder.runtime,
        "precision": encoder.precision,
        "layers": encoder.layers,
    }
    return answering(lambda texts, role: encoder.encode(texts, role=role), counted), about


def unable(texts: list[str], role: str) -> Vectors:
    raise RuntimeError("this side was left out")


def theirs(device: str, dtype: str | None = None) -> tuple[Callable[..., Any], dict[str, Any]]:
    """sentence-transformers with its defaults, but for the number type where one is named."""
    from sentence_transformers import SentenceTransformer

    from searchengine.trainer.sources.source import starter_folder

    options = {"dtype": dtype} if dtype else {}
    model = SentenceTransformer(str(starter_folder()), device=device, model_kwargs=options)
    model.encode(WARM)
    layers = model[0].auto_model.config.num_hidden_layers
    about = {"engine": THEIRS, "precision": dtype or "fp32", "layers": layers}
    return answering(lambda texts, _: np.asarray(model.encode(texts), np.float32)), about


if __name__ == "__main__":
    run(main, be)
