"""One vector for a long text: the recipe longlora against passages, cutting off, late chunking.

    python benchmarks/long_documents.py --work long/ train passkey abstracts short

`train` writes pairs of question and long text (long_data.py) and trains the starter's network with
the preset longlora, window 2,048. `passkey`
asks about a caption put into filler at a depth of 0 to 1, texts of 512 to 2,048 tokens; candidates
are the texts of the same length and depth. `abstracts` asks with titles for concatenations of whole
abstracts, among as many concatenations without a question. `short` measures STS-B and SciFact
before and after. Each stage needs only the model of the first, and writes its figures to the
folder; the last line records them all.

Texts as one vector: the trained model; the same network with interpolated positions, not trained;
the base, which cuts off after 256 tokens, or after its 512 positions. As several, of which the best
counts: the product's own passages by the base; late chunking (arXiv 2409.04701), which pools the
trained model's token vectors of the long text over the same passages.

nDCG@10 of one relevant text a question. About an hour and a half on two cores.
"""

import functools
import json
import random
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np
from long_data import (
    Writer,
    read_sources,
    records,
    shuffled_forever,
    write_pairs,
)
from numpy.typing import NDArray
from record import DATA, record, spread

from searchengine import SearchEngine
from searchengine.ingest.passages import PassageConfig, cut
from searchengine.measure.judgements import read_beir
from searchengine.measure.significance import interval
from searchengine.trainer.encoder import Encoder
from searchengine.trainer.evaluation.sts import read_sts, sts
from searchengine.trainer.training.longlora import lengthened
from searchengine.trainer.training.loop import Report, train
from searchengine.trainer.training.presets import preset
from searchengine.trainer.training.train_config import TrainConfig

BASE, WINDOW = "starter", 2048
LENGTHS, DEPTHS = (512, 1024, 2048), (0.0, 0.25, 0.5, 0.75, 1.0)
BATCH = 16
THIRDS = ("beginning", "middle", "end")
Rows = NDArray[np.float32]
# Vectors of texts, and the text that each is of.
Embed = Callable[[Sequence[str]], tuple[Rows, NDArray[np.int64]]]


# ------------------------------------------------------------------------------------------- models


def base(window: int | None = None, kept: int | None = None) -> Encoder:
    """The starter; with another window not trained for it."""
    encoder = Encoder.load(BASE, runtime="torch")
    return encoder if window is None else Encoder(lengthened(encoder.model, window, kept), "")


def whole(encoder: Encoder) -> Embed:
    """One vector a text."""
    return lambda texts: (encoder.encode(texts, role="document"), np.arange(len(texts)))


def spans(encoder: Encoder, text: str) -> list[tuple[int, int]]:
    """The product's passages of a text without a title."""
    room = encoder.room("document")
    return cut(text, encoder.token_spans([text])[0], *PassageConfig().sizes(room))


def passages(encoder: Encoder) -> Embed:
    """A vector for each passage."""

    def embed(texts: Sequence[str]) -> tuple[Rows, NDArray[np.int64]]:
        cuts = [spans(encoder, text) for text in texts]
        parts = [text[a:b] for text, each in zip(texts, cuts, strict=True) for a, b in each]
        owners = np.repeat(np.arange(len(texts)), [len(each) for each in cuts])
        return encoder.encode(parts, role="document"), owners

    return embed


class LongStates:
    """The token vectors of a long text, pooled as a whole and over the passages of `short`.

    Both from one pass through `long`, which is remembered for the other.
    """

    def __init__(self, long: Encoder, short: Encoder):
        self.long = long
        self.short = short
        self._known: dict[str, tuple[Rows, Rows]] = {}

    def whole(self, texts: Sequence[str]) -> tuple[Rows, NDArray[np.int64]]:
        """One vector a text."""
        rows = np.concatenate([self._pooled(text)[0] for text in texts])
        return rows, np.arange(len(texts))

    def chunks(self, texts: Sequence[str]) -> tuple[Rows, NDArray[np.int64]]:
        """A vector for each passage: late chunking."""
        parts = [self._pooled(text)[1] for text in texts]
        owners = np.repeat(np.arange(len(texts)), [len(part) for part in parts])
        return np.concatenate(parts), owners

    def _pooled(self, text: str) -> tuple[Rows, Rows]:
        """(1, D) and (passages, D)."""
        if text not in self._known:
            import torch

            module = self.long.module
            tokens = self.long.token_spans([text])[0][: self.long.max_tokens - 2]
            ids = torch.tensor(self.long.model.tokenizer([text], truncation=True)["input_ids"])
            masks = [torch.ones_like(ids)]
            for start, end in spans(self.short, text):
                inside = (tokens[:, 0] >= start) & (tokens[:, 1] <= end)
                masks.append(torch.tensor([[0, *inside.astype(int).tolist(), 0]]))
            with torch.inference_mode():
                with torch.autocast("cpu", torch.bfloat16):
                    hidden = module.transformer(input_ids=ids, attention_mask=masks[0])[0]
                states = hidden.float().expand(len(masks), -1, -1)
                rows = module.headed(module.pooling(states, torch.cat(masks))).numpy()
            self._known[text] = rows[:1], rows[1:]
        return self._known[text]


def arms(work: Path, names: str) -> Iterator[tuple[str, Encoder, Embed]]:
    """Name, encoder of questions, and vectors of texts, where the name has one of these words."""
    short = base()

    @functools.cache
    def trained() -> LongStates:
        return LongStates(Encoder.load(work / "model", runtime="torch"), short)

    def lengthened_base(window: int) -> tuple[Encoder, Embed]:
        encoder = base(window)
        return encoder, whole(encoder)

    made: dict[str, Callable[[], tuple[Encoder, Embed]]] = {
        "trained, one vector": lambda: (trained().long, trained().whole),
        "late chunking": lambda: (trained().long, trained().chunks),
        "passages": lambda: (short, passages(short)),
        "cut off at 256": lambda: (short, whole(short)),
        "cut off at 512": lambda: lengthened_base(512),
        "not trained, one vector": lambda: lengthened_base(WINDOW),
    }
    for name, make in made.items():
        if not names or any(wanted in name for wanted in names.split(",")):
            yield name, *make()


def ndcg(
    questions: Rows, rows: Rows, owners: NDArray[np.int64], relevant: Sequence[int]
) -> NDArray[np.float64]:
    """nDCG@10 of each question; a text's score is its best vector's."""
    scores = questions @ rows.T
    best = np.full((len(questions), int(owners.max()) + 1), -np.inf, np.float32)
    np.maximum.at(best.T, owners, scores.T)
    own = best[np.arange(len(questions)), list(relevant)]
    ranks = (best > own[:, None]).sum(axis=1)
    return np.where(ranks < 10, 1 / np.log2(ranks + 2.0), 0.0)


def summary(values: NDArray[np.float64]) -> dict[str, Any]:
    low, high = interval(values)
    return {"ndcg@10": float(values.mean()), "low": low, "high": high, "questions": len(values)}


# ------------------------------------------------------------------------------------------- stages


def stage_train(work: Path, data: Path, steps: int, settings: dict[str, Any]) -> Any:
    pairs = work / "pairs.jsonl"
    sources, writer = read_sources(data), Writer(base())
    write_pairs(sources, writer, pairs, (steps + 1) * BATCH, WINDOW - 2)
    config = TrainConfig.from_dict(
        {
            **preset("longlora"),
            "base": BASE,
            "train": [str(pairs)],
            "exclude": [str(data / "sts" / f"{name}.tsv") for name in ("stsb_test", "stsb_dev")],
            "out": str(work / "model"),
            # Short texts are watched, and choose nothing.
            "dev": [str(data / "sts" / "stsb_dev.tsv")],
            "rotate": False,
            "max_steps": steps,
            "eval_every": 30,
            **settings,
        }
    )

    def show(line: Report) -> None:
        if line.step % 10 == 0:
            loss = "" if line.loss is None else f"loss {line.loss:.4f}"
            click.echo(f"{time.strftime('%H:%M:%S')} {line.step}/{line.steps} {loss} {line.scores}")

    start = time.monotonic()
    encoder = train(config, show)
    return {
        "seconds": time.monotonic() - start,
        "chosen": encoder.recipe["chosen"],
        "config": config.to_dict() | {"train": [], "exclude": [], "dev": [], "out": ""},
        "examples": encoder.recipe["examples"],
    }


def stage_passkey(work: Path, data: Path, count: int, names: str, lengths: Sequence[int]) -> Any:
    """nDCG@10 by arm, length and depth."""
    sources, writer = read_sources(data), Writer(base())
    rng = random.Random("passkey")
    filler = shuffled_forever(sources.test_filler, rng)
    captions = [rng.sample(p, 2) for p in rng.sample(list(sources.test_pictures), count)]
    figures: dict[str, Any] = {}
    cells = {
        (tokens, depth): [
            writer.with_needle(filler, needle, tokens - 2, depth) for _, needle in captions
        ]
        for tokens in lengths
        for depth in DEPTHS
    }
    for name, asker, embed in arms(work, names):
        questions = asker.encode([question for question, _ in captions], role="query")
        for (tokens, depth), texts in cells.items():
            start = time.monotonic()
            values = ndcg(questions, *embed(texts), range(count))
            row = summary(values) | {"seconds": time.monotonic() - start}
            figures.setdefault(name, {}).setdefault(str(tokens), {})[str(depth)] = row
            click.echo(f"{name:24} {tokens} {depth} {row['ndcg@10']:.3f} ({row['seconds']:.0f} s)")
    return figures


def stage_abstracts(work: Path, data: Path, distractors: int, names: str) -> Any:
    """nDCG@10 by arm, over all and by the paper's place in the text; bytes and time of an index."""
    sources, writer = read_sources(data), Writer(base())
    room = WINDOW - 2
    asked = list(writer.concatenated(sources.test_papers, room))
    others = list(writer.concatenated(sources.test_filler, room))[:distractors]
    texts = [" ".join(paper.text for paper in papers) for papers in (*asked, *others)]
    titles = [paper.title for papers in asked for paper in papers]
    relevant = [number for number, papers in enumerate(asked) for _ in papers]
    place = np.array([i / max(1, len(papers) - 1) for papers in asked for i in range(len(papers))])
    figures: dict[str, Any] = {"texts": len(texts), "questions": len(titles)}
    for name, asker, embed in arms(work, names):
        start = time.monotonic()
        rows, owners = embed(texts)
        seconds = time.monotonic() - start
        values = ndcg(asker.encode(titles, role="query"), rows, owners, relevant)
        third = np.minimum(place * 3, 2).astype(int)
        thirds = {name: float(values[third == i].mean()) for i, name in enumerate(THIRDS)}
        row = summary(values) | {"by place": thirds, "seconds": seconds}
        row |= {"vectors a text": len(rows) / len(texts)}
        figures[name] = row
        click.echo(f"{name:24} {row['ndcg@10']:.3f} {thirds} {seconds:.0f} s")
    if (work / "model").exists():
        figures["index"] = indexes(work, texts, titles)
    return figures


def indexes(work: Path, texts: Sequence[str], titles: Sequence[str]) -> Any:
    """Bytes a document and time of a question, of collections of both kinds, in turns."""
    import tempfile

    engines, sizes = {}, {}
    seconds: dict[str, list[float]] = {"one vector": [], "passages": []}
    with tempfile.TemporaryDirectory() as scratch:
        for name, source in (("one vector", work / "model"), ("passages", BASE)):
            path = Path(scratch) / f"{name}.index"
            engine = SearchEngine.create(path, Encoder.load(source))
            engine.add({"_id": str(i), "text": text} for i, text in enumerate(texts))
            engines[name] = engine
            files = [file for file in (path / "segments").rglob("*") if file.is_file()]
            vectors = sum(file.stat().st_size for file in files if file.name.startswith("vectors"))
            every = sum(file.stat().st_size for file in files)
            sizes[name] = {
                "vectors bytes a document": vectors / len(texts),
                "segment bytes a document": every / len(texts),
                "passages": engine.stats().passages,
            }
        for title in [*titles[:20], *titles[:200]]:
            for name, engine in engines.items():
                start = time.perf_counter()
                engine.search(title, k=10)
                seconds[name].append(1000 * (time.perf_counter() - start))
        for engine in engines.values():
            engine.close()
    return {name: sizes[name] | {"ms": spread(seconds[name][20:])} for name in engines}


def stage_short(work: Path, data: Path, names: str) -> Any:
    """STS-B's Spearman and SciFact's nDCG@10, × 100, of the base and of the trained model."""
    queries, qrels = read_beir(data / "beir" / "scifact")
    pairs = {name: read_sts([data / "sts" / f"stsb_{name}.tsv"]) for name in ("dev", "test")}
    figures: dict[str, Any] = {}
    encoders: dict[str, Callable[[], Encoder]] = {
        "base": base,
        "not trained": lambda: base(WINDOW),
        "all positions stretched": lambda: base(WINDOW, kept=0),
        "trained": lambda: Encoder.load(work / "model", runtime="torch"),
    }
    for name, load in encoders.items():
        if names and not any(wanted in name for wanted in names.split(",")):
            continue
        encoder = load()
        row = {f"stsb {part}": 100 * sts(encoder, each)[0].spearman for part, each in pairs.items()}
        row["scifact"] = 100 * scifact(encoder, data, queries, qrels)
        figures[name] = row
        click.echo(f"{name:12} {row}")
    return figures


def scifact(encoder: Encoder, data: Path, queries: Any, qrels: Any) -> float:
    """nDCG@10 of exact search over whole documents."""
    from searchengine.measure.comparison import MAIN, per_question
    from searchengine.measure.judgements import ranked

    documents = list(records(data / "beir" / "scifact" / "corpus.jsonl.gz"))
    texts = [f"{document['title']} {document['text']}".strip() for document in documents]
    rows = encoder.encode(texts, role="document")
    keys = [key for key in queries if key in qrels]
    scores = encoder.encode([queries[key] for key in keys], role="query") @ rows.T
    best = np.argsort(-scores, axis=1)[:, :100]
    run = {
        key: ranked((documents[i]["_id"], float(scores[n, i])) for i in best[n])
        for n, key in enumerate(keys)
    }
    return float(per_question(run, keys, qrels, [MAIN])[MAIN].mean())


def merged(old: Any, new: Any) -> Any:
    """Figures of several calls: what is new wins."""
    if not isinstance(old, dict) or not isinstance(new, dict):
        return new
    return old | {name: merged(old.get(name), value) for name, value in new.items()}


@click.command()
@click.argument("stages", nargs=-1, type=click.Choice(["train", "passkey", "abstracts", "short"]))
@DATA
@click.option("--work", required=True, type=click.Path(path_type=Path), help="Folder of the model.")
@click.option("--steps", default=200, show_default=True, help="Updates of the training.")
@click.option("--set", "assignments", multiple=True, help="Training setting NAME=VALUE, in JSON.")
@click.option("--questions", default=100, show_default=True, help="Needles of each cell.")
@click.option("--lengths", default=",".join(map(str, LENGTHS)), help="Lengths of passkey texts.")
@click.option("--distractors", default=250, show_default=True, help="Texts without a question.")
@click.option("--arms", "names", default="", help="Only arms with one of these words in the name.")
@click.option("--threads", default=0, help="Threads of torch [default: torch's own choice].")
def main(
    stages: tuple[str, ...],
    data: Path,
    work: Path,
    steps: int,
    assignments: tuple[str, ...],
    questions: int,
    lengths: str,
    distractors: int,
    names: str,
    threads: int,
) -> None:
    """Train the recipe, and measure it."""
    import torch

    if threads:
        torch.set_num_threads(threads)
    work.mkdir(parents=True, exist_ok=True)
    path = work / "figures.json"
    figures: dict[str, Any] = {}
    settings = {n: json.loads(v) for n, v in (item.split("=", 1) for item in assignments)}
    for stage in stages:
        if stage == "train":
            result = stage_train(work, data, steps, settings)
        elif stage == "passkey":
            chosen = tuple(map(int, lengths.split(",")))
            result = stage_passkey(work, data, questions, names, chosen)
        elif stage == "abstracts":
            result = stage_abstracts(work, data, distractors, names)
        else:
            result = stage_short(work, data, names)
        # Others may have written meanwhile.
        figures = json.loads(path.read_text()) if path.exists() else {}
        figures[stage] = merged(figures.get(stage, {}), result)
        path.write_text(json.dumps(figures, indent=2) + "\n")
    record("long documents", figures)


if __name__ == "__main__":
    main()
