"""How accurate and how fast a runtime is, measured on sample texts against float32."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from searchengine.trainer.errors import ModelError
from searchengine.trainer.model.disk import recall, remember
from searchengine.trainer.model.tokens import Ids, Text, TokenIds
from searchengine.trainer.runtimes.graph import (
    GRAPH,
    MIN_AGREEMENT,
    Accuracy,
    Graph,
    read_accuracies,
)
from searchengine.trainer.runtimes.openvino_runtime import BUDGETS, OpenVINORuntime
from searchengine.trainer.runtimes.runtime import (
    PROBE_WIDTH,
    Runtime,
    Vectors,
    fastest_budget,
    speeds,
    token_budget_batches,
)
from searchengine.trainer.runtimes.runtime_config import Precision, cpu_has_native_bf16, processor

TEXTS = Path(__file__).with_name("sample_texts.txt")
# Tokens of a batch: few, so that there are batches of several shapes.
BATCH_TOKENS = 512
# Neighbouring lines that make one sample text: every length has its share.
LINES_PER_SAMPLE = (1, 2, 4)
# Neighbours of a sample text that are compared: as many as a page of hits has.
NEAREST = 10
# Characters of a sample line that is a question, where pairs are scored; longer are paragraphs.
LONGEST_QUESTION = 80
FOLDER = "openvino"  # in the user's cache
# The fields of a Graph that depend on the processor.
MEASURED = ("accuracies", "token_budget", "speeds", "processor")


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
    return tokens(_as_read(samples, tokens))


def _as_read(samples: Sequence[str], tokens: TokenIds) -> Sequence[Text]:
    """The samples; where pairs are read, each behind a question, often of its subject."""
    if not tokens.pairs:
        return samples
    questions = [line for line in sample_texts() if len(line) <= LONGEST_QUESTION]
    count = len(questions)
    return [(questions[i * count // len(samples)], text) for i, text in enumerate(samples)]


def sample_vectors(runtime: Runtime, tokens: TokenIds) -> Vectors:
    """Unit rows (n + 1, dim) of the sample texts and of all joined, in batches of several shapes;
    or the scores (n + 1, 1) of as many pairs.

    The last is some 3,700 tokens, or as long as the network takes: errors that occur in long texts
    alone are seen as well.
    """
    ids = tokens(_as_read([*sample_texts(), " ".join(sample_texts())], tokens))
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


def max_difference(scores: Vectors, exact: Vectors) -> float:
    """The greatest difference of two runtimes' scores of the same pairs; infinite for NaN.

    As a fraction of the range of `exact` where that is above 1: logits have no scale of their own.
    """
    differences = np.nan_to_num(np.abs(scores - exact), nan=np.inf)
    return float(differences.max() / max(1.0, np.ptp(exact)))


def order(scores: Vectors, exact: Vectors) -> float:
    """The share of two pairs with different scores in `exact` that are in the same order, 0–1."""
    above = exact > exact.T
    return float((scores > scores.T)[above].mean()) if above.any() else 1.0


def accuracy(precision: Precision, outputs: Vectors, exact: Vectors, *, pairs: bool) -> Accuracy:
    """How near a runtime's outputs for the samples are to those in float32."""
    if pairs:
        return Accuracy(None, max_difference(outputs, exact), order(outputs, exact))
    agrees = agreement(outputs, exact) if precision in MIN_AGREEMENT else None
    return Accuracy(min_cosine(outputs, exact), None, agrees)


def with_measurements(
    graph: Graph, exact: Vectors, rivals: Mapping[str, Runtime] | None = None
) -> Graph:
    """The graph with its accuracy and speed in each precision, and its fastest batch size.

    exact: float32 outputs for the samples. rivals: by name, what else could run the model; they
    are timed as well. A graph that does not run gets the reason, `refused`.
    """
    tokens = TokenIds(graph.description.tokens)
    precisions = [Precision.INT8] if graph.int8 else [Precision.FP32]
    if cpu_has_native_bf16() and not graph.int8:
        precisions.append(Precision.BF16)
    measured: dict[str, Accuracy] = {}
    width = min(PROBE_WIDTH, tokens.max_tokens)
    timed: dict[str, Runtime] = {}
    try:
        for precision in precisions:
            runtime = OpenVINORuntime(
                graph.folder / GRAPH,
                precision,
                tokens.max_tokens,
                packs=graph.packed,
                pairs=graph.pairs,
            )
            timed[precision.value] = runtime
            outputs = sample_vectors(runtime, tokens)
            measured[precision.value] = accuracy(precision, outputs, exact, pairs=graph.pairs)
        budget = fastest_budget(runtime, BUDGETS, width)
        rates = speeds(timed | dict(rivals or {}), width)
    except ModelError as error:  # a graph that works for the traced example alone
        return replace(graph, refused=str(error))
    return replace(
        graph, accuracies=measured, token_budget=budget, speeds=rates, processor=processor()
    )


def is_measured(graph: Graph) -> bool:
    """Whether a graph was measured on this processor, or cannot run on any."""
    return bool(graph.refused) or graph.processor == processor()


def measured_here(graph: Graph, exact: Graph, rivals: Mapping[str, Runtime]) -> Graph:
    """The graph measured on this processor, which is remembered in the user's cache.

    exact: the graph in float32, which accuracy is relative to. rivals: see with_measurements.
    Raises ModelError.
    """
    vectors = sample_vectors(exact.start(Precision.FP32), TokenIds(exact.description.tokens))
    measured = with_measurements(graph, vectors, rivals)
    if measured.refused:  # perhaps for want of memory: not to be remembered
        raise ModelError(measured.refused)
    record = asdict(measured)
    remember(FOLDER, _key(graph), {name: record[name] for name in MEASURED})
    return measured


def known_here(graph: Graph) -> Graph:
    """The graph with what the user's cache knows of it on this processor; else as it is."""
    if is_measured(graph):
        return graph

    def read(record: dict[str, Any]) -> Graph:
        measured = {name: record[name] for name in MEASURED}
        return replace(graph, **measured | {"accuracies": read_accuracies(record)})

    return recall(FOLDER, _key(graph), read) or graph


def _key(graph: Graph) -> dict[str, str]:
    """What its measurements depend on."""
    return {
        "graph": graph.sha256[GRAPH],
        "fingerprint": graph.fingerprint,
        "openvino": graph.openvino,
        "processor": processor(),
        "samples": samples_checksum(),
    }


def samples_checksum() -> str:
    """The SHA-256 of the sample texts, on which measurements depend."""
    return hashlib.sha256(TEXTS.read_bytes()).hexdigest()
