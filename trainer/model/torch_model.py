"""The torch model of a source: read, widened, cut to fewer layers; described."""

import copy
from dataclasses import replace

from searchengine.trainer.errors import ModelError
from searchengine.trainer.model.bert import WIDE_DIMS, scales
from searchengine.trainer.model.model_folder import Model, read_model
from searchengine.trainer.model.modules import Pooling, PoolingMode, torch_head
from searchengine.trainer.model.network import first_layers
from searchengine.trainer.model.tokens import (
    Description,
    Tokenization,
)
from searchengine.trainer.sources.source import Source, Starter


def read(source: Source) -> Model:
    """The model with float32 weights, on the processor. Raises ModelError."""
    model = read_model(source.folder, trust_remote_code=source.trust_remote_code)
    if source.starter is Starter.WIDENED:
        model = widened(model)
    return model if source.layers is None else truncate_layers(model, source.layers)


def widened(model: Model) -> Model:
    """CLS ⊕ mean in place of the pooling, both halves scaled to equal weight: twice as wide."""
    width = model.module.pooling.width
    pooling = Pooling(width, (PoolingMode.CLS, PoolingMode.MEAN))
    head = torch_head([scales(width), None])
    module = model.module.changed(pooling=pooling, head=head)
    return replace(model, module=module, matryoshka_dims=WIDE_DIMS)


def truncate_layers(model: Model, layers: int) -> Model:
    """A copy with the first `layers` layers of the network, all else as it is."""
    module = model.module
    if not 1 <= layers <= module.layers:
        raise ModelError(
            f"layers is {layers}: expected 1 to {module.layers}, the layers of the network"
        )
    network, head = first_layers(module.transformer, layers), list(copy.deepcopy(module.head))
    return replace(model, module=module.changed(transformer=network, head=head))


def describe(model: Model) -> Description:
    """The description of a model, without its weights."""
    module = model.module
    return Description(
        dim=module.dim,
        layers=module.layers,
        matryoshka_dims=model.matryoshka_dims,
        tokens=Tokenization.of(model.tokenizer, model.max_tokens),
        prompts=dict(model.prompts),
        default_prompt=model.default_prompt,
        include_prompt=module.pooling.include_prompt,
        recipe=dict(model.recipe),
    )
