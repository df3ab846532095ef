"""Labels predicted by a trained classifier, and how many are right at every prefix length."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import torch

from searchengine.trainer.encoder import Encoder
from searchengine.trainer.errors import ConfigError, DataError
from searchengine.trainer.evaluation.intervals import CONFIDENCE, Interval

LabelledText = tuple[str, str]  # text, label


@dataclass(frozen=True, slots=True)
class AccuracyRow:
    """accuracy: share of the n texts that get their own label, at one prefix length.

    low, high: its 95 % interval (Wilson, "Probable Inference, the Law of Succession", 1927).
    """

    dim: int
    accuracy: float
    n: int
    low: float
    high: float


def classify(encoder: Encoder, texts: Sequence[str], dim: int | None = None) -> list[str]:
    """The likeliest label of each text. Raises ConfigError for a model trained without labels."""
    return _predict(encoder, texts, [dim])[0]


def accuracy(
    encoder: Encoder,
    labelled: Sequence[LabelledText],
    dims: Sequence[int] | None = None,
    on_batch: Callable[[int], None] | None = None,
) -> list[AccuracyRow]:
    """One row per prefix length, the encoder's own by default. A label never seen counts as wrong.

    Raises ConfigError for a model trained without labels, DataError for no texts.
    """
    if not labelled:
        raise DataError("no labelled texts: an accuracy needs at least 1")
    chosen, n = encoder.matryoshka_dims if dims is None else dims, len(labelled)
    rows = []
    for dim, predicted in zip(
        chosen, _predict(encoder, [text for text, _ in labelled], chosen, on_batch), strict=True
    ):
        right = sum(a == b for a, (_, b) in zip(predicted, labelled, strict=True))
        rows.append(AccuracyRow(dim, right / n, n, *wilson(right, n)))
    return rows


def wilson(right: int, n: int) -> Interval:
    """The ends of the 95 % interval of a share, `right` of n."""
    z = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
    middle, half = right + z * z / 2, z * math.sqrt(right * (n - right) / n + z * z / 4)
    return max(0.0, (middle - half) / (n + z * z)), min(1.0, (middle + half) / (n + z * z))


def _predict(
    encoder: Encoder,
    texts: Sequence[str],
    dims: Sequence[int | None],
    on_batch: Callable[[int], None] | None = None,
) -> list[list[str]]:
    """The labels of the texts, for each prefix length; None: the full width."""
    classifier = encoder.model.classifier
    if classifier is None:
        raise ConfigError(
            f"{encoder.source} knows no labels: train it with objective classification first"
        )
    vectors = encoder.encode(texts, role="document", on_batch=on_batch)  # as it was trained
    with torch.inference_mode():
        rows = torch.as_tensor(vectors, device=next(classifier.parameters()).device)
        places = [classifier(rows, dim).argmax(dim=1).tolist() for dim in dims]
    return [[classifier.labels[place] for place in of_dim] for of_dim in places]
