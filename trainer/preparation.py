"""What a run needs before its first update: device, model, optimizer; and refusals in time."""

import tempfile
from dataclasses import replace
from typing import Any

import torch

from trainer import checkpoint
from trainer.config import Objective, TrainConfig
from trainer.data import Examples
from trainer.errors import ConfigError
from trainer.folder import Model
from trainer.head import with_linear_head
from trainer.models import read
from trainer.modules import Dense
from trainer.positives import Augment, Kind
from trainer.precision import Precision
from trainer.processes import Processes, launched_count
from trainer.saving import check_replaceable
from trainer.source import Source
from trainer.torch_runtime import pick_device, pick_precision
from trainer.trainee import Trainee, set_dropout, with_classifier, with_pooling


def check_start(config: TrainConfig, resume: bool) -> None:
    """Refuse what would fail, or destroy something, hours later."""
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
    left = checkpoint.latest(config.out)
    if left is not None and not resume:
        raise ConfigError(
            f"{config.out} holds the checkpoint of an unfinished run ({left.name}): resume it, "
            f"remove {left.parent}, or choose another `out`"
        )


def check_examples(config: TrainConfig, examples: Examples) -> None:
    """Refuse settings that these examples give no meaning to."""
    alone = any(kind is Kind.SENTENCE for kind, _ in examples.examples)
    if alone and config.augment is Augment.NONE and config.head_only:
        raise ConfigError(
            "head_only gives both views of a sentence the same vector: give pairs, or an `augment`"
        )


def make_accelerator(config: TrainConfig) -> tuple[Any, Processes]:
    """Device, mixed precision and processes. BF16 keeps float32 weights."""
    try:
        import accelerate  # an extra: encoding does without
    except ImportError:
        raise ConfigError(
            "training needs accelerate: install the extra `train` "
            "(pip install 'searchengine[train]')"
        ) from None
    cpu = pick_device(None).type == "cpu"  # else it would not see that others were launched too
    device = accelerate.PartialState(cpu=cpu).device
    precision = pick_precision(config.precision, device)
    # accelerate keeps one precision per process; a second run may want another.
    accelerate.state.AcceleratorState._reset_state()
    mixed = "bf16" if precision is Precision.BF16 else "no"
    accelerator = accelerate.Accelerator(mixed_precision=mixed, cpu=cpu)
    processes = Processes(accelerator.process_index, accelerator.num_processes)
    if processes.count != launched_count():
        raise ConfigError(
            f"{launched_count()} processes were launched, but {processes.count} found each other: "
            "start them with torchrun or accelerate launch"
        )
    if processes.count > 1 and config.head_only:
        raise ConfigError("head_only trains in one process: it takes seconds")
    return accelerator, processes


def load_base(config: TrainConfig, examples: Examples) -> tuple[Model, Dense | None]:
    """The base model as it is to be trained, and a layer behind it for training only."""
    model = read(Source.find(config.base, trust_remote_code=config.trust_remote_code))
    model, projection = with_pooling(model, config.pooling, config.seed)
    dims = config.prefixes or default_prefixes(model, config.nested)
    if dims[0] != model.module.dim:
        raise ConfigError(
            f"prefixes begins with {dims[0]}: expected {model.module.dim}, the full width of "
            f"{config.base}"
        )
    model = replace(model, matryoshka_dims=dims)
    if turns(config, model):
        model = with_linear_head(model)
    _check_layers(config, model)
    if config.dropout is not None:
        set_dropout(model.module.transformer, config.dropout)
    if config.head_only and not any(True for _ in model.module.head.parameters()):
        raise ConfigError(f"head_only, but {config.base} has no head to train: leave it out")
    labels = sorted({texts[1] for kind, texts in examples.examples if kind is Kind.LABELLED})
    return with_classifier(model, config, labels), projection


def default_prefixes(model: Model, nested: bool = True) -> tuple[int, ...]:
    """The lengths a model was trained for; the usual ones below its width where it names none."""
    dim = model.module.dim
    if not nested:
        return (dim,)
    if len(model.matryoshka_dims) > 1:
        return model.matryoshka_dims
    return (dim, *(length for length in (512, 256, 128, 64) if length < dim))


def _check_layers(config: TrainConfig, model: Model) -> None:
    network = model.module.transformer
    if config.layers_per_step == 0:
        return
    if any(hasattr(network, name) for name in ("final_norm", "norm", "ln_f")):
        raise ConfigError(
            f"layers_per_step with {config.base}: its network ends in a norm that a shallower one "
            "would need too; choose a base such as BERT, RoBERTa, MPNet or MiniLM"
        )
    if model.module.mix is not None:
        raise ConfigError(f"layers_per_step with {config.base}: it averages several layers")


def turns(config: TrainConfig, model: Model) -> bool:
    """Whether the run begins with a turn: the full width alone would not change by it."""
    labels = config.objective is Objective.CLASSIFICATION
    return config.rotate and len(model.matryoshka_dims) > 1 and not labels


def sparse_embeddings(trainee: Trainee) -> None:
    """Have the gradients of word embeddings name only the words that occur.

    A dense one is as large as the table, and would be written once for each pass.
    """
    for module in trainee.modules():
        if isinstance(module, torch.nn.Embedding):
            module.sparse = True


def make_optimizer(
    trainee: Trainee, config: TrainConfig, device: torch.device
) -> torch.optim.Optimizer:
    """AdamW; weight matrices decay, biases and norms do not."""
    if config.head_only:
        trainee.sentence.transformer.requires_grad_(False)
    moving = [p for p in trainee.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in moving if p.ndim > 1], "weight_decay": config.weight_decay},
        {"params": [p for p in moving if p.ndim <= 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=config.learning_rate, fused=device.type in ("cpu", "cuda"))
