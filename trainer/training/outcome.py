"""The state of a run, the step that is kept of it, and the recipe that is stored with the model."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import metadata
from typing import Any

import torch

from searchengine.trainer.card import read_base_card
from searchengine.trainer.encoder import Encoder
from searchengine.trainer.errors import TrainingWarning
from searchengine.trainer.evaluation.significance import compare
from searchengine.trainer.model.model_folder import Model
from searchengine.trainer.sources.source import Source
from searchengine.trainer.training import checkpoint
from searchengine.trainer.training.batches import BatchPlan
from searchengine.trainer.training.checkpoint import Progress
from searchengine.trainer.training.examples import Examples, read_labelled
from searchengine.trainer.training.head import CLASSIFIER_TEXTS, best_c, fit_classifier
from searchengine.trainer.training.label_baseline import AgainstBase, base_as_it_is, right_at
from searchengine.trainer.training.longlora import merge_adapters, use_full_attention
from searchengine.trainer.training.objectives import PrefixObjective
from searchengine.trainer.training.processes import Processes
from searchengine.trainer.training.step_judging import Judge, Scores, Split, unjudged
from searchengine.trainer.training.stopping import Signals
from searchengine.trainer.training.train_config import Objective, TrainConfig
from searchengine.trainer.training.training_model import TrainingModel

# Labelled texts from which a tenth of them tells a difference of some points.
TELLING_LABELS = 2000


@dataclass(slots=True, kw_only=True)
class Run(Progress):
    """A run and its state.

    examples: all; plan.examples: without those in `split` that are held out. judge: None if
    nothing judges the steps. measure: what judges them, in words. scaler: multiplies the loss of an
    update in fp16, whose gradients would be too small, and halves its factor after an update that
    overflows, which is left out.
    """

    config: TrainConfig
    model: Model
    examples: Examples
    split: Split
    plan: BatchPlan
    objective: PrefixObjective
    judge: Judge | None
    measure: str
    processes: Processes
    training_model: TrainingModel
    optimizer: torch.optim.Optimizer
    best: checkpoint.Weights
    scaler: torch.amp.GradScaler | None = None
    signals: Signals = field(default_factory=Signals)

    @property
    def labelled(self) -> bool:
        """Whether labels are learnt."""
        return self.config.objective is Objective.CLASSIFICATION

    @property
    def weights(self) -> dict[int, float]:
        """By prefix length: in the loss and in choosing the best step."""
        dims = self.model.matryoshka_dims
        return dict(zip(dims, self.config.prefix_weights or (1.0,) * len(dims), strict=True))

    def scores(self, step: int) -> Scores:
        """The last judgement of a step; {} if there was none."""
        return next((past.scores for past in reversed(self.judged) if past.step == step), {})

    @property
    def device(self) -> str:
        """Where the weights are."""
        return str(next(self.training_model.sentence.parameters()).device)

    def encoder(self, precision: str = "") -> Encoder:
        """An encoder that shares the present weights, on their device."""
        precision = precision or self.config.precision
        return Encoder(self.model, "", precision=precision, device=self.device)


def finish(run: Run) -> Encoder:
    """The encoder of the step that is kept, with its recipe and history.

    Where enough labels judge the training, and it wins nothing beyond doubt over a regression on
    the base's vectors, the encoder is the base with that regression, unless `keep_last`. Issues a
    TrainingWarning then, and if the step is 0, or scores less than step 0.
    """
    config = run.config
    reason, fine = choice(run)
    run.training_model.kept.load_state_dict(run.best)
    run.training_model.eval()
    against = compared(run) if run.labelled else None
    if against is not None:
        enough = config.dev or len(run.examples) >= TELLING_LABELS
        if enough and not config.keep_last and not against.wins():
            return the_base(run, against)
        reason += f"; {against}"
    if run.labelled and run.split.rows and len(run.examples) <= CLASSIFIER_TEXTS:
        # The step is chosen, so the held-out labels may be used for the fit too.
        fit_classifier(run.encoder(), run.examples)
    if not fine:
        warnings.warn(reason, TrainingWarning, stacklevel=4)
    model = as_loaded(run)
    recipe = make_recipe(run, against) | {"chosen": reason}
    model = replace(model, recipe=recipe, history=history(run))
    return Encoder(model, str(config.out.resolve()))


def as_loaded(run: Run) -> Model:
    """The model with its network as another program would load it: nothing of training is left."""
    config, network = run.config, run.training_model.sentence.transformer
    network.requires_grad_(True)
    use_full_attention(network)
    if config.adapter_rank:
        merge_adapters(network)
    return run.model


def compared(run: Run) -> AgainstBase | None:
    """The present weights beside the base, on the labels that judged the steps; None without."""
    config, learnt = run.config, run.plan.examples
    rows = [(row.anchor, row.label) for row in run.split.rows]
    if config.dev:
        rows = read_labelled(config.dev, config.columns)
    if not rows or not run.judged:
        return None
    base = base_as_it_is(config, run.model, learnt, run.device)
    c = best_c(base, learnt)
    fit_classifier(base, learnt, c)
    where = "on dev" if config.dev else "on held-out examples"
    return AgainstBase(where, c, right_at(run.encoder(), rows), right_at(base, rows))


def the_base(run: Run, against: AgainstBase) -> Encoder:
    """The base with its regression on all labels. Issues a TrainingWarning."""
    config, examples = run.config, run.examples
    base = base_as_it_is(config, run.model, examples, run.device)
    fit_classifier(base, examples, best_c(base, examples))
    reason = (
        "the base model with a logistic regression on its vectors, as training is not better "
        f"beyond doubt: {against}"
    )
    warnings.warn(reason, TrainingWarning, stacklevel=5)
    recipe = make_recipe(run, against) | {"chosen": reason, "best_step": 0}
    model = replace(base.model, recipe=recipe, history=history(run))
    return Encoder(model, str(config.out.resolve()))


def history(run: Run) -> dict[str, Any]:
    """What is stored of the course of a run."""
    return {
        "losses": run.losses,
        "judged": [past.to_dict() for past in run.judged],
        "best_step": run.best_step,
    }


def choice(run: Run) -> tuple[str, bool]:
    """The step that is kept and why, in words; False if it is step 0, or scores less."""
    weights = run.weights
    if not run.judged:
        reason = (
            f"step {run.best_step}, the last: nothing to choose by (no dev files, and "
            f"{unjudged(run.examples)})"
        )
        return reason, True
    before, kept = (mean(run.scores(step), weights) for step in (0, run.best_step))
    measure = run.measure + (", mean over the prefixes" if len(weights) > 1 else "")
    if run.best_step == 0:
        later = {past.step: mean(past.scores, weights) for past in run.judged if past.step > 0}
        step, score = max(later.items(), key=lambda item: item[1])
        return (
            f"step 0, before training: no later step scored {before:.4f} or more, the best was "
            f"step {step} with {score:.4f} ({measure})"
        ), False
    why = "the last, as keep_last asks" if run.config.keep_last else "the best"
    first, last = run.scores(0), run.scores(run.best_step)
    fell = [
        f"{dim} dimensions fell from {first[dim]:.4f} to {score:.4f}"
        for dim, score in last.items()
        if kept >= before and score < first[dim]
    ]
    return (
        f"step {run.best_step}, {why}: {kept:.4f} against {before:.4f} for step 0, before training "
        f"({'; '.join([measure, *fell, *_interval(run)])})"
    ), kept >= before


def _interval(run: Run) -> list[str]:
    """The interval of the difference to step 0, in words, where single anchors were judged.

    Of other held-out examples their number.
    """
    before, after = run.right.get("0"), run.right.get(str(run.best_step))
    if before is None or after is None or run.best_step == 0:
        held_out = len(run.split.rows)
        return [f"n {held_out}"] if held_out else []
    found = compare(after, before)
    return [
        f"n {len(before)}, difference {found.difference:+.4f}, 95 % interval {found.low:+.4f} to "
        f"{found.high:+.4f}"
    ]


def mean(scores: Scores, weights: Mapping[int, float]) -> float:
    """The scores' mean over prefixes, weighted; a prefix without a weight has 1."""
    total = sum(weights.get(dim, 1.0) for dim in scores)
    return sum(score * weights.get(dim, 1.0) for dim, score in scores.items()) / total


def make_recipe(run: Run, against: AgainstBase | None = None) -> dict[str, Any]:
    """The recipe stored with the weights: how they were trained, and their scores."""
    untrained = run.judged[0].scores if run.judged else {}
    judged_by = run.measure + (", the last step is kept" if run.config.keep_last else "")
    base = Source.find(run.config.base)
    return {
        "config": run.config.to_dict(),
        "base_card": read_base_card(base.folder),
        "summary": summary(run.config, run.model.matryoshka_dims),
        "examples": len(run.split.train),
        "held_out": run.split.examples_held,
        "excluded": run.split.train.excluded,
        "judged_by": judged_by if run.judged else "nothing: the last step is kept",
        "against_base": {} if against is None else against.figures(),
        "untrained": {str(k): v for k, v in untrained.items()},
        "best_step": run.best_step,
        "best": {str(k): v for k, v in run.scores(run.best_step).items()},
        "versions": {name: metadata.version(name) for name in ("torch", "transformers")},
    }


def summary(config: TrainConfig, dims: Sequence[int]) -> list[str]:
    """The training in sentences without a full stop, for the model card.

    dims: the prefix lengths that were trained.
    """
    nested = len(dims) > 1
    lines = [_loss_in_words(config)]
    if nested:
        lengths = ", ".join(map(str, dims[:-1])) + f" and {dims[-1]}"
        lines.append(f"Summed over the prefixes {lengths} (Matryoshka)")
    if nested and config.rotate and config.objective is not Objective.CLASSIFICATION:
        lines.append("The vectors were first rotated, strongest axes first")
    return lines + config.card_lines()


def _loss_in_words(config: TrainConfig) -> str:
    temperature = f"temperature {config.temperature:g}"
    match config.objective:
        case Objective.CLASSIFICATION:
            weight = config.label_weight
            return (
                f"Loss: {1 - weight:.4g} × cross-entropy of the labels + {weight:.4g} × supervised "
                "contrastive ([Gunel et al.](https://arxiv.org/abs/2011.01403)), temperature "
                f"{config.label_temperature:g}"
            )
        case Objective.SIMILARITY:
            return (
                "Loss: [CoSENT](https://doi.org/10.1109/TASLP.2024.3402087) on the scores of "
                f"pairs, {temperature}"
            )
        case _:
            return (
                "Loss: InfoNCE with in-batch negatives ([SimCSE](https://arxiv.org/abs/2104.08821))"
                f", {temperature}"
            )
