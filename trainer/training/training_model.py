"""Everything that a run trains: the encoder, and the parts that are dropped after training.

The layer behind CLS is SimCSE's (arXiv 2104.08821).

The head may be rotated before training, strongest axes first. An orthogonal rotation of the vectors
leaves every full-width cosine as it was, and decides which directions a prefix has. With the
principal axes first, 64 of 768 dimensions start better than hundreds of updates would make them.
Uncentred PCA; the lengths of the axes do not change.
"""

import copy
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.preprocessing import normalize
from torch import Tensor, nn

from searchengine.trainer.encoder import Encoder
from searchengine.trainer.errors import ConfigError
from searchengine.trainer.model import head
from searchengine.trainer.model.head import TANH
from searchengine.trainer.model.model_folder import Model
from searchengine.trainer.model.modules import (
    Batch,
    Classifier,
    Dense,
    Normalize,
    Pooling,
    SentenceModule,
)
from searchengine.trainer.model.network import quiet
from searchengine.trainer.training.examples import Row
from searchengine.trainer.training.moco import QUEUE_MOMENTUM, Queue
from searchengine.trainer.training.train_config import Pooler, TrainConfig

MASKED_SHARE = 0.15  # of the tokens, as BERT (arXiv 1810.04805)


class EncoderCopy(nn.Module):
    """The encoder or its momentum copy; `projection` is a layer that is dropped in the end."""

    def __init__(self, sentence: SentenceModule, projection: Dense | None = None):
        super().__init__()
        self.sentence = sentence
        self.projection = projection

    def forward(self, batch: Batch, layers: Sequence[int] = ()) -> Tensor:
        """(L, B, dim) float32: the vectors after each of `layers`, or of all. Not unit rows."""
        pooled = self.sentence.pooled(batch, layers)
        rows = torch.stack([self.sentence.headed(x, unit=False) for x in pooled])
        if self.projection is None:
            return rows
        with torch.autocast(rows.device.type, enabled=False):
            return cast(Tensor, self.projection(rows))


class MaskedLanguageModel(nn.Module):
    """The masked-language-model loss, as an auxiliary of SimCSE (arXiv 2104.08821, section 3).

    Masking as in BERT (Devlin et al., arXiv 1810.04805): of the chosen tokens 80 % become [MASK],
    10 % another token, 10 % stay. The head is the base model's own if its folder has one; most
    sentence encoders were saved without, and start with a fresh one, tied to the input embeddings.
    """

    def __init__(self, network: Any, tokenizer: Any, seed: int):
        super().__init__()
        maskable = type(network.config) in transformers.MODEL_FOR_MASKED_LM_MAPPING
        if not maskable or tokenizer.mask_token_id is None:
            raise ConfigError(
                f"mlm_weight: this {network.config.model_type} network cannot name masked tokens; "
                "leave it out, or choose a base such as BERT, RoBERTa or ModernBERT"
            )
        with quiet(), torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)  # of a fresh head
            whole = transformers.AutoModelForMaskedLM.from_pretrained(
                network.name_or_path,
                dtype=torch.float32,
                local_files_only=True,
            )
        setattr(whole, whole.base_model_prefix, network)
        whole.tie_weights()
        self.whole = whole
        self.specials = sorted(tokenizer.all_special_ids)
        self._collator = transformers.DataCollatorForLanguageModeling(
            tokenizer, mlm_probability=MASKED_SHARE
        )

    def mask(self, batch: Batch, seed: int) -> tuple[Tensor, Tensor]:
        """(B, T) ids with masks, and labels: the ids that were masked, −100 elsewhere."""
        kept = torch.isin(batch.ids, torch.tensor(self.specials)) | (batch.mask == 0)
        torch.manual_seed(seed)
        ids, labels = self._collator.torch_mask_tokens(batch.ids.clone(), kept)
        return ids, labels

    def forward(self, mask: Tensor, ids: Tensor, labels: Tensor) -> Tensor:
        """The sum of the cross-entropies of the masked tokens, in nats. All (B, T)."""
        count = (labels >= 0).sum()
        if count == 0:
            return torch.zeros((), device=ids.device)
        output = self.whole(input_ids=ids, attention_mask=mask, labels=labels)
        loss: Tensor = output.loss * count
        return loss


class TrainingModel(nn.Module):
    """Everything that a run changes. The names of its parts are those of the stored checkpoints.

    queue and momentum, language, classifier: None unless the configuration asks for them.
    """

    def __init__(self, model: Model, config: TrainConfig, projection: Dense | None):
        super().__init__()
        self.encoder = EncoderCopy(model.module, projection)
        self.queue = Queue(config.queue_size, model.module.dim) if config.queue_size else None
        self.momentum = copy.deepcopy(self.encoder) if config.queue_size else None
        if self.momentum is not None:
            self.momentum.requires_grad_(False)
        self.language: MaskedLanguageModel | None = None
        if config.mlm_weight > 0:
            network = model.module.transformer
            self.language = MaskedLanguageModel(network, model.tokenizer, config.seed)
        self.classifier = model.classifier

    @property
    def sentence(self) -> SentenceModule:
        """The module that is saved."""
        return self.encoder.sentence

    @property
    def kept(self) -> nn.Module:
        """The modules that are saved, as one."""
        parts = {"sentence": self.sentence, "classifier": self.classifier}
        return nn.ModuleDict({name: part for name, part in parts.items() if part is not None})

    @torch.no_grad()
    def follow(self, share: float = 1 - QUEUE_MOMENTUM) -> None:
        """Move the momentum encoder this share of the way to the encoder."""
        if self.momentum is not None:
            pairs = zip(self.momentum.parameters(), self.encoder.parameters(), strict=True)
            for slow, fast in pairs:
                slow.lerp_(fast, share)


def set_dropout(network: nn.Module, rate: float) -> None:
    """Every dropout of the network, of hidden states and of attention, at this rate."""
    for module in network.modules():
        for name in ("p", "attention_dropout", "dropout", "dropout_prob", "dropout_p"):
            if isinstance(getattr(module, name, None), float | int):
                setattr(module, name, rate)


def with_pooling(model: Model, pooler: Pooler, seed: int) -> tuple[Model, Dense | None]:
    """The network with this pooling and unit rows, and the layer of CLS_BEFORE_POOLER.

    BASE leaves the model as it is; any other drops its head.
    """
    if pooler is Pooler.BASE:
        return model, None
    module, width = model.module, model.module.pooling.width
    layer: list[Any] = []
    if pooler is not Pooler.MEAN:
        layer = [Dense(width, width, True, TANH)]
        std = getattr(module.transformer.config, "initializer_range", 0.02)
        generator = torch.Generator().manual_seed(seed)
        nn.init.normal_(layer[0].linear.weight, std=std, generator=generator)
        nn.init.zeros_(layer[0].linear.bias)
    mode = "cls" if layer else "mean"
    projection = layer.pop() if pooler is Pooler.CLS_BEFORE_POOLER else None
    module = module.changed(pooling=Pooling(width, (mode,)), head=[*layer, Normalize()])
    dims = width, *(dim for dim in model.matryoshka_dims if dim < width)
    return replace(model, module=module, matryoshka_dims=dims), projection


# Texts that the rotation is fitted on: a few for each axis of common widths.
ROTATION_TEXTS = 2048
CLASSIFIER_TEXTS = 4096  # that a classifier is fitted on, at most
C = 3.0
"""Inverse strength of L2 in a regression on unit vectors."""
CS, MIN_CHOOSING = (0.3, 1.0, 3.0, 10.0, 30.0), 500
"""Values of C for cross-validation to choose from, and the fewest texts for it (docs/tried.md)."""


def with_linear_head(model: Model) -> Model:
    """The model with a head that ends in a linear Dense layer, then perhaps Normalize.

    A model that has one is returned as it is; another gets a Dense layer that is the identity.
    """
    layers = list(model.module.head)
    unit = [layers.pop()] if layers and isinstance(layers[-1], Normalize) else []
    last = layers[-1] if layers else None
    if isinstance(last, Dense) and last.activation_name == head.IDENTITY:
        return model
    identity = head.Dense(np.eye(model.module.dim, dtype=np.float32), None, head.IDENTITY)
    layers = [*layers, Dense.of(identity), *unit]
    return replace(model, module=model.module.changed(head=layers))


def rotate_head(encoder: Encoder, examples: Sequence[Row], seed: int) -> None:
    """Rotate the last Dense layer of the encoder's module, in place, to the examples' axes.

    The module must come from `with_linear_head`. Full-width cosines stay as they were. The encoder
    may keep a copy of the weights from before: make a new one from its model.
    """
    *_, dense = (layer for layer in encoder.module.head if isinstance(layer, Dense))
    order = np.random.default_rng(seed).permutation(len(examples))[:ROTATION_TEXTS]
    texts = dict.fromkeys(text for place in order for text in examples[place].texts)
    vectors = encoder.encode(list(texts)[:ROTATION_TEXTS]).astype(np.float64)  # (n, D)
    _, axes = np.linalg.eigh(vectors.T @ vectors)  # as columns (D, D), the weakest first
    factor = torch.from_numpy(axes[:, ::-1].T.copy())
    with torch.no_grad():
        for weight in dense.linear.parameters():
            weight.copy_(factor @ weight.cpu().double())  # in float64, which not every device has


def fit_classifier(
    encoder: Encoder, classifier: Classifier, examples: Sequence[Row], choose: bool = False
) -> None:
    """Fit a classifier, in place: a logistic regression on every prefix of the examples' vectors.

    Training starts from it, as in arXiv 2202.10054: random weights would need hundreds of updates,
    and would distort the vectors meanwhile. choose: the strength of L2, by `chosen_c`.
    """
    rows = random.Random("classifier").sample(examples, len(examples))
    first = {row.label: row for row in reversed(rows)}
    rows.sort(key=lambda row: row is not first[row.label])  # every label has a text
    rows = rows[: max(CLASSIFIER_TEXTS, len(first))]
    labels = [row.label for row in rows]
    vectors = encoder.encode([row.anchor for row in rows], role="document").astype(np.float64)
    c = chosen_c(vectors, labels) if choose else C
    for dim in classifier.dims:
        regression = LogisticRegression(C=c, max_iter=2000)
        regression.fit(normalize(vectors[:, :dim]), labels)
        weights, intercepts = regression.coef_, regression.intercept_
        if len(weights) == 1:  # two labels: the logit of the second less that of the first
            weights, intercepts = (np.concatenate([-x, x]) / 2 for x in (weights, intercepts))
        classifier.set_regression(dim, weights, intercepts)


def chosen_c(vectors: NDArray[np.float64], labels: Sequence[str]) -> float:
    """The C of CS that predicts most labels of unit vectors (n, D) in five folds; C for few texts.

    Labels that fewer than five texts have take no part.
    """
    counts = Counter(labels)
    often = np.array([counts[label] >= 5 for label in labels])
    if often.sum() < MIN_CHOOSING or len(set(np.array(labels)[often])) == 1:
        return C
    search = GridSearchCV(LogisticRegression(max_iter=2000), {"C": CS}, cv=5, refit=False)
    return float(search.fit(vectors[often], np.array(labels)[often]).best_params_["C"])
