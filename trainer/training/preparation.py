"""Before the first update: early checks, model and optimizer."""

import math
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from searchengine.trainer.errors import ConfigError, DataError, ModelError
from searchengine.trainer.model.folder import Model
from searchengine.trainer.model.loading import TokenTable, keep_layers, read, weigh_by_rarity
from searchengine.trainer.model.modules import Batch, Dense
from searchengine.trainer.model.network import truncated
from searchengine.trainer.model.saving import check_replaceable
from searchengine.trainer.model.source import Source
from searchengine.trainer.model.tokens import TokenIds, Tokenization
from searchengine.trainer.training import checkpoint
from searchengine.trainer.training.attention import use as use_plain
from searchengine.trainer.training.config import TrainConfig
from searchengine.trainer.training.data.examples import Examples
from searchengine.trainer.training.data.positives import Augment, Kind
from searchengine.trainer.training.data_sets import DataSet
from searchengine.trainer.training.head import with_linear_head
from searchengine.trainer.training.lengthening.adapters import add_adapters
from searchengine.trainer.training.lengthening.attention import use as use_groups
from searchengine.trainer.training.lengthening.window import lengthened
from searchengine.trainer.training.objectives.fixed import FixedCrossEncoder, FixedEncoder
from searchengine.trainer.training.settings.fields import Objective
from searchengine.trainer.training.settings.objective import DistillationLoss, SimilarityLoss
from searchengine.trainer.training.teachers import check_widths
from searchengine.trainer.training.training_model import (
    TrainingModel,
    layers_again,
    set_dropout,
    with_classifier,
    with_pooling,
)

# Texts whose tokens are counted at a time.
_TOKENIZED_AT_ONCE = 10_000


def check_place(config: TrainConfig) -> None:
    """Refuse an `out` that a model could not be written to hours later."""
    check_replaceable(config.out)
    try:
        config.out.absolute().parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=config.out.absolute().parent):
            pass
    except OSError as error:
        raise ConfigError(
            f"out is {config.out}: nothing can be written there ({error.strerror}); name a folder "
            "that can be made"
        ) from error


def check_start(config: TrainConfig, resume: bool) -> None:
    """Refuse to begin a run where another one can be resumed."""
    unfinished = checkpoint.latest(config.out)
    if unfinished is not None and not resume:
        raise ConfigError(
            f"{config.out} holds the checkpoint of an unfinished run ({unfinished.name}): resume "
            f"it, remove {unfinished.parent}, or choose another `out`"
        )


def check_examples(data: Sequence[DataSet]) -> None:
    """Refuse settings that mean nothing for the examples of their data set."""
    for each in data:
        _check_examples(each)


def _check_examples(data: DataSet) -> None:
    config, examples = data.config, data.examples
    alone = examples.has(Kind.SENTENCE)
    same = alone and config.augment is Augment.NONE and config.head_only
    if same and config.objective is Objective.CONTRASTIVE:
        raise ConfigError(
            "head_only gives both views of a sentence the same vector: give pairs, or an `augment`"
        )
    if config.objective is Objective.SIMILARITY:
        _check_scored_pairs(config, examples)
    if config.objective is Objective.DISTILLATION:
        _check_candidates(config, examples, isinstance(data.fixed, FixedCrossEncoder))


def _check_scored_pairs(config: TrainConfig, examples: Examples) -> None:
    """Refuse all but pairs with one score, of which two or more differ."""
    low, high = math.inf, -math.inf
    for _, (anchor, _, *rest) in examples:
        numbers = [float(number) for number in rest[-1].split()]
        if len(rest) > 1 or len(numbers) > 1:
            raise DataError(
                f"the example {anchor[:40]!r} has {len(rest) + 1} texts and {len(numbers)} scores: "
                "objective similarity learns pairs with one score; set objective=distillation for "
                "scores of candidates"
            )
        low, high = min(low, *numbers), max(high, *numbers)
    if low == high:
        raise DataError(
            f"all {len(examples)} pairs have the score {low:g}: expected different ones"
        )
    if config.similarity_loss is SimilarityLoss.MSE and not -1 <= low <= high <= 1:
        raise DataError(
            f"scores from {low:g} to {high:g}: similarity_loss mse compares them "
            "with cosines, −1 to 1; divide them, or learn their order with cosent"
        )


def _check_candidates(config: TrainConfig, examples: Examples, own_scores: bool) -> None:
    """Refuse examples without the candidates that the loss compares.

    own_scores: the teacher scores a row's own candidates alone.
    """
    margins = config.distillation_loss is DistillationLoss.MARGIN_MSE
    if config.teacher and not margins and not own_scores:
        return
    for kind, texts in examples:
        if kind is not Kind.TRIPLET and len(texts) < 4:  # anchor, positive, a negative, scores
            raise DataError(
                f"the example {texts[0][:40]!r} has no negative: distillation_loss "
                f"{config.distillation_loss} compares the scores of at least two candidates; add "
                "negatives, or learn the scores of pairs with objective=similarity"
            )


def load_base(config: TrainConfig, data: Sequence[DataSet]) -> tuple[Model, Dense | None]:
    """The base model as it is to be trained, and a layer behind it for training only."""
    model = _read_base(config, data[0])
    if config.window is not None:
        model = lengthened(model, config.window, config.kept_positions)
    model, projection = with_pooling(model, config.pooling, config.seed)
    dims = config.prefixes or default_prefixes(model, config.nested)
    if dims[0] != model.module.dim:
        raise ConfigError(
            f"prefixes begins with {dims[0]}: expected {model.module.dim}, the full width of "
            f"{config.base}"
        )
    model = replace(model, matryoshka_dims=dims)
    table = isinstance(model.module.transformer, TokenTable)
    # What a table learns of frequent tokens reaches the others through a layer that all share.
    if table or starts_rotated(config, model, data):
        model = with_linear_head(model)
    _check_layers(config, model)
    if config.dropout is not None:
        set_dropout(model.module.transformer, config.dropout)
    _check_data(model, data)
    if config.head_only and not any(True for _ in model.module.head.parameters()):
        raise ConfigError(f"head_only, but {config.base} has no head to train: leave it out")
    if config.attention_group:
        use_groups(model.module.transformer, config.attention_group)
    else:
        use_plain(model.module.transformer)
    if config.adapter_rank:
        add_adapters(model.module.transformer, config)
    if config.gradient_checkpointing:
        _keep_inputs_only(model.module.transformer, config.base)
    labels: list[str] = []
    if config.objective is Objective.CLASSIFICATION:
        labels = sorted({texts[1] for _, texts in data[0].examples})
    return with_classifier(model, config, labels), projection


def _read_base(config: TrainConfig, data: DataSet) -> Model:
    """The base with the layers that are kept; a question encoder has its teacher's prompts."""
    model = read(Source.find(config.base, trust_remote_code=config.trust_remote_code))
    if config.question_encoder and isinstance(data.fixed, FixedEncoder):
        teacher = data.fixed.encoder.model
        model = replace(model, prompts=teacher.prompts, default_prompt=teacher.default_prompt)
    if config.kept_layers is not None:
        model = keep_layers(model, config.kept_layers)
    if isinstance(model.module.transformer, TokenTable):
        tokens = TokenIds(Tokenization.of(model.tokenizer, config.max_tokens))
        ids = (
            each
            for start in range(0, len(data.examples), _TOKENIZED_AT_ONCE)
            for each in tokens([t[0] for _, t in data.examples[start : start + _TOKENIZED_AT_ONCE]])
        )
        weigh_by_rarity(model.module.transformer, ids)
    return model


def _keep_inputs_only(network: Any, base: str) -> None:
    """Have the layers computed again in the backward pass, with the same dropout."""
    if not getattr(network, "supports_gradient_checkpointing", False):
        raise ConfigError(
            f"gradient_checkpointing: a {network.config.model_type} network ({base}) cannot; leave "
            "it out, or set gradient_cache"
        )
    layers_again(network, True)


def default_prefixes(model: Model, nested: bool = True) -> tuple[int, ...]:
    """The lengths a model was trained for; the usual ones below its width where it names none."""
    dim = model.module.dim
    if not nested:
        return (dim,)
    if len(model.matryoshka_dims) > 1:
        return model.matryoshka_dims
    return (dim, *(length for length in (512, 256, 128, 64) if length < dim))


def _check_layers(config: TrainConfig, model: Model) -> None:
    """Refuse to truncate a network that then gives other vectors than its layer does."""
    if config.layers_per_step == 0:
        return
    if model.module.mix is not None:
        raise ConfigError(f"layers_per_step with {config.base}: it averages several layers")
    network: Any = model.module.transformer
    inputs = _sample_inputs(model)
    with torch.no_grad():
        full = network(**inputs, output_hidden_states=True)
        try:
            first = truncated(network, 1)(**inputs)[0]
        except ModelError:
            first = None  # layers that share their weights, as ALBERT's do
    pairs = ((first, full.hidden_states[1]), (full[0], full.hidden_states[-1]))
    if any(x is None or not torch.allclose(x, y, atol=1e-4) for x, y in pairs):
        raise ConfigError(
            f"layers_per_step with {config.base}: a {network.config.model_type} network cut after "
            "a layer gives other vectors than that layer (it ends in a norm, or its layers share "
            "weights); choose a base such as BERT, RoBERTa, MPNet or MiniLM"
        )


def _check_data(model: Model, data: Sequence[DataSet]) -> None:
    """Refuse data sets that this model cannot learn from."""
    for each in data:
        _check_views(each.config, model, each.examples)
        check_widths(each.config, each.fixed, model)


def _check_views(config: TrainConfig, model: Model, examples: Examples) -> None:
    """Refuse sentences as their own positives where no dropout tells the two views apart."""
    alone = examples.has(Kind.SENTENCE)
    if config.objective is not Objective.CONTRASTIVE:  # no view is told from the other
        return
    equal_views = config.fixed_dropout or config.dropout == 0 or config.head_only
    if not alone or config.augment is not Augment.NONE or equal_views:
        return
    network: Any = model.module.transformer
    inputs = _sample_inputs(model)
    network.train()
    with torch.no_grad():
        views = [network(**inputs)[0] for _ in range(2)]
    network.eval()
    if torch.equal(*views):
        dropout = "dropout (SimCSE has 0.1), " if config.dropout is None else ""
        raise ConfigError(
            f"{config.base} is a {network.config.model_type} network without dropout, so that the "
            f"two views of a sentence are equal: set {dropout}an `augment`, or give pairs"
        )


def _sample_inputs(model: Model) -> dict[str, torch.Tensor]:
    """A sentence, as the network takes it."""
    ids = TokenIds(Tokenization.of(model.tokenizer, model.max_tokens))
    batch = Batch.of(ids.pad(ids(["two views of one sentence"])), torch.device("cpu"))
    return {"input_ids": batch.ids, "attention_mask": batch.mask}


def starts_rotated(config: TrainConfig, model: Model, data: Sequence[DataSet]) -> bool:
    """Whether the run begins with a rotation: to the own axes, or towards a teacher's vectors.

    To the own axes it changes nothing at the full width alone.
    """
    if config.kept_layers == 0:  # a table, whose vectors are the base's
        return False
    learns_vectors = any(each.config.learns_vectors for each in data)
    return config.rotate and (len(model.matryoshka_dims) > 1 or learns_vectors)


def prepare_embeddings(training_model: TrainingModel, frozen: bool) -> None:
    """Freeze the embeddings; or make their gradients sparse: of the words that occur.

    A dense gradient is as large as the table, and would be written once for each pass.
    """
    for module in training_model.modules():
        if isinstance(module, torch.nn.Embedding):
            module.sparse = True
            if frozen:
                module.requires_grad_(False)


def make_optimizer(
    training_model: TrainingModel, config: TrainConfig, device: torch.device
) -> torch.optim.Optimizer:
    """AdamW; weight matrices decay, biases and norms do not.

    rate_factor: a group's learning rate relative to the run's; the classifier has its own.
    """
    if config.head_only:
        training_model.sentence.transformer.requires_grad_(False)
    classifier = (
        set() if training_model.classifier is None else set(training_model.classifier.parameters())
    )
    trainable = [p for p in training_model.parameters() if p.requires_grad and p not in classifier]
    groups: list[dict[str, Any]] = [
        {"params": [p for p in trainable if p.ndim > 1], "weight_decay": config.weight_decay},
        {"params": [p for p in trainable if p.ndim <= 1], "weight_decay": 0.0},
    ]
    groups = [{**group, "rate_factor": 1.0} for group in groups]
    if classifier:
        factor = config.classifier_learning_rate / config.learning_rate
        groups.append({"params": list(classifier), "weight_decay": 0.0, "rate_factor": factor})
    return torch.optim.AdamW(groups, lr=config.learning_rate, fused=device.type in ("cpu", "cuda"))
