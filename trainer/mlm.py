"""The masked-language-model loss, as an auxiliary of SimCSE (arXiv 2104.08821, section 3).

Masking as in BERT (Devlin et al., arXiv 1810.04805): of the chosen tokens 80 % become [MASK], 10 %
another token, 10 % stay. The head is the base model's own where its folder has one; a sentence
encoder was mostly saved without, and starts with a fresh one, tied to the input embeddings.
"""

from typing import Any

import torch
import transformers
from torch import Tensor, nn

from trainer.errors import ConfigError
from trainer.modules import Batch
from trainer.network import quiet, runs_remote_code


class MaskedLanguageModel(nn.Module):
    """A network with a head that names masked tokens: a Batch to the mean cross-entropy."""

    def __init__(self, network: Any, tokenizer: Any, probability: float, seed: int):
        super().__init__()
        if tokenizer.mask_token_id is None:
            raise ConfigError("mlm_weight needs a base model whose tokenizer has a mask token")
        with quiet(), torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)  # of a fresh head
            whole = transformers.AutoModelForMaskedLM.from_pretrained(
                network.name_or_path,
                dtype=torch.float32,
                local_files_only=True,
                trust_remote_code=runs_remote_code(network),  # as the network was read
            )
        setattr(whole, whole.base_model_prefix, network)
        whole.tie_weights()
        self.whole = whole
        self.specials = sorted(tokenizer.all_special_ids)
        self._collator = transformers.DataCollatorForLanguageModeling(
            tokenizer, mlm_probability=probability
        )

    def forward(self, batch: Batch) -> Tensor:
        """Draws the masked tokens from torch's generator; 0 where it draws none."""
        special = torch.isin(batch.ids, torch.tensor(self.specials, device=batch.ids.device))
        ids, labels = self._collator.torch_mask_tokens(
            batch.ids.cpu().clone(), (special | (batch.mask == 0)).cpu()
        )
        if not (labels >= 0).any():
            return torch.zeros((), device=batch.ids.device)
        device = batch.ids.device
        found = self.whole(
            input_ids=ids.to(device), attention_mask=batch.mask, labels=labels.to(device)
        )
        loss: Tensor = found.loss
        return loss
