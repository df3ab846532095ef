"""Hard negatives of training questions, among passages of the training documents."""

from collections.abc import Sequence

import numpy as np

from searchengine.backends.contract import Ids
from searchengine.encoders.protocol import Vectors
from searchengine.measure.mining import MiningConfig, choose

_BLOCK = 256  # questions scored at a time


def hard_negatives(
    anchors: Vectors,
    positives: Vectors,
    related: Sequence[Sequence[int]],
    passages: Vectors,
    documents: Ids,
    config: MiningConfig | None = None,
) -> Vectors:
    """The hardest passage within the margins for each pair, (n, D); zeros where there is none.

    anchors, positives: (n, D) unit rows. related: the documents that answer each anchor, which are
    left out. passages: (m, D) unit rows to choose from, of `documents` (m,).
    """
    config = config or MiningConfig()
    result = np.zeros_like(anchors)
    cosines = np.einsum("ij,ij->i", anchors, positives)
    for start in range(0, len(anchors), _BLOCK):
        scores = anchors[start : start + _BLOCK] @ passages.T
        for i, row in enumerate(scores, start):
            row[np.isin(documents, related[i])] = -np.inf
            depth = min(config.depth, len(row))
            best = np.argpartition(-row, depth - 1)[:depth]
            best = best[np.isfinite(row[best])]
            ordered = best[np.lexsort((best, -row[best]))]
            ranked = list(zip(ordered.tolist(), row[ordered].tolist(), strict=True))
            chosen, _ = choose(ranked, float(cosines[i]), config, i)
            if chosen:
                result[i] = passages[chosen[0][0]]
    return result
