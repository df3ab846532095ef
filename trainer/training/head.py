"""The head before training: rotated, strongest axes first; and the fit of a classifier.

An orthogonal rotation of the vectors leaves every full-width cosine as it was, and decides which
directions a prefix has. With the principal axes first, 64 of 768 dimensions start better than
hundreds of updates would make them. Uncentred PCA; the lengths of the axes do not change.
"""

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.preprocessing import normalize

from searchengine.trainer.encoder import Encoder
from searchengine.trainer.model import head
from searchengine.trainer.model.model_folder import Model
from searchengine.trainer.model.modules import Classifier, Dense, Normalize
from searchengine.trainer.training.examples import Batch

# Texts that the rotation is fitted on: a few for each axis of common widths.
ROTATION_TEXTS = 2048
CLASSIFIER_TEXTS = 4096  # that a classifier is fitted on, at most
C = 3.0
"""Inverse strength of L2 in a regression on unit vectors."""
CS, MIN_CHOOSING = (0.3, 1.0, 3.0, 10.0, 30.0), 500
"""Values of C for cross-validation to choose from, and the fewest texts for it (docs/tried.md)."""


def with_linear_head(model: Model) -> Model:
    """The model with a head that ends in a linear Dense layer, then perhaps Normalize.

    A model that has one is returned as it is; another gets a Dense layer that is the identity.
    """
    layers = list(model.module.head)
    unit = [layers.pop()] if layers and isinstance(layers[-1], Normalize) else []
    last = layers[-1] if layers else None
    if isinstance(last, Dense) and last.activation_name == head.IDENTITY:
        return model
    identity = head.Dense(np.eye(model.module.dim, dtype=np.float32), None, head.IDENTITY)
    layers = [*layers, Dense.of(identity), *unit]
    return replace(model, module=model.module.changed(head=layers))


def rotate_head(encoder: Encoder, examples: Batch, seed: int) -> None:
    """Rotate the last Dense layer of the encoder's module, in place, to the examples' axes.

    The module must come from `with_linear_head`. Full-width cosines stay as they were. The encoder
    may keep a copy of the weights from before: make a new one from its model.
    """
    *_, dense = (layer for layer in encoder.module.head if isinstance(layer, Dense))
    order = np.random.default_rng(seed).permutation(len(examples))[:ROTATION_TEXTS]
    texts = dict.fromkeys(text for place in order for text in examples[place].texts)
    vectors = encoder.encode(list(texts)[:ROTATION_TEXTS]).astype(np.float64)  # (n, D)
    _, axes = np.linalg.eigh(vectors.T @ vectors)  # as columns (D, D), the weakest first
    factor = torch.from_numpy(axes[:, ::-1].T.copy())
    with torch.no_grad():
        for weight in dense.linear.parameters():
            weight.copy_(factor @ weight.cpu().double())  # in float64, which not every device has


def fit_classifier(
    encoder: Encoder, classifier: Classifier, examples: Batch, choose: bool = False
) -> None:
    """Fit a classifier, in place: a logistic regression on every prefix of the examples' vectors.

    Training starts from it, as in arXiv 2202.10054: random weights would need hundreds of updates,
    and would distort the vectors meanwhile. choose: the strength of L2, by `chosen_c`.
    """
    rows = random.Random("classifier").sample(examples, len(examples))
    first = {row.label: row for row in reversed(rows)}
    rows.sort(key=lambda row: row is not first[row.label])  # every label has a text
    rows = rows[: max(CLASSIFIER_TEXTS, len(first))]
    labels = [row.label for row in rows]
    vectors = encoder.encode([row.anchor for row in rows], role="document").astype(np.float64)
    c = chosen_c(vectors, labels) if choose else C
    for dim in classifier.dims:
        regression = LogisticRegression(C=c, max_iter=2000)
        regression.fit(normalize(vectors[:, :dim]), labels)
        weights, intercepts = regression.coef_, regression.intercept_
        if len(weights) == 1:  # two labels: the logit of the second less that of the first
            weights, intercepts = (np.concatenate([-x, x]) / 2 for x in (weights, intercepts))
        classifier.set_regression(dim, weights, intercepts)


def chosen_c(vectors: NDArray[np.float64], labels: Sequence[str]) -> float:
    """The C of CS that predicts most labels of unit vectors (n, D) in five folds; C for few texts.

    Labels that fewer than five texts have take no part.
    """
    counts = Counter(labels)
    often = np.array([counts[label] >= 5 for label in labels])
    if often.sum() < MIN_CHOOSING or len(set(np.array(labels)[often])) == 1:
        return C
    search = GridSearchCV(LogisticRegression(max_iter=2000), {"C": CS}, cv=5, refit=False)
    return float(search.fit(vectors[often], np.array(labels)[often]).best_params_["C"])
