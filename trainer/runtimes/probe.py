"""Sample texts, on which a faster way to compute vectors is held against float32."""

from functools import cache
from pathlib import Path

import numpy as np

from trainer.model.tokens import Ids, TokenIds
from trainer.runtimes.runtime import Runtime, Vectors, token_budget_batches

TEXTS = Path(__file__).with_name("probe.txt")
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
