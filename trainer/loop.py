"""The training loop: contrastive, nested over prefix lengths, resumable to the bit.

    config = TrainConfig(train=["pairs.tsv"], out="model")
    encoder = train(config, report=print)

In-batch negatives (SimCSE, arXiv 2104.08821) under a Matryoshka sum (arXiv 2205.13147), AdamW with
linear warm-up and decay. What is random in update N follows from (seed, N) alone, so a run that was
interrupted and resumed ends with the same weights as one that was not.
"""

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from importlib import metadata
from typing import Any

import torch

from trainer import checkpoint
from trainer.batches import BatchPlan, Feed, same_as_positive
from trainer.config import TrainConfig
from trainer.data import Examples, read_examples
from trainer.encoder import Encoder
from trainer.errors import ConfigError, TrainingError
from trainer.folder import Model
from trainer.head import sample_texts, turn_head, with_linear_head
from trainer.judging import Judge, Scores, make_judge
from trainer.losses import ContrastiveLoss, info_nce, matryoshka
from trainer.modules import SentenceModule
from trainer.runtime import Precision, pick_precision
from trainer.saving import check_replaceable, remove_folder


@dataclass(frozen=True, slots=True)
class Report:
    """One line of a run's diary.

    step: updates done of steps. loss: of this update, None before the first. scores: by prefix
    length where this step was judged (Spearman, or top-1 accuracy without dev files), else None.
    best_step: the best judged so far. examples: trained on per epoch; excluded: left out for a
    sentence of the exclude files.
    """

    step: int
    steps: int
    loss: float | None
    learning_rate: float
    scores: Mapping[int, float] | None
    best_step: int
    examples: int
    excluded: int


@dataclass(slots=True)
class Run:
    """The moving parts of a run: what a checkpoint stores and the loop changes."""

    module: SentenceModule
    optimizer: torch.optim.Optimizer
    best: checkpoint.Weights
    step: int = 0
    best_step: int = 0
    untrained: Scores = field(default_factory=dict)
    scores: dict[int, Scores] = field(default_factory=dict)


def train(
    config: TrainConfig,
    report: Callable[[Report], None] | None = None,
    resume: bool = False,
) -> Encoder:
    """Train as the configuration says; the best step is in `config.out` and returned.

    report: called with the base model's scores, again after the turn, then after each update.
    resume: go on from the newest checkpoint in OUT/checkpoint. Raises ConfigError, DataError,
    ModelError, or TrainingError for a loss that is not a number (the last checkpoint stays).
    """
    check_start(config, resume)
    accelerator = make_accelerator(config)
    examples = read_examples(config.train, config.columns, config.exclude)
    judge, examples = make_judge(config, examples)
    model = load_base(config)
    plan = BatchPlan(config, examples)
    module = model.module.to(accelerator.device)
    optimizer = accelerator.prepare(make_optimizer(module, config, accelerator.device))
    run = Run(module, optimizer, checkpoint.copy_weights(module))
    digest = examples.digest()
    tell = functools.partial(make_report, run, plan, report)

    if resume:
        progress, run.best = checkpoint.load(config, digest, module, optimizer)
        run.step, run.best_step = progress.step, progress.best_step
        run.untrained, run.scores = progress.untrained, dict(progress.scores)
    else:
        begin(run, model, judge, plan, tell)

    loss = matryoshka(
        functools.partial(info_nce, temperature=config.temperature),
        model.matryoshka_dims,
        config.prefix_weights or None,
    )
    feed = Feed(view(model, module, "fp32"), config)
    while run.step < plan.steps:
        value = update(run, plan, feed, loss, accelerator)
        run.step += 1
        last = run.step == plan.steps
        if last or (config.eval_every and run.step % config.eval_every == 0):
            evaluate(run, model, judge, config)
        if config.checkpoint_every and run.step % config.checkpoint_every == 0 and not last:
            done = checkpoint.Progress(run.step, run.best_step, run.untrained, run.scores)
            checkpoint.save(config, digest, done, module, optimizer, run.best)
        tell(value)

    module.load_state_dict(run.best)
    module.eval()
    recipe = make_recipe(config, run, examples)
    trained = Encoder(replace(model, recipe=recipe), str(config.out.resolve()))
    trained.save(config.out)
    remove_folder(checkpoint.folder_of(config.out))
    return trained


def check_start(config: TrainConfig, resume: bool) -> None:
    """Refuse what would fail, or destroy something, hours later."""
    check_replaceable(config.out)
    left = checkpoint.latest(config.out)
    if left is not None and not resume:
        raise ConfigError(
            f"{config.out} holds the checkpoint of an unfinished run ({left.name}): resume it, "
            f"remove {left.parent}, or choose another `out`"
        )


def make_accelerator(config: TrainConfig) -> Any:
    """Device and mixed precision. BF16 keeps float32 weights and runs the network in bfloat16."""
    try:
        import accelerate  # an extra: encoding does without
    except ImportError:
        raise ConfigError(
            "training needs accelerate: install the extra `train` "
            "(pip install 'searchengine[train]')"
        ) from None
    device = accelerate.PartialState().device
    precision = pick_precision(config.precision, device)
    # accelerate keeps one precision per process; a second run may want another.
    accelerate.state.AcceleratorState._reset_state()
    mixed = "bf16" if precision is Precision.BF16 else "no"
    accelerator = accelerate.Accelerator(mixed_precision=mixed)
    if accelerator.num_processes > 1:
        raise ConfigError(
            f"{accelerator.num_processes} training processes were started: expected one"
        )
    return accelerator


def load_base(config: TrainConfig) -> Model:
    """The base model with the prefixes to train, their length checked against its width."""
    model = Encoder.load(config.base, precision="fp32", device="cpu").model
    dims = config.prefixes or default_prefixes(model)
    if dims[0] != model.module.dim:
        raise ConfigError(
            f"prefixes begins with {dims[0]}: expected {model.module.dim}, the full width of "
            f"{config.base}"
        )
    if config.prefix_weights and len(config.prefix_weights) != len(dims):
        raise ConfigError(
            f"prefix_weights has {len(config.prefix_weights)} numbers for {len(dims)} prefixes: "
            "expected one for each"
        )
    model = replace(model, matryoshka_dims=dims)
    if turns(config, model):
        model = with_linear_head(model)
    if config.head_only and not any(True for _ in model.module.head.parameters()):
        raise ConfigError(f"head_only, but {config.base} has no head to train: leave it out")
    return model


def default_prefixes(model: Model) -> tuple[int, ...]:
    """The lengths a model was trained for; the usual ones below its width where it names none."""
    if len(model.matryoshka_dims) > 1:
        return model.matryoshka_dims
    dim = model.module.dim
    return (dim, *(length for length in (512, 256, 128, 64) if length < dim))


def turns(config: TrainConfig, model: Model) -> bool:
    """Whether the run begins with a turn: the full width alone would not change by it."""
    return config.rotate and len(model.matryoshka_dims) > 1


def view(model: Model, module: SentenceModule, precision: str) -> Encoder:
    """An encoder with the weights as they are now, where they are."""
    device = str(next(module.parameters()).device)
    return Encoder(model, "", precision=precision, device=device)


def make_optimizer(
    module: SentenceModule, config: TrainConfig, device: torch.device
) -> torch.optim.Optimizer:
    """AdamW; weight matrices decay, biases and norms do not."""
    for parameter in module.transformer.parameters():
        parameter.requires_grad_(not config.head_only)
    moving = [p for p in module.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in moving if p.ndim > 1], "weight_decay": config.weight_decay},
        {"params": [p for p in moving if p.ndim <= 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=config.learning_rate, fused=device.type in ("cpu", "cuda"))


def begin(
    run: Run,
    model: Model,
    judge: Judge | None,
    plan: BatchPlan,
    tell: Callable[[float | None], None],
) -> None:
    """Judge the base model as it came, then turned, which is where training starts."""
    config = plan.config
    run.untrained = evaluate(run, model, judge, config)
    tell(None)
    if turns(config, model):
        texts = sample_texts(plan.examples, config.seed)
        turn_head(view(model, run.module, config.precision), texts)
        evaluate(run, model, judge, config)
        tell(None)


def update(run: Run, plan: BatchPlan, feed: Feed, loss: ContrastiveLoss, accelerator: Any) -> float:
    """One step of the optimizer over `accumulation` batches; returns the mean loss."""
    config = plan.config
    for group in run.optimizer.param_groups:
        group["lr"] = plan.learning_rate(run.step)
    torch.manual_seed(config.seed * 1_000_003 + run.step)  # dropout
    run.module.train()
    run.optimizer.zero_grad()
    batches = plan.at(run.step)
    total = 0.0
    for rows in batches:
        with accelerator.autocast():
            anchors, positives, negatives = feed(rows)
        same = same_as_positive(rows).to(anchors.device)
        value = loss(anchors, positives, negatives, same=same) / len(batches)
        total += value.item()
        if not math.isfinite(total):
            raise TrainingError(
                f"the loss of update {run.step + 1} is {total}: lower learning_rate "
                f"({config.learning_rate}) or raise temperature ({config.temperature}); the last "
                "checkpoint was kept"
            )
        accelerator.backward(value)
    accelerator.clip_grad_norm_(run.module.parameters(), config.max_grad_norm)
    run.optimizer.step()
    return total


def evaluate(run: Run, model: Model, judge: Judge | None, config: TrainConfig) -> Scores:
    """Judge the module as it is, and keep its weights if it is the best yet.

    Best is the highest mean over the prefixes, weighted as in the loss. Of step 0 the last
    judgement counts: a turn comes after the first, and is what is trained.
    """
    run.module.eval()
    if judge is None:  # nothing to choose by: the last step is kept
        run.best_step, run.best = run.step, checkpoint.copy_weights(run.module)
        return {}
    scores = judge(view(model, run.module, config.precision))
    weights = dict(zip(model.matryoshka_dims, config.prefix_weights, strict=False))
    if run.step == 0 or mean(scores, weights) > mean(run.scores[run.best_step], weights):
        run.best_step, run.best = run.step, checkpoint.copy_weights(run.module)
    run.scores[run.step] = scores
    return scores


def mean(scores: Scores, weights: Mapping[int, float]) -> float:
    """The scores' mean over prefixes, weighted; a prefix without a weight has 1."""
    total = sum(weights.get(dim, 1.0) for dim in scores)
    return sum(score * weights.get(dim, 1.0) for dim, score in scores.items()) / total


def make_report(
    run: Run, plan: BatchPlan, report: Callable[[Report], None] | None, loss: float | None
) -> None:
    if report is not None:
        rate = plan.learning_rate(max(0, run.step - 1))
        scores, examples = run.scores.get(run.step), plan.examples
        counts = len(examples), examples.excluded
        report(Report(run.step, plan.steps, loss, rate, scores, run.best_step, *counts))


def judged_by(config: TrainConfig, run: Run) -> str:
    """What chose the best step, in words."""
    if config.dev:
        return "spearman on dev"
    return "top-1 accuracy on held-out examples" if run.scores else "nothing: the last step is kept"


def make_recipe(config: TrainConfig, run: Run, examples: Examples) -> dict[str, Any]:
    """What is written beside the weights: how they came about and how good they are."""
    return {
        "config": config.to_dict(),
        "examples": len(examples),
        "excluded": examples.excluded,
        "judged_by": judged_by(config, run),
        "untrained": {str(k): v for k, v in run.untrained.items()},
        "best_step": run.best_step,
        "best": {str(k): v for k, v in run.scores.get(run.best_step, {}).items()},
        "versions": {name: metadata.version(name) for name in ("torch", "transformers")},
    }
