"""The classifier of labels beside an encoder: linear layers, stored in the folder of a model."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from searchengine.trainer.errors import ConfigError, ModelError, first_line
from searchengine.trainer.files import read_object, write_json

FOLDER, WEIGHTS = "classifier", "model.safetensors"
Array = NDArray[np.float64]


class Classifier(nn.Module):
    """A linear layer for each prefix length of the vectors, which are scaled to the length √dim.

    labels: the names of the classes, in the order of the logits.
    """

    def __init__(self, dims: Sequence[int], labels: Sequence[str]):
        super().__init__()
        self.labels, self.dims = tuple(labels), tuple(dims)
        self.layers = nn.ModuleDict({str(dim): nn.Linear(dim, len(labels)) for dim in dims})

    def set_regression(self, dim: int, weights: Array, intercepts: Array) -> None:
        """Give a layer the weights (labels, dim) and intercepts (labels,) for unit prefixes."""
        layer: Any = self.layers[str(dim)]
        with torch.no_grad():
            layer.weight.copy_(torch.from_numpy(weights / math.sqrt(dim)))
            layer.bias.copy_(torch.from_numpy(intercepts))

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
        prefixes = nn.functional.normalize(vectors[..., :dim], dim=-1)
        return cast(Tensor, self.layers[str(dim)](prefixes * math.sqrt(dim)))


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
