"""The head before training: rotated, strongest axes first; and the fit of a classifier.

An orthogonal rotation of the vectors leaves every full-width cosine as it was, and decides which
directions a prefix has. With the principal axes first, 64 of 768 dimensions start better than
hundreds of updates would make them. Uncentred PCA; the lengths of the axes do not change.
"""

import itertools
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from searchengine.trainer.classifier import C, Classifier
from searchengine.trainer.encoder import Encoder
from searchengine.trainer.model.model_folder import Model
from searchengine.trainer.model.modules import Dense, Normalize, SentenceModule
from searchengine.trainer.training.examples import Batch

IDENTITY = "torch.nn.modules.linear.Identity"
# Texts that the rotation is fitted on: a few for each axis of common widths.
ROTATION_TEXTS = 2048
# Labelled texts that the classifier is fitted on, at most.
CLASSIFIER_TEXTS = 4096
# Of the logistic regression on the base's vectors: parts of the cross-validation that chooses C;
# predictions that few texts should give it, in up to REPEATS divisions; and the values of C.
FOLDS, PREDICTIONS, REPEATS = 5, 2000, 4
CS = (0.1, 1.0, 3.0, 10.0, 30.0, 100.0)


def with_linear_head(model: Model) -> Model:
    """The model with a head that ends in a linear Dense layer, then perhaps Normalize.

    A model that has one is returned as it is; another gets a Dense layer that is the identity.
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
    return replace(model, module=model.module.changed(head=layers))


def _last_dense(module: SentenceModule) -> Dense | None:
    layers = [layer for layer in module.head if not isinstance(layer, Normalize)]
    last = layers[-1] if layers else None
    return last if isinstance(last, Dense) and last.activation_name == IDENTITY else None


def sample_texts(examples: Batch, seed: int) -> list[str]:
    """Up to ROTATION_TEXTS texts of the examples, the same for the same seed."""
    texts: dict[str, None] = {}
    for place in map(int, np.random.default_rng(seed).permutation(len(examples))):
        texts |= dict.fromkeys(examples[place].texts)
        if len(texts) >= ROTATION_TEXTS:
            break
    return list(texts)[:ROTATION_TEXTS]


def rotate_head(encoder: Encoder, texts: Sequence[str]) -> None:
    """Rotate the last Dense layer of the encoder's module, in place, to the axes of these texts.

    The module must come from `with_linear_head`. Full-width cosines stay as they were. The encoder
    may keep a copy of the weights from before: make a new one from its model.
    """
    dense = _last_dense(encoder.module)
    assert dense is not None, "rotate_head needs a model from with_linear_head"
    vectors = encoder.encode(texts).astype(np.float64)  # (n, D)
    factor = torch.from_numpy(principal_axes(vectors).copy())
    with torch.no_grad():
        for weight in dense.linear.parameters():
            weight.copy_(factor @ weight.cpu().double())  # in float64, which not every device has


def principal_axes(vectors: NDArray[np.float64]) -> NDArray[np.float64]:
    """The principal axes of vectors (n, D), uncentred, as rows (D, D), the strongest first."""
    _, axes = np.linalg.eigh(vectors.T @ vectors)  # columns, the weakest first
    return axes[:, ::-1].T


def fit_classifier(encoder: Encoder, classifier: Classifier, examples: Batch, c: float = C) -> None:
    """Fit a classifier, in place, as the logistic regression of the examples' vectors.

    Training starts from it, as in arXiv 2202.10054: random weights would need hundreds of updates,
    and would distort the vectors meanwhile. c: as `Classifier.fit` has it.
    """
    classifier.fit(*_vectors_of(encoder, examples), c)


def _vectors_of(encoder: Encoder, examples: Batch) -> tuple[Tensor, list[str]]:
    """The vectors (n, D) of CLASSIFIER_TEXTS labelled texts at most, and their labels."""
    count = min(CLASSIFIER_TEXTS, len(examples))
    places = random.Random("classifier").sample(range(len(examples)), count)
    rows = [examples[place] for place in places]
    vectors = encoder.encode([row.anchor for row in rows], role="document")
    return torch.from_numpy(vectors), [row.label for row in rows]


def folds_of(labels: Sequence[str], count: int, seed: int = 0) -> NDArray[np.int64]:
    """The part of each text, (n,): 0 to count − 1, each label spread over them; at random.

    −1 for a text whose label no other has: it cannot be both learnt and tested.
    """
    order = np.random.default_rng(seed).permutation(len(labels))
    order = order[np.argsort(np.array(labels)[order], kind="stable")]
    part = np.empty(len(labels), dtype=np.int64)
    part[order] = np.arange(len(labels)) % count
    counts = Counter(labels)
    part[[counts[label] == 1 for label in labels]] = -1
    return part


def best_c(encoder: Encoder, examples: Batch) -> float:
    """The C of CS by `cross_validated_c` of the examples, CLASSIFIER_TEXTS at most."""
    return cross_validated_c(*_vectors_of(encoder, examples))


def cross_validated_c(vectors: Tensor, labels: Sequence[str]) -> float:
    """The C of CS whose regression on vectors (n, D) predicts most labels in a cross-validation.

    Few texts are divided into parts several times, as one division chooses by chance. Of equal
    values the strongest penalty.
    """
    names = sorted(set(labels))
    targets = np.array([names.index(label) for label in labels])
    right = {c: 0 for c in CS}
    repeats = min(REPEATS, -(-PREDICTIONS // len(labels)))
    for repeat, fold in itertools.product(range(repeats), range(FOLDS)):
        tested = torch.from_numpy(folds_of(labels, FOLDS, repeat) == fold)
        if not tested.any():
            continue
        known = [label for label, test in zip(labels, tested.tolist(), strict=True) if not test]
        for c in CS:
            classifier = Classifier((vectors.shape[1],), names)
            classifier.fit(vectors[~tested], known, c)
            with torch.inference_mode():
                predicted = classifier(vectors[tested]).argmax(dim=1).numpy()
            right[c] += int((predicted == targets[tested.numpy()]).sum())
    return max(CS, key=lambda c: right[c])
