"""A run before its first update: what it trains, from which base, and its optimizer and device."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from searchengine.trainer import fingerprint
from searchengine.trainer.classifier import Classifier
from searchengine.trainer.encoder import Encoder
from searchengine.trainer.errors import ConfigError, ModelError
from searchengine.trainer.evaluation.intervals import Values
from searchengine.trainer.model.layout import remote_code
from searchengine.trainer.model.model_folder import Model, describe, read
from searchengine.trainer.model.modules import Dense
from searchengine.trainer.sources.source import Source
from searchengine.trainer.training.batches import BatchPlan
from searchengine.trainer.training.examples import Examples, Kind, read_examples
from searchengine.trainer.training.head import with_linear_head
from searchengine.trainer.training.judging import Measure, Scores, Split, make_measures
from searchengine.trainer.training.longlora import lengthened, prepare_network
from searchengine.trainer.training.objectives import OBJECTIVES, PrefixObjective
from searchengine.trainer.training.passes import Passes
from searchengine.trainer.training.processes import Processes, connect
from searchengine.trainer.training.train_config import Augment, Objective, Pooler, TrainConfig
from searchengine.trainer.training.training_model import (
    TrainingModel,
    set_dropout,
    with_pooling,
)

# Networks whose first layers give the vectors of a smaller network.
LAYERED = ("bert", "roberta", "xlm-roberta", "mpnet", "distilbert", "electra")
# Peak learning rate of a classifier, which starts without the training that the network has.
CLASSIFIER_RATE = 1e-3
Weights = dict[str, Tensor]


@dataclass(slots=True)
class State:
    """How far a run is, besides its weights.

    step: updates done. best_step: the step with the best scores. losses: of every update. judged:
    evaluations in order, with step, learning_rate, and scores by prefix length (as text, for JSON).
    """

    step: int = 0
    best_step: int = 0
    losses: list[float] = field(default_factory=list)
    judged: list[dict[str, Any]] = field(default_factory=list)

    def scores(self, step: int) -> Scores:
        """The judgement of a step; {} if there was none."""
        for past in self.judged:
            if past["step"] == step:
                return {int(dim): score for dim, score in past["scores"].items()}
        return {}


@dataclass(slots=True, kw_only=True)
class Run:
    """A run: its parts, and its state.

    origin: the digest of what it starts from, by what it is, in words. split: its examples, and
    what is held out of them. measures: of steps; the first chooses. best: the weights of the best
    step. base_values: what each measure says of the base as shipped, by the prefix lengths of the
    run. regression: of labels on the base's vectors.
    """

    config: TrainConfig
    origin: Mapping[str, str]
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
    model, projection = load_base(config, examples)
    training_model = TrainingModel(model, config, projection).to(device)
    origin = {
        "the training files": split.train.digest(config.dev),
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
