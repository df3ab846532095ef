"""A static model as torch trains and writes it: token vectors from a table, pooled by the mean."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import transformers
from tokenizers import Tokenizer
from torch import Tensor, nn

from trainer.model.description import Description
from trainer.model.folder import Model
from trainer.model.modules import Batch, Dense, Normalize, Pooling, PoolingMode, SentenceModule
from trainer.model.tokens import Ids, TokenIds, Tokenization

TOKENS_AT_ONCE = 4096
RARITY = 1e-3


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
    module = SentenceModule(TokenTable(table), model.module.pooling, [Normalize()])
    return replace(model, module=module.eval())


def weigh_by_rarity(table: TokenTable, ids: Iterable[Ids]) -> None:
    """Scale the rows, in place: a token whose share of these ids is p by a / (a + p), a = 10⁻³.

    Words that are everywhere would otherwise decide the mean (Arora et al., ICLR 2017).
    """
    rows = len(table.embedding.weight)
    counts = np.ones(rows, dtype=np.int64)
    for each in ids:
        np.add.at(counts, each, 1)
    shares = torch.from_numpy((counts / counts.sum()).astype(np.float32))
    with torch.no_grad():
        table.embedding.weight *= (RARITY / (RARITY + shares))[:, None]
