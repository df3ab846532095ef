"""Model folders, read: the sentence-transformers layout, safetensors only.

The folder defines the model: modules.json lists the modules, each module's config its settings.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from searchengine.trainer.classifier import Classifier, read_classifier
from searchengine.trainer.files import read_object
from searchengine.trainer.model.head import read_head
from searchengine.trainer.model.layout import max_tokens, model_stages, transformer_settings
from searchengine.trainer.model.modules import Pooling, PoolingMode, SentenceModule, torch_head
from searchengine.trainer.model.network import first_layers, read_transformer
from searchengine.trainer.model.tokens import Description, Tokenization
from searchengine.trainer.sources.source import Source

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
        object.__setattr__(self, "matryoshka_dims", tuple(dims))


def read(source: Source) -> Model:
    """The model with float32 weights, on the processor. Raises ModelError.

    Its folder is one of sentence-transformers, or a plain one of transformers.
    """
    (_, place), *behind = model_stages(source.folder)
    settings = transformer_settings(place)
    network, tokenizer = read_transformer(place, source.trust_remote_code)
    modes, head, stated = read_head(source, behind, int(network.config.hidden_size))
    del stated["dim"]  # that of the module
    if source.layers is not None:
        network = first_layers(network, source.layers)
    pooling = Pooling(int(network.config.hidden_size), tuple(map(PoolingMode, modes)))
    return Model(
        SentenceModule(network, pooling, torch_head(head)).eval(),
        tokenizer,
        max_tokens=max_tokens(settings, tokenizer.model_max_length, network.config.to_dict()),
        history=read_object(source.folder / HISTORY, optional=True),
        classifier=read_classifier(source.folder),
        **stated,
    )


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
