"""Does `explain` name the stage that loses a document, and how long does it take?

    python benchmarks/lost_documents.py

Documents are planted so that one stage of a search must lose each of them: their vectors, words and
metadata are made for it. `explain` does not see that. It is right if it names that stage, and if a
search with the options that it names finds the document. Losses in the walk cannot be made, but
chosen: documents that a graph misses, though numpy ranks their prefix well within the shortlist.
"""

import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import click
import numpy as np
from record import record, spread

from searchengine import SearchEngine

DIM, PREFIX, SHORTLIST, K = 96, 16, 100, 10
FLAT = {"prefix": PREFIX, "rotation": "identity", "shortlist": SHORTLIST}
GRAPH = {**FLAT, "structure": "hnsw", "code": "int8", "hnsw_m": 3, "ef_construction": 1}
BETTER = 15  # documents that are better by words than those planted
Array = np.ndarray[Any, np.dtype[np.float32]]


@dataclass
class Loss:
    """A document that a search does not find: the search, and the stage that must lose it."""

    stage: str
    question: str
    key: str
    options: dict[str, Any] = field(default_factory=dict)


class Known:
    """An encoder that knows the vectors of texts, and draws others."""

    dim, fingerprint = DIM, "known"

    def __init__(self, vectors: dict[str, Array]) -> None:
        self._vectors = vectors

    def encode(self, texts: Any, *, role: str | None = None) -> Array:
        return np.stack([self._vectors[t] if t in self._vectors else drawn(t) for t in texts])


def unit(rows: Any) -> Array:
    return (rows / np.linalg.norm(rows, axis=-1, keepdims=True)).astype(np.float32)


def drawn(text: str) -> Array:
    """The unit vector that the letters of a text draw."""
    return unit(np.random.default_rng(list(text.encode())).standard_normal(DIM))


def at(rng: np.random.Generator, direction: Array, cosine: float) -> Array:
    """A unit vector that has this cosine to a unit vector."""
    other = rng.standard_normal(direction.shape)
    other = unit(other - (other @ direction) * direction)
    return unit(cosine * direction + np.sqrt(1 - cosine**2) * other)


class Planted:
    """Documents and questions.

    Attributes:
        documents: records, with a vector or None for each.
        questions: text → vector; half of its length is in the prefix.
        losses: what searches in a flat collection must lose.
    """

    def __init__(self, rows: int, questions: int, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.documents: list[dict[str, Any]] = []
        self.vectors: list[Array | None] = []
        self.losses: list[Loss] = []
        self.questions: dict[str, Array] = {}
        others = unit(rng.standard_normal((rows, PREFIX))) @ unit(rng.standard_normal(PREFIX))
        beyond = float(np.sort(others)[-3 * SHORTLIST])  # 3 * SHORTLIST prefixes are nearer
        for number in range(questions):
            self._plant(rng, number, beyond)
        for row in range(rows - len(self.documents)):
            self._add(f"b{row}", f"background number{row}", unit(rng.standard_normal(DIM)))

    def _add(self, key: str, text: str, vector: Array | None, **metadata: Any) -> None:
        self.documents.append({"_id": key, "text": text, **metadata})
        self.vectors.append(vector)

    def _plant(self, rng: np.random.Generator, n: int, beyond: float) -> None:
        head, tail = (unit(rng.standard_normal(size)) for size in (PREFIX, DIM - PREFIX))
        question = f"alpha{n} beta{n}"
        self.questions[question] = unit(np.concatenate([head, tail]))

        def near(by_prefix: float, by_tail: float) -> Array:
            return unit(np.concatenate([at(rng, head, by_prefix), at(rng, tail, by_tail)]))

        def lose(
            stage: str, vector: Array | None, text: str = "", mode: str = "vector", **options: Any
        ) -> None:
            key = f"{stage}{n}"
            group = f"g{n}" if stage == "group" else key
            self._add(
                key, f"{text} planted {key}".strip(), vector, group=group, shown=stage != "filter"
            )
            self.losses.append(Loss(stage, question, key, {"mode": mode, **options}))

        for i in range(BETTER):
            both = f"{question} {question}"
            self._add(f"better{n}-{i}", f"{both} number{i}", unit(rng.standard_normal(DIM)))
        # The nearest of all, which a group or a page leaves others behind.
        self._add(f"first{n}", f"nearest number{n}", near(0.99, 0.99), group=f"g{n}")
        lose("filter", near(0.95, 0.95), where="shown = true")
        lose("group", near(0.97, 0.9), group_by="group")
        lose("min_score", near(0.96, 0.9), min_score=0.97)
        lose("page", near(0.97, 0.93), offset=K)
        lose("vector", None, question)
        lose("words", near(0.9, 0.9), mode="text")
        text = f"alpha{n} " + " ".join(f"filler{i}" for i in range(60))
        lose("words", unit(rng.standard_normal(DIM)), text, "text")
        self.documents[-1]["_id"] = self.losses[-1].key = f"rare{n}"
        lose("prefix", near(beyond, 0.97))
        lose("full_width", near(0.9, -0.9))
        lose("fusion", near(0.92, -0.9), mode="hybrid")
        self.losses.append(Loss("collection", question, f"missing{n}", {"mode": "hybrid"}))

    def build(self, folder: Path, config: dict[str, Any]) -> SearchEngine:
        """A collection of the documents."""
        texts = [document["text"] for document in self.documents]
        known = {
            text: vector
            for text, vector in zip(texts, self.vectors, strict=True)
            if vector is not None
        }
        engine = SearchEngine.create(
            folder, Known(known | self.questions), config, tokenizer="porter", passages=False
        )
        engine.add(self.documents, vectors=self.vectors)
        return engine

    def missed_by_walk(self, engine: SearchEngine) -> Iterator[Loss]:
        """Documents that a graph misses, though they are among the nearest, and their prefixes."""
        having = [i for i, vector in enumerate(self.vectors) if vector is not None]
        rows = np.stack([self.vectors[i] for i in having])
        heads = unit(rows[:, :PREFIX])
        for question, vector in self.questions.items():
            found = {hit.key for hit in engine.search(question, K, mode="vector")}
            within = set(np.argsort(-(heads @ vector[:PREFIX]))[: SHORTLIST // 2].tolist())
            for i in np.argsort(-(rows @ vector))[: K // 2].tolist():
                key = self.documents[having[i]]["_id"]
                if i in within and key not in found:
                    yield Loss("walk", question, key, {"mode": "vector"})


def judge(engine: SearchEngine, losses: list[Loss]) -> dict[str, dict[str, Any]]:
    """For each stage: how many losses it has, how many are named, and the milliseconds."""
    found: dict[str, dict[str, Any]] = {}
    for loss in losses:
        engine.encode_questions([loss.question])  # which a search would do too
        begin = time.perf_counter()
        explanation = engine.explain(loss.question, loss.key, K, **loss.options)
        milliseconds = 1000 * (time.perf_counter() - begin)
        kind = found.setdefault(loss.stage, {"losses": 0, "named": 0, "found": 0, "ms": []})
        kind["losses"] += 1
        kind["named"] += explanation.lost == loss.stage
        options = {"k": K, **loss.options, **explanation.settings}
        hits = engine.search(loss.question, **options) if explanation.settings else []
        kind["found"] += loss.key in [hit.key for hit in hits]
        kind["ms"].append(milliseconds)
        if explanation.lost != loss.stage:
            click.echo(f"{loss}: {explanation}", err=True)
    return found


@click.command()
@click.option("--rows", default=20_000, show_default=True, help="Documents.")
@click.option("--losses", default=1_000, show_default=True, help="Planted losses.")
def main(rows: int, losses: int) -> None:
    walks = losses // 12
    planted = Planted(rows, -(-(losses - walks) // 11))
    with tempfile.TemporaryDirectory() as folder:
        with planted.build(Path(folder) / "graph", GRAPH) as engine:
            missed = list(islice(planted.missed_by_walk(engine), walks))
            found = judge(engine, missed)
        with planted.build(Path(folder) / "flat", FLAT) as engine:
            found |= judge(engine, planted.losses[: losses - len(missed)])
    every = [ms for kind in found.values() for ms in kind["ms"]]
    for name, kind in found.items():
        kind["ms"] = spread(kind["ms"])
        click.echo(f"{name:12}" + "  ".join(f"{each} {kind[each]}" for each in kind))
    total = {
        name: sum(kind[name] for kind in found.values()) for name in ("losses", "named", "found")
    }
    click.echo(f"{total}, {spread(every)['median']:.1f} ms at {rows:,} documents")
    record("lost_documents", {"rows": rows, **total, "ms": spread(every), "stages": found})


if __name__ == "__main__":
    main()
