"""What training on labels must beat: a logistic regression on the vectors of the base as it is.

It is what a user would write without this package: C chosen by a cross-validation over all labels.
A trained model is kept only if it predicts more labels of texts that neither has learnt from, by
the randomisation test on pairs; otherwise the base with that regression is the result.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from searchengine.trainer.classifier import Classifier
from searchengine.trainer.encoder import Encoder
from searchengine.trainer.evaluation.labels import LabelledText
from searchengine.trainer.evaluation.significance import compare
from searchengine.trainer.model.model_folder import Model, read
from searchengine.trainer.sources.source import Source
from searchengine.trainer.training.examples import Examples
from searchengine.trainer.training.head import rotate_head, sample_texts, with_linear_head
from searchengine.trainer.training.preparation import default_prefixes
from searchengine.trainer.training.train_config import TrainConfig

Right = NDArray[np.bool_]
"""Whether each text gets its own label, (n,)."""
BEYOND_DOUBT = 0.05  # p, from which a difference may be chance


@dataclass(frozen=True, slots=True)
class AgainstBase:
    """A trained model beside the regression on the base's vectors, on the same n texts.

    where: what the texts are, in words. c: of the regression. trained, base: (n,), at full width.
    """

    where: str
    c: float
    trained: Right
    base: Right

    def wins(self) -> bool:
        """Whether training predicts more labels, beyond doubt."""
        found = compare(self.trained, self.base)
        return found.difference > 0 and found.p < BEYOND_DOUBT

    def figures(self) -> dict[str, Any]:
        """The figures as JSON values, for the recipe."""
        found = compare(self.trained, self.base)
        return {
            "where": self.where,
            "c": self.c,
            "n": len(self.base),
            "base": float(self.base.mean()),
            "trained": float(self.trained.mean()),
            "difference": found.difference,
            "low": found.low,
            "high": found.high,
            "p": found.p,
        }

    def __str__(self) -> str:
        return (
            f"{self.trained.mean():.4f} trained against {self.base.mean():.4f} for a logistic "
            f"regression on the base model's vectors, C {self.c:g} by cross-validation (accuracy "
            f"{self.where}, n {len(self.base)}; {compare(self.trained, self.base)})"
        )


def base_as_it_is(config: TrainConfig, model: Model, examples: Examples, device: str) -> Encoder:
    """The base model of a run without its changes, with an unfitted classifier.

    model: as it is trained, whose prefixes it gets if it is as wide; they are rotated as in the
    run, which leaves the full width as it was.
    """
    base = read(Source.find(config.base))
    same = base.module.dim == model.module.dim
    dims = model.matryoshka_dims if same else default_prefixes(base, config.pooling)
    assert model.classifier is not None
    labels = model.classifier.labels
    turned = config.rotate and len(dims) > 1
    base = replace(with_linear_head(base) if turned else base, matryoshka_dims=dims)
    base = replace(base, classifier=Classifier(dims, labels, config.seed))
    options: Any = {"precision": config.precision, "device": device}
    if turned:
        rotate_head(Encoder(base, "", **options), sample_texts(examples, config.seed))
    return Encoder(base, "", **options)  # with its own copy of the rotated weights, in bf16


def right_at(encoder: Encoder, rows: Sequence[LabelledText]) -> Right:
    """Whether the classifier of an encoder gives each text its label, at full width."""
    classifier = encoder.model.classifier
    assert classifier is not None
    vectors = encoder.encode([text for text, _ in rows], role="document")
    with torch.inference_mode():
        rows_of = torch.from_numpy(vectors).to(next(classifier.parameters()).device)
        predicted = classifier(rows_of).argmax(dim=1).tolist()
    return np.array(
        [classifier.labels[i] == label for i, (_, label) in zip(predicted, rows, strict=True)]
    )
