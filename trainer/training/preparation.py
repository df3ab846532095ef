"""Before the first update: examples, early checks, model, optimizer and device."""

import tempfile
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from searchengine.trainer.classifier import Classifier
from searchengine.trainer.errors import ConfigError, ModelError
from searchengine.trainer.model.layout import remote_code
from searchengine.trainer.model.model_folder import Model, read
from searchengine.trainer.model.modules import Dense
from searchengine.trainer.model.saving import check_replaceable
from searchengine.trainer.sources.source import Source
from searchengine.trainer.training import checkpoint
from searchengine.trainer.training.examples import Examples, Kind
from searchengine.trainer.training.head import with_linear_head
from searchengine.trainer.training.longlora import lengthened, prepare_network
from searchengine.trainer.training.train_config import (
    Augment,
    Objective,
    Pooler,
    TrainConfig,
)
from searchengine.trainer.training.training_model import (
    TrainingModel,
    set_dropout,
    with_pooling,
)

# Networks whose first layers give the vectors of a smaller network.
LAYERED = ("bert", "roberta", "xlm-roberta", "mpnet", "distilbert", "electra")
# Peak learning rate of a classifier, which starts without the training that the network has.
CLASSIFIER_RATE = 1e-3


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


def load_base(config: TrainConfig, examples: Examples) -> tuple[Model, Dense | None]:
    """The base model as it is to be trained, and a layer behind it for training only."""
    source = Source.find(config.base)
    try:
        model = read(source)
    except ModelError:
        if not remote_code(source.folder):
            raise
        raise ConfigError(
            f"base is {config.base}, which needs Python code that came with it; training runs "
            "none: choose another base"
        ) from None
    if config.prompts:
        model = replace(model, prompts={**model.prompts, **config.prompts})
    if config.window is not None:
        model = lengthened(model, config.window)
    model, projection = with_pooling(model, config.pooling, config.seed)
    dims = config.prefixes or default_prefixes(model, config.pooling)
    if dims[0] != model.module.dim:
        raise ConfigError(
            f"prefixes begins with {dims[0]}: expected {model.module.dim}, the full width of "
            f"{config.base}"
        )
    model = replace(model, matryoshka_dims=dims)
    if starts_rotated(config, model):
        model = with_linear_head(model)
    if config.dropout is not None:
        set_dropout(model.module.transformer, config.dropout)
    _check_network(config, model, examples)
    prepare_network(model.module.transformer, config)
    classifier = None
    if config.objective is Objective.CLASSIFICATION:
        labels = sorted({texts[1] for _, texts in examples})
        classifier = Classifier(dims, labels, config.seed)
    return replace(model, classifier=classifier), projection


def default_prefixes(model: Model, pooling: Pooler = Pooler.BASE) -> tuple[int, ...]:
    """The lengths that a model was trained for; without any, the usual ones below its width.

    SimCSE's poolings have the width alone, as its papers train it.
    """
    dim = model.module.dim
    if pooling in (Pooler.CLS, Pooler.CLS_BEFORE_POOLER):
        return (dim,)
    if len(model.matryoshka_dims) > 1:
        return model.matryoshka_dims
    return (dim, *(length for length in (512, 256, 128, 64) if length < dim))


def _check_network(config: TrainConfig, model: Model, examples: Examples) -> None:
    """Refuse what a network cannot do: be cut after a layer, or give a sentence two views."""
    network: Any = model.module.transformer
    kind = network.config.model_type
    if config.layers_per_step and kind not in LAYERED:
        raise ConfigError(
            f"layers_per_step with {config.base}: a {kind} network may end in a norm or share the "
            f"weights of its layers; choose a base of the kind {', '.join(LAYERED)}"
        )
    alone = len(examples.of_kind(Kind.SENTENCE)) and config.augment is Augment.NONE
    rates = (layer.p for layer in network.modules() if isinstance(layer, nn.Dropout))
    if alone and config.dropout != 0 and not any(rates):
        dropout = "dropout (SimCSE has 0.1), " if config.dropout is None else ""
        raise ConfigError(
            f"{config.base} is a {kind} network without dropout, so that the two views of a "
            f"sentence are equal: set {dropout}an `augment`, or give pairs"
        )


def starts_rotated(config: TrainConfig, model: Model) -> bool:
    """Whether a run begins with a rotation to the principal axes, which prefixes need."""
    return config.rotate and len(model.matryoshka_dims) > 1


def make_optimizer(
    training_model: TrainingModel, config: TrainConfig, device: torch.device
) -> torch.optim.Optimizer:
    """AdamW, with a weight decay of 0.01 (arXiv 1711.05101) for matrices, but for the classifier.

    rate_factor: a group's learning rate relative to the run's; the classifier has its own.
    """
    classifier = training_model.classifier
    own = [] if classifier is None else [*classifier.parameters()]
    known = {id(weight) for weight in own}
    trained = [w for w in training_model.parameters() if w.requires_grad and id(w) not in known]
    factor = CLASSIFIER_RATE / config.learning_rate
    groups = [
        {"params": [w for w in trained if w.ndim > 1], "weight_decay": 0.01, "rate_factor": 1.0},
        {"params": [w for w in trained if w.ndim < 2], "weight_decay": 0.0, "rate_factor": 1.0},
        {"params": own, "weight_decay": 0.0, "rate_factor": factor},
    ]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=config.learning_rate,
        fused=device.type in ("cpu", "cuda"),
    )
