"""The torch model of a source: read, widened, cut to fewer layers, made static; described."""

import copy
import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import transformers
from tokenizers import Tokenizer
from torch import Tensor, nn

from searchengine.trainer.errors import ModelError
from searchengine.trainer.model.bert import CLS_NORM, CLS_WEIGHT, MEAN_NORM, WIDE_DIMS
from searchengine.trainer.model.model_folder import Model, read_model
from searchengine.trainer.model.modules import (
    Batch,
    Dense,
    Normalize,
    Pooling,
    PoolingMode,
    SentenceModule,
)
from searchengine.trainer.model.network import with_layers
from searchengine.trainer.model.source import Source, Starter
from searchengine.trainer.model.tokens import (
    UNLIMITED,
    Description,
    Ids,
    TokenIds,
    Tokenization,
)

TOKENS_AT_ONCE = 4096
RARITY = 1e-3


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
    dense = Dense(2 * width, 2 * width, False, "torch.nn.modules.linear.Identity")
    scales = torch.full((2 * width,), 1 / MEAN_NORM)
    scales[:width] = CLS_WEIGHT / CLS_NORM
    with torch.no_grad():
        dense.linear.weight.copy_(torch.diag(scales))
    module = model.module.changed(pooling=pooling, head=[dense, Normalize()])
    return replace(model, module=module, matryoshka_dims=WIDE_DIMS)


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
