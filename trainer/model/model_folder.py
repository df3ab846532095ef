"""Model folders, read: the sentence-transformers layout, safetensors only.

The folder defines the model: modules.json lists the modules, each module's config its settings.
"""

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from searchengine.trainer.classifier import Classifier, read_classifier
from searchengine.trainer.errors import ModelError
from searchengine.trainer.files import read_object
from searchengine.trainer.model.bert import WIDE_DIMS, scales
from searchengine.trainer.model.head import cut, head_width, read_head
from searchengine.trainer.model.layout import (
    max_tokens,
    model_stages,
    pooling_modes,
    read_settings,
    transformer_settings,
)
from searchengine.trainer.model.modules import (
    Pooling,
    PoolingMode,
    SentenceModule,
    torch_head,
)
from searchengine.trainer.model.network import first_layers, read_transformer
from searchengine.trainer.model.tokens import Description, Tokenization, check_settings
from searchengine.trainer.sources.source import Source, Starter

HISTORY = "training.json"  # of training; sentence-transformers does not read it


@dataclass(frozen=True, slots=True)
class Model:
    """A model in memory: all that a folder holds.

    matryoshka_dims: trained prefix lengths, descending, starting with the full width. prompts: by
    name. recipe: how the model was trained, free-form JSON.
    """

    module: SentenceModule
    tokenizer: Any
    max_tokens: int
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt: str | None = None
    matryoshka_dims: tuple[int, ...] = ()
    recipe: Mapping[str, Any] = field(default_factory=dict)
    history: Mapping[str, Any] = field(default_factory=dict)
    classifier: Classifier | None = None

    def __post_init__(self) -> None:
        dims = self.matryoshka_dims or (self.module.dim,)
        check_settings(self.module.dim, dims, self.max_tokens, self.prompts, self.default_prompt)
        object.__setattr__(self, "matryoshka_dims", tuple(dims))


def read_model(folder: Path, *, trust_remote_code: bool = False) -> Model:
    """The model in `folder`: a sentence-transformers folder or a plain transformers one.

    trust_remote_code: Python code that comes with the folder may be run; else it never is.
    """
    stages = model_stages(folder)
    place = stages[0][1]
    settings = transformer_settings(place)
    transformer, tokenizer = read_transformer(place, settings, trust_remote_code)
    width = int(transformer.config.hidden_size)
    pooling = Pooling(width, tuple(map(PoolingMode, pooling_modes(stages[1][1], width))))
    head = read_head(stages[2:], pooling.out_width)
    width = head_width(head, pooling.out_width)
    dim, stated = read_settings(folder, width, unit=head[-1:] == [None])
    module = SentenceModule(transformer, pooling, torch_head([*head, *cut(width, dim)])).eval()
    return Model(
        module,
        tokenizer,
        max_tokens=max_tokens(settings, tokenizer.model_max_length, transformer.config.to_dict()),
        history=read_object(folder / HISTORY, optional=True),
        classifier=read_classifier(folder),
        **stated,
    )


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
        recipe=dict(model.recipe),
    )
