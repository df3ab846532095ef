"""Labels predicted by a trained classifier, by any of its prefix lengths."""

from collections.abc import Callable, Sequence

import torch

from searchengine.trainer.encoder import Encoder
from searchengine.trainer.errors import ConfigError


def classify(encoder: Encoder, texts: Sequence[str], dim: int | None = None) -> list[str]:
    """The likeliest label of each text. Raises ConfigError for a model trained without labels."""
    return classify_by_prefix(encoder, texts, [dim])[0]


def classify_by_prefix(
    encoder: Encoder,
    texts: Sequence[str],
    dims: Sequence[int | None],
    on_batch: Callable[[int], None] | None = None,
) -> list[list[str]]:
    """The labels of the texts, for each prefix length; None: the full width."""
    if (classifier := encoder.model.classifier) is None:
        raise ConfigError(
            f"{encoder.source} knows no labels: train it with objective classification first"
        )
    vectors = encoder.encode(texts, role="document", on_batch=on_batch)  # as it was trained
    with torch.inference_mode():
        rows = torch.as_tensor(vectors, device=next(classifier.parameters()).device)
        places = [classifier(rows, dim).argmax(dim=1).tolist() for dim in dims]
    return [[classifier.labels[place] for place in of_dim] for of_dim in places]
