"""How accurate and how fast a runtime is, measured on sample texts against float32."""

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np

from trainer.errors import ModelError
from trainer.model.tokens import Ids, TokenIds
from trainer.runtimes.config import Precision, cpu_has_native_bf16
from trainer.runtimes.graph import GRAPH, MIN_AGREEMENT, Graph
from trainer.runtimes.openvino_runtime import BUDGETS, OpenVINORuntime
from trainer.runtimes.runtime import (
    PROBE_WIDTH,
    Runtime,
    Vectors,
    fastest_budget,
    speeds,
    token_budget_batches,
)

TEXTS = Path(__file__).with_name("sample_texts.txt")
# Tokens of a batch: few, so that there are batches of several shapes.
BATCH_TOKENS = 512
# Neighbouring lines that make one sample text: every length has its share.
LINES_PER_SAMPLE = (1, 2, 4)
# Neighbours of a sample text that are compared: as many as a page of hits has.
NEAREST = 10


@cache
def sample_texts() -> tuple[str, ...]:
    """Paragraphs, questions and odd lines, in several languages; written for this project."""
    return tuple(TEXTS.read_text(encoding="utf-8").splitlines())


def sample_ids(tokens: TokenIds) -> list[Ids]:
    """Token ids of some two hundred texts of all lengths, from which int8 learns its scales."""
    lines = sample_texts()
    samples = [
        " ".join(lines[i : i + count]) for count in LINES_PER_SAMPLE for i in range(len(lines))
    ]
    return tokens(samples)


def sample_vectors(runtime: Runtime, tokens: TokenIds) -> Vectors:
    """Unit rows (n + 1, dim) of the sample texts and of all joined, in batches of several shapes.

    The last is some 3,700 tokens, or as long as the network takes: errors that occur in long texts
    alone are seen as well.
    """
    ids = tokens([*sample_texts(), " ".join(sample_texts())])
    rows: dict[int, Vectors] = {}
    for batch in token_budget_batches([len(row) for row in ids], BATCH_TOKENS):
        padded = tokens.pad([ids[i] for i in batch], multiple=runtime.multiple)
        rows.update(zip(batch, runtime.run(padded), strict=True))
    return np.stack([rows[i] for i in range(len(ids))])


def min_cosine(vectors: Vectors, exact: Vectors) -> float:
    """The least cosine of two runtimes' unit rows for the same texts; NaN counts as −1."""
    return float(np.nan_to_num(np.einsum("nd,nd->n", vectors, exact), nan=-1.0).min())


def agreement(vectors: Vectors, exact: Vectors) -> float:
    """The mean share of each text's NEAREST other texts that are its nearest in `exact`, 0–1."""
    nearest = []
    for rows in (vectors, exact):
        scores = rows @ rows.T
        np.fill_diagonal(scores, -np.inf)
        nearest.append(np.argsort(-scores, axis=1, kind="stable")[:, :NEAREST])
    shared = [np.isin(*pair).mean() for pair in zip(*nearest, strict=True)]
    return float(np.mean(shared))


def with_measurements(
    graph: Graph, exact: Vectors, rivals: Mapping[str, Runtime] | None = None
) -> Graph:
    """The graph with its accuracy and speed in each precision, and its fastest batch size.

    exact: float32 vectors of the sample texts. rivals: by name, what else could run the model; they
    are timed as well. A graph that does not run gets the reason, `refused`.
    """
    tokens = TokenIds(graph.description.tokens)
    precisions = [Precision.INT8] if graph.int8 else [Precision.FP32]
    if cpu_has_native_bf16() and not graph.int8:
        precisions.append(Precision.BF16)
    cosines, agreements = {}, {}
    width = min(PROBE_WIDTH, tokens.max_tokens)
    timed: dict[str, Runtime] = {}
    try:
        for precision in precisions:
            runtime = OpenVINORuntime(
                graph.folder / GRAPH, precision, tokens.max_tokens, packs=graph.packed
            )
            timed[precision.value] = runtime
            vectors = sample_vectors(runtime, tokens)
            cosines[precision.value] = min_cosine(vectors, exact)
            if precision in MIN_AGREEMENT:
                agreements[precision.value] = agreement(vectors, exact)
        budget = fastest_budget(runtime, BUDGETS, width)
        rates = speeds(timed | dict(rivals or {}), width)
    except ModelError as error:  # a graph that works for the traced example alone
        return replace(graph, refused=str(error))
    return replace(graph, cosines=cosines, agreements=agreements, token_budget=budget, speeds=rates)
