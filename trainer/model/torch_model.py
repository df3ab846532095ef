"""The torch model of a source: read, widened, cut to fewer layers, made static; described.

And its fingerprint: a checksum of everything that decides the vector of a text.
"""

import copy
import hashlib
import inspect
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import transformers
from tokenizers import Tokenizer
from torch import Tensor, nn

from searchengine.trainer.errors import ModelError
from searchengine.trainer.model.model_folder import Model, read_model
from searchengine.trainer.model.modules import (
    Batch,
    Dense,
    Normalize,
    Pooling,
    PoolingMode,
    SentenceModule,
)
from searchengine.trainer.model.network import runs_remote_code, with_layers
from searchengine.trainer.model.numpy_models import CLS_NORM, CLS_WEIGHT, DIMS, MEAN_NORM
from searchengine.trainer.model.pairs import PairModel
from searchengine.trainer.model.source import Source, Starter
from searchengine.trainer.model.tokens import (
    UNLIMITED,
    Description,
    Ids,
    TokenIds,
    Tokenization,
    normalised,
)

TOKENS_AT_ONCE = 4096
RARITY = 1e-3

# Entries of a network's configuration that change no vector: its origin, the types in which it is
# stored and computed, its training, and what follows the hidden states.
NO_EFFECT = frozenset({
    "architectures", "attn_implementation", "auto_map", "custom_pipelines", "dtype",
    "finetuning_task", "gradient_checkpointing", "id2label", "label2id", "num_labels",
    "output_attentions", "output_hidden_states", "problem_type", "reference_compile", "return_dict",
    "task_specific_params", "tie_word_embeddings", "tokenizer_class", "torch_dtype", "torchscript",
    "transformers_version", "use_cache",
})  # fmt: skip
NO_EFFECT_PREFIXES = ("_", "classifier_", "initializer_")


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
    module = model.module.changed(pooling=pooling, head=[dense, Normalize()])
    return replace(model, module=module, matryoshka_dims=DIMS[Starter.WIDENED])


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
    network, head = with_layers(module.transformer, kept), list(copy.deepcopy(module.head))
    return replace(model, module=module.changed(transformer=network, head=head))


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


class TokenTable(nn.Module):
    """In place of a transformer: the hidden state of a token is its row, whatever is beside it."""

    def __init__(self, table: Tensor):
        """table: (tokens, dim) float32."""
        super().__init__()
        self.embedding = nn.Embedding(table.shape[0], table.shape[1], _weight=table)
        self.config = transformers.PretrainedConfig(hidden_size=table.shape[1], num_hidden_layers=0)

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, output_hidden_states: bool = False
    ) -> tuple[Tensor]:
        """(B, T) ids to (B, T, dim)."""
        return (self.embedding(input_ids),)


def static_model(table: Tensor, description: Description) -> Model:
    """The model of a table (tokens, dim) float32; its tokenizer adds no special tokens."""
    tokens = description.tokens
    width = table.shape[1]
    module = SentenceModule(TokenTable(table), Pooling(width, (PoolingMode.MEAN,)), [Normalize()])
    tokenizer: Any = transformers.PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(tokens.state), truncation_side=tokens.truncation_side
    )
    return Model(
        module.eval(),
        tokenizer,
        tokens.max_tokens,
        prompts=description.prompts,
        default_prompt=description.default_prompt,
        matryoshka_dims=description.matryoshka_dims,
        recipe=description.recipe,
    )


@torch.no_grad()
def token_vectors(model: Model) -> Tensor:
    """The vector that a model gives each token alone: (tokens, dim) float32 unit rows.

    A token is read between the special tokens of an empty text, after all of them but the last.
    """
    tokens = TokenIds(Tokenization.of(model.tokenizer, model.max_tokens))
    special = torch.from_numpy(tokens([""])[0].astype(np.int64))
    vocabulary = model.tokenizer.backend_tokenizer.get_vocab(with_added_tokens=True)
    count = max(vocabulary.values()) + 1
    parts = []
    for start in range(0, count, TOKENS_AT_ONCE):
        rows = torch.arange(start, min(start + TOKENS_AT_ONCE, count))
        before, after = (part.expand(len(rows), -1) for part in (special[:-1], special[-1:]))
        ids = torch.cat([before, rows[:, None], after], dim=1)
        parts.append(
            nn.functional.normalize(model.module(Batch(ids, torch.ones_like(ids))), dim=-1)
        )
    return torch.cat(parts)


@torch.no_grad()
def move_head_into_table(model: Model) -> Model:
    """The static model with its linear head multiplied into its table.

    It gives the same vectors: a linear layer of a mean is the mean of the layer's outputs.
    """
    network: Any = model.module.transformer
    table = network.embedding.weight
    for layer in model.module.head:
        if isinstance(layer, Dense):
            table = layer(table)
    module = model.module.changed(transformer=TokenTable(table), head=[Normalize()])
    return replace(model, module=module)


def weigh_by_rarity(table: TokenTable, ids: Iterable[Ids]) -> None:
    """Scale the rows, in place: a token whose share of these ids is p by a / (a + p), a = 10⁻³.

    Words that are everywhere would otherwise decide the mean (Arora et al., ICLR 2017).
    """
    rows = len(table.embedding.weight)
    counts = np.ones(rows, dtype=np.int64)
    for text_ids in ids:
        np.add.at(counts, text_ids, 1)
    shares = torch.from_numpy((counts / counts.sum()).astype(np.float32))
    with torch.no_grad():
        table.embedding.weight *= (RARITY / (RARITY + shares))[:, None]


def fingerprint(model: Model | PairModel) -> str:
    """sha256 (hex) of what decides the vectors; of a cross-encoder, of what decides the scores."""
    module = model.module
    digest = hashlib.sha256()
    for name, weight in sorted(module.state_dict().items()):
        digest.update(f"{name} {list(weight.shape)}\n".encode())
        digest.update(weight.detach().float().cpu().contiguous().numpy().data)
    network: Any = module.transformer
    values: dict[str, Any] = {
        "tokenizer": normalised(model.tokenizer.backend_tokenizer),
        "max_tokens": model.max_tokens,
        "network": configuration(network.config),
        "code": _code(network),
        "truncation_side": model.tokenizer.truncation_side,
    }
    if isinstance(model, Model):
        values |= _pooling_and_prompts(model)
    digest.update(json.dumps(values, sort_keys=True).encode())
    return digest.hexdigest()


def _pooling_and_prompts(model: Model) -> dict[str, Any]:
    module = model.module
    values: dict[str, Any] = {
        "pooling": [*map(str, module.pooling.modes), module.pooling.include_prompt],
        "head": [
            [type(layer).__name__, getattr(layer, "activation_name", "")] for layer in module.head
        ],
        "prompts": dict(model.prompts),
        "default_prompt": model.default_prompt,
    }
    if not module.pooling.include_prompt:  # they tell where a prompt ends
        values["special_ids"] = sorted(model.tokenizer.all_special_ids)
    return values


def configuration(config: Any) -> dict[str, Any]:
    """The entries of a network's configuration that change vectors, without its type's defaults.

    So a version of transformers with one more entry changes nothing.
    """
    try:
        defaults = type(config)().to_dict()
    except Exception:  # a class that came with a model, and wants arguments
        defaults = {}
    values = _deciding(config.to_dict())
    chosen = {name: value for name, value in values.items() if value != defaults.get(name)}
    return chosen | {"model_type": config.model_type}


def _deciding(values: Mapping[str, Any]) -> dict[str, Any]:
    """Without entries that change no vector, at any depth; as JSON values."""
    deciding = {}
    for name, value in values.items():
        # A rate of dropout is a number; ESM's token_dropout, a switch, is in every vector.
        dropout = "drop" in name and not isinstance(value, bool)
        if dropout or name in NO_EFFECT or name.startswith(NO_EFFECT_PREFIXES):
            continue
        deciding[name] = _deciding(value) if isinstance(value, Mapping) else value
    return dict(json.loads(json.dumps(deciding, default=str)))


def _code(network: Any) -> list[str]:
    """The source of a network's classes that came with its folder; [] for one of transformers."""
    if not runs_remote_code(network):
        return []
    kinds = {type(part) for part in network.modules()}
    ours = [kind for kind in kinds if kind.__module__.startswith("transformers_modules.")]
    return sorted({inspect.getsource(inspect.getmodule(kind) or kind) for kind in ours})
