"""How accurate and how fast a runtime is, measured on sample texts against float32."""

from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np

from trainer.errors import ModelError
from trainer.model.tokens import Ids, TokenIds
from trainer.runtimes.config import Precision, cpu_has_native_bf16
from trainer.runtimes.graph import GRAPH, Graph
from trainer.runtimes.openvino_runtime import BUDGETS, OpenVINORuntime
from trainer.runtimes.runtime import (
    PROBE_WIDTH,
    Runtime,
    Vectors,
    fastest_budget,
    token_budget_batches,
)

TEXTS = Path(__file__).with_name("sample_texts.txt")
# Tokens of a batch: small, so that batches of several shapes are seen.
BUDGET = 512
# Neighbours that are joined into longer texts, so that every length has its share.
JOINED = (1, 2, 4)


@cache
def texts() -> tuple[str, ...]:
    """Paragraphs, questions and odd lines, in several languages; written for this project."""
    return tuple(TEXTS.read_text(encoding="utf-8").splitlines())


def samples(tokens: TokenIds) -> list[Ids]:
    """Token ids of some two hundred texts of all lengths, of which int8 learns its scales."""
    lines = texts()
    found = [" ".join(lines[i : i + many]) for many in JOINED for i in range(len(lines))]
    return tokens(found)


def vectors(runtime: Runtime, tokens: TokenIds) -> Vectors:
    """Unit rows (n + 1, dim) of the sample texts and of all as one, in batches of several shapes.

    The last is some 3,700 tokens, or as long as the network takes: what it does to long texts
    alone is seen as well.
    """
    ids = tokens([*texts(), " ".join(texts())])
    found: list[tuple[int, Vectors]] = []
    for batch in token_budget_batches([len(row) for row in ids], BUDGET):
        rows = runtime.run(tokens.pad([ids[i] for i in batch], multiple=runtime.multiple))
        found += zip(batch, rows, strict=True)
    return np.stack([row for _, row in sorted(found, key=lambda one: one[0])])


def least_cosine(found: Vectors, exact: Vectors) -> float:
    """Of the unit rows of two runtimes for the same texts; NaN counts as −1."""
    return float(np.nan_to_num(np.einsum("nd,nd->n", found, exact), nan=-1.0).min())


def measured(graph: Graph, exact: Vectors) -> Graph:
    """How near it is to exact vectors of the sample texts, and the size of batch that suits it."""
    tokens = TokenIds(graph.description.tokens)
    precisions = [Precision.INT8] if graph.int8 else [Precision.FP32]
    if cpu_has_native_bf16() and not graph.int8:
        precisions.append(Precision.BF16)
    cosines = {}
    try:
        for precision in precisions:
            runtime = OpenVINORuntime(
                graph.folder / GRAPH, precision, tokens.max_tokens, packs=graph.packed
            )
            cosines[precision.value] = least_cosine(vectors(runtime, tokens), exact)
        budget = fastest_budget(runtime, BUDGETS, min(PROBE_WIDTH, tokens.max_tokens))
    except ModelError as error:  # a graph that holds for the traced example alone
        return replace(graph, refused=str(error))
    return replace(graph, cosines=cosines, token_budget=budget)
