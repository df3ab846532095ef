"""The torch model of a cross-encoder: a sequence classifier of transformers with one output.

Read and checked here, and described; `searchengine.trainer.cross_encoder` scores with it.
"""

from dataclasses import dataclass
from typing import Any, cast

from torch import Tensor, nn

from searchengine.trainer.errors import ModelError
from searchengine.trainer.model.layout import read_object
from searchengine.trainer.model.modules import Batch
from searchengine.trainer.model.network import max_tokens, read_config, read_transformer
from searchengine.trainer.model.source import Source
from searchengine.trainer.model.tokens import Description, Tokenization

# The activation's name in a model's configuration, as sentence-transformers writes it.
_SIGMOIDS = (None, "torch.nn.modules.activation.Sigmoid")
_CLASSIFIER = "SequenceClassification"
_IDENTITY = "torch.nn.modules.linear.Identity"


class PairModule(nn.Module):
    """A Batch of pairs to their scores, (B, 1) float32."""

    def __init__(self, transformer: nn.Module, *, sigmoid: bool, reads_types: bool):
        """reads_types: the network takes the types of a batch; others tell no text from another."""
        super().__init__()
        self.transformer = transformer
        self.sigmoid, self.reads_types = sigmoid, reads_types

    def forward(self, batch: Batch) -> Tensor:
        types = {"token_type_ids": batch.types} if self.reads_types else {}
        output = self.transformer(input_ids=batch.ids, attention_mask=batch.mask, **types)
        scores = cast(Tensor, output.logits.float())
        return scores.sigmoid() if self.sigmoid else scores

    def output(self, batch: Batch) -> Tensor:
        """The same: what a runtime computes."""
        return cast(Tensor, self(batch))


@dataclass(frozen=True, slots=True)
class PairModel:
    """A cross-encoder in memory. max_tokens: of a pair."""

    module: PairModule
    tokenizer: Any
    max_tokens: int

    @property
    def description(self) -> Description:
        """Without its weights; a score is a vector of one dimension."""
        config: Any = self.module.transformer.config
        tokens = Tokenization.of(self.tokenizer, self.max_tokens, pairs=True)
        return Description(1, int(config.num_hidden_layers), (1,), tokens)


def read_pairs(source: Source) -> PairModel:
    """The cross-encoder with float32 weights, on the processor. Raises ModelError."""
    config = check(source)
    network, tokenizer = read_transformer(
        source.folder, {}, source.trust_remote_code, classifier=True
    )
    module = PairModule(
        network,
        sigmoid=_activation(config) in _SIGMOIDS,
        reads_types="token_type_ids" in tokenizer.model_input_names,
    )
    return PairModel(module.eval(), tokenizer, max_tokens({}, tokenizer, config))


def check(source: Source) -> Any:
    """The configuration of a cross-encoder, alone read. Raises ModelError for another model."""
    if source.starter is not None:
        raise ModelError(
            f"{source.starter} encodes one text, and scores no pairs; name a cross-encoder: a "
            "sequence classifier with one output"
        )
    config, name = read_config(source.folder, source.trust_remote_code), source.name
    kind = str(next(iter(config.architectures or ()), "model of unknown kind"))
    if _CLASSIFIER not in kind:
        raise ModelError(
            f"{name} is a {kind}, which scores no pairs; name a cross-encoder: a sequence "
            "classifier with one output"
        )
    if config.num_labels != 1:
        raise ModelError(
            f"{name} has {config.num_labels} outputs; name a cross-encoder with one output"
        )
    if (activation := _activation(config)) not in (*_SIGMOIDS, _IDENTITY):
        raise ModelError(
            f"{name} applies {activation} to its output, which is not known here; name a "
            "cross-encoder whose activation is Sigmoid or Identity"
        )
    return config


def is_classifier(source: Source) -> bool:
    """Whether this is a sequence classifier, not an encoder. Raises ModelError.

    Some encoders have no configuration that transformers reads: static models, a Router.
    """
    if source.starter is not None:
        return False
    config = read_object(source.folder / "config.json", optional=True)
    return any(_CLASSIFIER in str(kind) for kind in config.get("architectures") or ())


def has_sigmoid(source: Source) -> bool:
    """Whether the scores of a cross-encoder are its output after the sigmoid. Raises ModelError."""
    return _activation(check(source)) in _SIGMOIDS


def _activation(config: Any) -> str | None:
    """Activation of the output, as sentence-transformers names it; None if not configured."""
    named = getattr(config, "sentence_transformers", None) or {}
    former = getattr(config, "sbert_ce_default_activation_function", None)
    activation: str | None = named.get("activation_fn") or former
    return activation
