"""The classifier of labels beside an encoder: linear layers, stored in the folder of a model."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from searchengine.trainer.errors import ConfigError, ModelError, first_line
from searchengine.trainer.files import read_object, write_json

FOLDER, WEIGHTS = "classifier", "model.safetensors"
# Of the fit: inverse strength of L2 on trained unit vectors, and the maximum steps of L-BFGS.
C, ITERATIONS = 10.0, 100


class Classifier(nn.Module):
    """A linear layer for each prefix length of the vectors.

    labels: the names of the classes, in the order of the logits.
    """

    def __init__(self, dims: Sequence[int], labels: Sequence[str], seed: int = 0):
        super().__init__()
        self.labels, self.dims = tuple(labels), tuple(dims)
        self.layers = nn.ModuleDict({str(dim): nn.Linear(dim, len(labels)) for dim in dims})
        generator = torch.Generator().manual_seed(seed)
        for dim in dims:
            nn.init.normal_(self._linear(dim).weight, std=0.02, generator=generator)
            nn.init.zeros_(self._linear(dim).bias)

    def _linear(self, dim: int) -> nn.Linear:
        return cast(nn.Linear, self.layers[str(dim)])

    def fit(self, vectors: Tensor, labels: Sequence[str], c: float = C) -> None:
        """Set each layer to the logistic regression of labels on its prefix of vectors (n, D).

        By L-BFGS. c: inverse strength of the L2 penalty, scikit-learn's C on unit vectors.
        """
        numbers = {label: i for i, label in enumerate(self.labels)}
        targets = torch.tensor([numbers[label] for label in labels])
        for dim in self.dims:
            layer = self._linear(dim)
            x = _scaled(vectors.to(layer.weight), dim)
            # The inputs are √D longer than unit vectors, so the weights are √D smaller.
            _fit(layer, x, targets.to(x.device), dim / (2 * c * len(x)))

    def forward(self, vectors: Tensor, dim: int | None = None) -> Tensor:
        """Logits (n, labels) of the first `dim` dimensions of vectors (n, D), of all by default.

        Raises ConfigError for a prefix length without a layer.
        """
        dim = vectors.shape[-1] if dim is None else dim
        if dim not in self.dims:
            raise ConfigError(
                f"labels of {dim} dimensions: the classifier was trained for "
                f"{', '.join(map(str, self.dims))}"
            )
        return cast(Tensor, self._linear(dim)(_scaled(vectors, dim)))


def _scaled(vectors: Tensor, dim: int) -> Tensor:
    """The prefixes of vectors, scaled to the length √dim."""
    return nn.functional.normalize(vectors[..., :dim], dim=-1) * math.sqrt(dim)


def _fit(layer: nn.Linear, x: Tensor, targets: Tensor, penalty: float) -> None:
    """Fit a layer to inputs (n, D) and classes (n,). penalty: of the squared weights."""
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    solver = torch.optim.LBFGS(
        layer.parameters(), max_iter=ITERATIONS, line_search_fn="strong_wolfe"
    )

    def loss() -> Tensor:
        solver.zero_grad()
        value = nn.functional.cross_entropy(layer(x), targets)
        value = value + penalty * layer.weight.square().sum()
        torch.autograd.backward(value)
        return value

    solver.step(loss)  # type: ignore[no-untyped-call]
    solver.zero_grad()


def read_classifier(folder: Path) -> Classifier | None:
    """The classifier in the folder of a model; None if it has none. Raises ModelError."""
    path = folder / FOLDER / "config.json"
    if not path.is_file():
        return None
    config = read_object(path)
    try:
        classifier = Classifier(config["dims"], config["labels"])
        classifier.load_state_dict(load_file(folder / FOLDER / WEIGHTS))
    except Exception as error:
        raise ModelError(f"{path.parent} does not fit its config: {first_line(error)}") from error
    return classifier.eval()


def write_classifier(classifier: Classifier, folder: Path) -> None:
    """Write the classifier to the folder of a model."""
    (folder / FOLDER).mkdir()
    config = {"labels": list(classifier.labels), "dims": list(classifier.dims)}
    write_json(folder / FOLDER / "config.json", config)
    save_file(classifier.state_dict(), folder / FOLDER / WEIGHTS)
