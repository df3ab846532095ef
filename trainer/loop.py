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
from torch import Tensor

from trainer import checkpoint
from trainer.config import TrainConfig
from trainer.data import Batch, Examples, epoch_batches, read_examples
from trainer.encoder import Encoder
from trainer.errors import ConfigError, TrainingError
from trainer.folder import Model
from trainer.head import sample_texts, turn_head, with_linear_head
from trainer.judging import Judge, Scores, make_judge
from trainer.losses import ContrastiveLoss, info_nce, matryoshka
from trainer.modules import SentenceModule
from trainer.positives import Drawn
from trainer.runtime import Precision, pick_precision
from trainer.saving import check_replaceable, remove_folder
from trainer.tokens import TokenIds


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

    report: called with the base model's scores, again after the turn, then after each update. resume: go on from the newest checkpoint in OUT/checkpoint. Raises ConfigError, DataError,
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
        run.untrained = evaluate(run, model, judge, config)
        tell(None)
        if turns(config, model):
            turn_head(view(model, module, config.precision), sample_texts(examples, config.seed))
            evaluate(run, model, judge, config)
            tell(None)

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
    dims = config.prefixes or model.matryoshka_dims
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


def turns(config: TrainConfig, model: Model) -> bool:
    """Whether the run begins with a turn: where there is only the full width, it changes nothing."""
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


class BatchPlan:
    """The batches of every update, found from its number without running the others."""

    def __init__(self, config: TrainConfig, examples: Examples):
        self.config = config
        self.examples = examples
        self._epoch = -1
        self._batches: list[Batch] = []
        self.per_epoch = len(self._of_epoch(0)) // config.accumulation
        if self.per_epoch == 0:
            raise ConfigError(
                f"{len(examples)} examples give {len(self._batches)} batches of up to "
                f"{config.batch_size}, fewer than accumulation {config.accumulation}: add examples "
                "or lower one of them"
            )
        self.steps = config.max_steps or config.epochs * self.per_epoch

    def _of_epoch(self, epoch: int) -> list[Batch]:
        if epoch != self._epoch:
            size, seed = self.config.batch_size, self.config.seed
            self._batches = epoch_batches(self.examples, size, seed, epoch)
            self._epoch = epoch
        return self._batches

    def at(self, step: int) -> list[Batch]:
        """The `accumulation` batches of an update; a rest of an epoch that fills none is left."""
        epoch, place = divmod(step, self.per_epoch)
        start = place * self.config.accumulation
        return self._of_epoch(epoch)[start : start + self.config.accumulation]

    def learning_rate(self, step: int) -> float:
        """Linear from 0 over the warm-up, then linear to 0 at the end."""
        warm = round(self.config.warmup_ratio * self.steps)
        if step < warm:
            return self.config.learning_rate * (step + 1) / warm
        return self.config.learning_rate * (self.steps - step) / max(1, self.steps - warm)


class Feed:
    """Rows of text to vectors, with the prompts the model will be queried with."""

    def __init__(self, encoder: Encoder, config: TrainConfig):
        self.module = encoder.module
        self.device = next(encoder.module.parameters()).device
        limit = min(config.max_tokens, encoder.max_tokens)
        self._ids = TokenIds(encoder.model.tokenizer, limit)
        self._query, self._document = encoder.prompt("query"), encoder.prompt("document")

    def _vectors(self, texts: list[str], prompt: str) -> Tensor:
        """(len(texts), dim) float32 with gradients."""
        ids = self._ids([prompt + text for text in texts])
        batch = self._ids.pad(ids, self._ids.prompt_tokens(prompt))
        vectors: Tensor = self.module(batch.to(self.device))
        return vectors

    def __call__(self, rows: Batch) -> tuple[Tensor, Tensor, Tensor | None]:
        """Anchors, positives and, where the rows have them, negatives."""
        anchors = self._vectors([row.anchor for row in rows], self._query)
        positives = self._vectors([row.positive for row in rows], self._document)
        against = [row.negative for row in rows if row.negative is not None]
        return anchors, positives, self._vectors(against, self._document) if against else None


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


def same_as_positive(rows: list[Drawn]) -> Tensor:
    """(B, B + N) bool: candidates that say the same as the anchor's positive, or the anchor."""
    candidates = [row.positive for row in rows]
    candidates += [row.negative for row in rows if row.negative is not None]
    found = [[text in (row.anchor, row.positive) for text in candidates] for row in rows]
    return torch.tensor(found)


def evaluate(run: Run, model: Model, judge: Judge, config: TrainConfig) -> Scores:
    """Judge the module as it is, and keep its weights if the mean over prefixes is the best.

    Of step 0 the last judgement counts: a turn comes after the first, and is what is trained.
    """
    run.module.eval()
    scores = judge(view(model, run.module, config.precision))
    if run.step == 0 or mean(scores) > mean(run.scores[run.best_step]):
        run.best_step, run.best = run.step, checkpoint.copy_weights(run.module)
    run.scores[run.step] = scores
    return scores


def mean(scores: Scores) -> float:
    return sum(scores.values()) / len(scores)


def make_report(
    run: Run, plan: BatchPlan, report: Callable[[Report], None] | None, loss: float | None
) -> None:
    if report is not None:
        rate = plan.learning_rate(max(0, run.step - 1))
        scores, examples = run.scores.get(run.step), plan.examples
        counts = len(examples), examples.excluded
        report(Report(run.step, plan.steps, loss, rate, scores, run.best_step, *counts))


def make_recipe(config: TrainConfig, run: Run, examples: Examples) -> dict[str, Any]:
    """What is written beside the weights: how they came about and how good they are."""
    return {
        "config": config.to_dict(),
        "examples": len(examples),
        "excluded": examples.excluded,
        "judged_by": "spearman on dev" if config.dev else "top-1 accuracy on held-out examples",
        "untrained": {str(k): v for k, v in run.untrained.items()},
        "best_step": run.best_step,
        "best": {str(k): v for k, v in run.scores[run.best_step].items()},
        "versions": {name: metadata.version(name) for name in ("torch", "transformers")},
    }
