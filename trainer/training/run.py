"""A run before its first update: what it trains, from which base, and its optimizer and device."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from searchengine.trainer import fingerprint
from searchengine.trainer.encoder import Encoder
from searchengine.trainer.errors import ConfigError
from searchengine.trainer.evaluation.intervals import Values
from searchengine.trainer.model.model_folder import Model, describe, read
from searchengine.trainer.model.modules import Classifier, Dense
from searchengine.trainer.sources.source import Source
from searchengine.trainer.training.examples import Batch, BatchPlan, Split, digest, read_examples
from searchengine.trainer.training.judging import Measure, Scores, make_measures
from searchengine.trainer.training.longlora import lengthened, prepare_network
from searchengine.trainer.training.objectives import OBJECTIVES, PrefixObjective
from searchengine.trainer.training.passes import Passes
from searchengine.trainer.training.processes import Processes, connect
from searchengine.trainer.training.train_config import Augment, Objective, Pooler, TrainConfig
from searchengine.trainer.training.training_model import (
    TrainingModel,
    set_dropout,
    with_linear_head,
    with_pooling,
)

# Networks whose first layers give the vectors of a smaller network.
LAYERED = ("bert", "roberta", "xlm-roberta", "mpnet", "distilbert", "electra")
# Peak learning rate of a classifier, which starts without the training that the network has.
CLASSIFIER_RATE = 1e-3
# Settings that a resumed run may change: the places of files, whose content is compared instead,
# the length of the run, and the memory that it takes.
FREE_SETTINGS = {"train", "exclude", "dev", "out", "base", "max_steps", "epochs", "gradient_cache"}
Weights = dict[str, Tensor]


@dataclass(slots=True)
class State:
    """How far a run is, besides its weights. judged: step → prefix length → score, for JSON."""

    step: int = 0
    best_step: int = 0
    losses: list[float] = field(default_factory=list)
    judged: dict[str, dict[str, float]] = field(default_factory=dict)

    def scores(self, step: int) -> Scores:
        """The judgement of a step; {} if there was none."""
        return {int(dim): score for dim, score in self.judged.get(str(step), {}).items()}


@dataclass(slots=True, kw_only=True)
class Run:
    """A run: its parts, and its state.

    origin: settings and digests that a checkpoint must have as well. measures: the first chooses
    the step. best: the weights of the best one. base_values: what each measure says of the base as
    shipped, by the prefix lengths of the run. regression: of labels on the base's vectors.
    """

    config: TrainConfig
    origin: Mapping[str, Any]
    split: Split
    model: Model
    training_model: TrainingModel
    optimizer: torch.optim.Optimizer
    plan: BatchPlan
    objective: PrefixObjective
    passes: Passes
    processes: Processes
    measures: Sequence[Measure]
    best: Weights
    state: State = field(default_factory=State)
    base_values: Sequence[Mapping[int, Values]] = ()
    regression: Classifier | None = None

    @property
    def weights(self) -> dict[int, float]:
        """By prefix length: in the loss and in choosing the best step."""
        return dict(zip(self.objective.dims, self.objective.weights, strict=True))

    def encoder(self) -> Encoder:
        """An encoder that shares the present weights, on their device."""
        device = str(self.passes.device)
        return Encoder(self.model, "", precision=self.config.precision, device=device)

    def summarize_base(self) -> Scores:
        """The scores of the base as shipped by the first measure; {} if nothing judges."""
        return self.measures[0].summarize(self.base_values[0]) if self.measures else {}


def copy_weights(module: nn.Module) -> Weights:
    """The weights as they are now, safe from further training, on the CPU."""
    return {k: v.detach().to("cpu", copy=True).contiguous() for k, v in module.state_dict().items()}


def make_run(config: TrainConfig, measure: Measure | None) -> Run:
    """A run before its first update. measure: of the caller."""
    processes, device = connect()
    examples = read_examples(config)
    measures, split = make_measures(config, examples, measure)
    model, projection = load_base(config, examples.train)
    training_model = TrainingModel(model, config, projection).to(device)
    settings = config.to_dict().items()
    origin = {name: value for name, value in settings if name not in FREE_SETTINGS} | {
        "the training files": digest(split.train, config.dev),
        "the files of the base model": fingerprint.of_model(model, describe(model)),
        "the judged questions": f"{measure.name} {measure.digest}" if measure else "",
    }
    return Run(
        config=config,
        origin=origin,
        split=split,
        model=model,
        training_model=training_model,
        optimizer=make_optimizer(training_model, config, device),
        plan=BatchPlan(config, split.train),
        objective=OBJECTIVES[config.objective](config, model.matryoshka_dims, training_model),
        passes=Passes(training_model, Encoder(model, "", precision="fp32"), config, processes),
        processes=processes,
        measures=measures,
        best=copy_weights(training_model.kept),
    )


def load_base(config: TrainConfig, examples: Batch) -> tuple[Model, Dense | None]:
    """The base model as it is to be trained, and a layer behind it for training only."""
    model = read(Source.find(config.base))
    if config.window is not None:
        model = lengthened(model, config.window)
    model, projection = with_pooling(model, config.pooling, config.seed)
    width, dims = model.module.dim, config.prefixes or default_prefixes(model, config.pooling)
    if dims[0] != width:
        raise ConfigError(
            f"prefixes begins with {dims[0]}: expected {width}, the full width of {config.base}"
        )
    model = replace(model, matryoshka_dims=dims)
    if config.rotate and dims[1:]:
        model = with_linear_head(model)
    if config.dropout is not None:
        set_dropout(model.module.transformer, config.dropout)
    _check_network(config, model, examples)
    prepare_network(model.module.transformer, config)
    classifier = None
    if config.objective is Objective.CLASSIFICATION:
        labels = sorted({row.label for row in examples})
        classifier = Classifier(dims, labels)
    return replace(model, classifier=classifier), projection


def default_prefixes(model: Model, pooling: Pooler) -> tuple[int, ...]:
    """The lengths that a model was trained for; without any, the usual ones below its width."""
    dim = model.module.dim
    if pooling in (Pooler.CLS, Pooler.CLS_BEFORE_POOLER):  # as SimCSE's papers train it
        return (dim,)
    usual = (dim, *(length for length in (512, 256, 128, 64) if length < dim))
    return model.matryoshka_dims if model.matryoshka_dims[1:] else usual


def _check_network(config: TrainConfig, model: Model, examples: Batch) -> None:
    """Refuse what a network cannot do: be cut after a layer, or give a sentence two views."""
    network: Any = model.module.transformer
    kind = network.config.model_type
    if config.layers_per_step and kind not in LAYERED:
        raise ConfigError(
            f"layers_per_step with {config.base}: a {kind} network may end in a norm or share the "
            f"weights of its layers; choose a base of the kind {', '.join(LAYERED)}"
        )
    alone = examples[0].one_text and config.augment is Augment.NONE
    rates = (layer.p for layer in network.modules() if isinstance(layer, nn.Dropout))
    if alone and config.dropout != 0 and not any(rates):
        dropout = "dropout (SimCSE has 0.1), " if config.dropout is None else ""
        raise ConfigError(
            f"{config.base} is a {kind} network without dropout, so that the two views of a "
            f"sentence are equal: set {dropout}an `augment`, or give pairs"
        )


def make_optimizer(
    training_model: TrainingModel, config: TrainConfig, device: torch.device
) -> torch.optim.Optimizer:
    """AdamW, with a weight decay of 0.01 (arXiv 1711.05101) for matrices, but for the classifier.

    rate_factor: a group's learning rate relative to the run's; the classifier has its own.
    """
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for name, weight in training_model.named_parameters():
        own = name.startswith("classifier.")
        decay = 0.01 if weight.ndim > 1 and not own else 0.0
        factor = CLASSIFIER_RATE / config.learning_rate if own else 1.0
        if weight.requires_grad:
            groups.setdefault((decay, factor), []).append(weight)
    return torch.optim.AdamW(
        [{"params": x, "weight_decay": d, "rate_factor": f} for (d, f), x in groups.items()],
        lr=config.learning_rate,
        fused=device.type in ("cpu", "cuda"),
    )
