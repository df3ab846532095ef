"""The torch model of a source: read, widened, truncated to its first layers; and described."""

import copy
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from trainer.errors import ModelError
from trainer.model.description import Description
from trainer.model.folder import Model, read_model
from trainer.model.modules import Dense, Normalize, Pooling, PoolingMode, SentenceModule
from trainer.model.network import with_layers
from trainer.model.packaged import CLS_NORM, CLS_WEIGHT, DIMS, MEAN_NORM
from trainer.model.pairs import PairModel
from trainer.model.source import Source, Starter
from trainer.model.static_network import static_model, token_vectors
from trainer.model.tokens import UNLIMITED, Tokenization


def read(source: Source) -> Model:
    """The model with float32 weights, on the processor. Raises ModelError."""
    model = read_model(
        source.folder, trust_remote_code=source.trust_remote_code, route=source.route
    )
    if source.starter is Starter.WIDENED:
        model = widened(model)
    return model if source.layers is None else truncate_layers(model, source.layers)


def widened(model: Model) -> Model:
    """CLS ⊕ mean in place of the pooling, both halves scaled to equal weight: twice as wide."""
    width = model.module.pooling.width
    pooling = Pooling(width, (PoolingMode.CLS, PoolingMode.MEAN))
    dense = Dense(2 * width, 2 * width, False, "torch.nn.modules.linear.Identity")
    scales = torch.full((2 * width,), 1 / MEAN_NORM)
    scales[:width] = CLS_WEIGHT / CLS_NORM
    with torch.no_grad():
        dense.linear.weight.copy_(torch.diag(scales))
    module = SentenceModule(model.module.transformer, pooling, [dense, Normalize()])
    return replace(model, module=module.eval(), matryoshka_dims=DIMS[Starter.WIDENED])


def truncate_layers(model: Model, layers: int) -> Model:
    """A copy with the first `layers` layers of the network, all else as it is."""
    return _with_layers(model, layers, range(layers))


def keep_layers(model: Model, layers: int) -> Model:
    """A copy with this number of layers of the network, evenly spread, to be trained.

    0: a static model, whose table has the vector that the model gives each token alone.
    """
    if layers == 0:
        tokens = Tokenization.of(model.tokenizer, UNLIMITED)
        state = json.dumps(json.loads(tokens.state) | {"post_processor": None})
        alone = replace(describe(model), tokens=replace(tokens, state=state))
        return static_model(token_vectors(model), alone)
    step = (model.module.layers - 1) / max(1, layers - 1)
    return _with_layers(model, layers, [round(i * step) for i in range(layers)])


def _with_layers(model: Model, layers: int, kept: Sequence[int]) -> Model:
    module = model.module
    if not 1 <= layers <= module.layers:
        raise ModelError(
            f"layers is {layers}: expected 1 to {module.layers}, the layers of the network"
        )
    if module.mix is not None:
        raise ModelError("this model averages several layers: it cannot do without some")
    head: Any = list(copy.deepcopy(module.head))
    network = with_layers(module.transformer, kept)
    return replace(model, module=SentenceModule(network, module.pooling, head).eval())


def describe(model: Model | PairModel) -> Description:
    """The description of a model, without its weights."""
    if isinstance(model, PairModel):
        return model.description
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
