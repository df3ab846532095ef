"""The masked-language-model loss, as an auxiliary of SimCSE (arXiv 2104.08821, section 3).

Masking as in BERT (Devlin et al., arXiv 1810.04805): of the chosen tokens 80 % become [MASK], 10 %
another token, 10 % stay. The head is the base model's own where its folder has one; a sentence
encoder was mostly saved without, and starts with a fresh one, tied to the input embeddings.
"""

from collections.abc import Sequence
from typing import Any

import torch
import transformers
from torch import Tensor, nn

from searchengine.trainer.errors import ConfigError
from searchengine.trainer.model.modules import Batch
from searchengine.trainer.model.network import quiet, runs_remote_code


class MaskedLanguageModel(nn.Module):
    """A network with a head that names masked tokens: `masked` draws them, `forward` scores."""

    def __init__(self, network: Any, tokenizer: Any, probability: float, seed: int):
        super().__init__()
        if tokenizer.mask_token_id is None:
            raise ConfigError("mlm_weight needs a base model whose tokenizer has a mask token")
        remote = runs_remote_code(network)  # as the network was read
        if not remote and type(network.config) not in transformers.MODEL_FOR_MASKED_LM_MAPPING:
            raise ConfigError(
                f"mlm_weight: a {network.config.model_type} network names no masked tokens; leave "
                "it out, or choose a base such as BERT, RoBERTa or ModernBERT"
            )
        with quiet(), torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)  # of a fresh head
            whole = transformers.AutoModelForMaskedLM.from_pretrained(
                network.name_or_path,
                dtype=torch.float32,
                local_files_only=True,
                trust_remote_code=remote,
            )
        setattr(whole, whole.base_model_prefix, network)
        whole.tie_weights()
        self.whole = whole
        self.specials = sorted(tokenizer.all_special_ids)
        self._collator = transformers.DataCollatorForLanguageModeling(
            tokenizer, mlm_probability=probability
        )

    def masked(self, batch: Batch, seeds: Sequence[int]) -> tuple[Tensor, Tensor]:
        """(B, T) ids with masks, and labels: the ids that were masked, −100 elsewhere.

        The masks of row i depend on seeds[i] alone, not on other rows or padding.
        """
        ids = batch.ids.cpu().clone()
        labels = torch.full_like(ids, -100)
        special = torch.isin(ids, torch.tensor(self.specials))
        lengths = batch.mask.sum(dim=1).tolist()
        for i, (length, seed) in enumerate(zip(lengths, seeds, strict=True)):
            torch.manual_seed(seed)
            row = slice(i, i + 1), slice(0, length)
            ids[row], labels[row] = self._collator.torch_mask_tokens(ids[row], special[row])
        return ids.to(batch.ids.device), labels.to(batch.ids.device)

    def forward(self, ids: Tensor, mask: Tensor, labels: Tensor) -> Tensor:
        """The sum of the cross-entropies of the masked tokens, in nats."""
        count = (labels >= 0).sum()
        if count == 0:
            return torch.zeros((), device=ids.device)
        output = self.whole(input_ids=ids, attention_mask=mask, labels=labels)
        loss: Tensor = output.loss * count
        return loss
