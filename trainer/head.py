"""A linear head, turned so that the first numbers of a vector begin with the most to say.

An orthogonal turn of the vectors leaves every full-width cosine as it was, and decides what a
prefix sees: with the principal axes first, 64 of 768 numbers start where hundreds of updates would
not bring them. Uncentred PCA; the lengths of the axes are not touched.
"""

import random
from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np
import torch

from trainer.data import Examples
from trainer.encoder import Encoder
from trainer.folder import Model
from trainer.modules import Dense, Normalize, SentenceModule

IDENTITY = "torch.nn.modules.linear.Identity"
# Texts that the axes are fitted on: a few for each axis of common widths.
FITTED_ON = 2048
# Labelled texts that the classifier is fitted on, at most.
CLASSIFIED = 4096


def with_linear_head(model: Model) -> Model:
    """The same vectors from a head that ends in a linear Dense layer, then perhaps Normalize.

    A model that ends so is returned as it is; another gets a Dense layer that changes nothing.
    """
    if _last_dense(model.module) is not None:
        return model
    width = model.module.dim
    dense = Dense(width, width, False, IDENTITY)
    with torch.no_grad():
        dense.linear.weight.copy_(torch.eye(width))
    layers = list(model.module.head)
    end = len(layers) - (1 if layers and isinstance(layers[-1], Normalize) else 0)
    layers.insert(end, dense)
    old = model.module
    module = SentenceModule(old.transformer, old.pooling, layers, old.mix)  # type: ignore[arg-type]
    return replace(model, module=module.eval())


def _last_dense(module: SentenceModule) -> Dense | None:
    layers = [layer for layer in module.head if not isinstance(layer, Normalize)]
    last = layers[-1] if layers else None
    return last if isinstance(last, Dense) and last.activation_name == IDENTITY else None


def sample_texts(examples: Examples, seed: int) -> list[str]:
    """Up to FITTED_ON texts of the examples, the same for the same seed."""
    texts = sorted({text for _, example in examples.examples for text in example})
    return random.Random(f"axes {seed}").sample(texts, min(FITTED_ON, len(texts)))


def turn_head(encoder: Encoder, texts: Iterable[str]) -> None:
    """Turn the last Dense layer of the encoder's module, in place, by the axes of these texts.

    The module must come from `with_linear_head`. Full-width cosines stay as they were.
    """
    dense = _last_dense(encoder.module)
    assert dense is not None, "turn_head takes a model from with_linear_head"
    vectors = encoder.encode(list(texts)).astype(np.float64)  # (n, D)
    _, axes = np.linalg.eigh(vectors.T @ vectors)  # columns, the weakest first
    turn = torch.from_numpy(axes[:, ::-1].T.copy())  # (D, D), rows are axes
    with torch.no_grad():
        for weight in dense.linear.parameters():
            weight.copy_(turn @ weight.cpu().double())  # in float64, which not every device has


def fit_classifier(encoder: Encoder, examples: Examples, weights: Mapping[int, float]) -> None:
    """Make the classifier the logistic regression of the examples' vectors, in place.

    Training starts from there, as in arXiv 2202.10054: random weights would need hundreds of
    updates, and would distort the vectors meanwhile. weights: by prefix length.
    """
    classifier = encoder.model.classifier
    assert classifier is not None
    rows = [texts for _, texts in examples.examples]
    rows = random.Random("classifier").sample(rows, min(CLASSIFIED, len(rows)))
    vectors = encoder.encode([text for text, _ in rows], role="document")
    classifier.fit(torch.from_numpy(vectors), [label for _, label in rows], weights)
