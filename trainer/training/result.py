"""The state of a run, and its result: the kept weights, or the base as shipped, with the recipe."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import metadata
from typing import Any

import torch

from searchengine.trainer.classifier import Classifier
from searchengine.trainer.encoder import Encoder
from searchengine.trainer.errors import TrainingWarning
from searchengine.trainer.evaluation.intervals import Values
from searchengine.trainer.files import remove_folder
from searchengine.trainer.model.model_folder import Model
from searchengine.trainer.training import checkpoint
from searchengine.trainer.training.batches import BatchPlan
from searchengine.trainer.training.checkpoint import Progress
from searchengine.trainer.training.head import CLASSIFIER_TEXTS, best_c, fit_classifier
from searchengine.trainer.training.judging import (
    MIN_ITEMS,
    Measure,
    Scores,
    Split,
    Verdict,
    unjudged,
)
from searchengine.trainer.training.longlora import restore_network
from searchengine.trainer.training.objectives import PrefixObjective
from searchengine.trainer.training.processes import Processes
from searchengine.trainer.training.stopping import Signals
from searchengine.trainer.training.train_config import Objective, TrainConfig
from searchengine.trainer.training.training_model import TrainingModel

PRIOR_LABELS = 20
"""As many labels must be learnt for the trained weights to count as much as those of step 0."""
STS_ALONE = "; scored pairs say little of a search: give judged questions by --dev FOLDER as well"


@dataclass(slots=True, kw_only=True)
class Run(Progress):
    """A run and its state.

    split: its examples, and what is held out of them. measures: of steps; the first chooses.
    base_values: what each says of the base as shipped, by the prefix lengths of the run.
    """

    config: TrainConfig
    model: Model
    split: Split
    plan: BatchPlan
    objective: PrefixObjective
    measures: Sequence[Measure]
    base_values: Sequence[Mapping[int, Values]]
    processes: Processes
    training_model: TrainingModel
    optimizer: torch.optim.Optimizer
    best: checkpoint.Weights
    signals: Signals = field(default_factory=Signals)

    @property
    def weights(self) -> dict[int, float]:
        """By prefix length: in the loss and in choosing the best step."""
        dims = self.model.matryoshka_dims
        return dict(zip(dims, self.config.prefix_weights or (1.0,) * len(dims), strict=True))

    @property
    def trained_share(self) -> float:
        """Of the last step in the kept weights; the rest is of step 0.

        Below 1 where no measure judges what labels taught, as the fewer they are, the more of it
        is chance. The mean of two networks' weights: WiSE-FT, arXiv 2109.01903.
        """
        if self.measures or self.config.objective is not Objective.CLASSIFICATION:
            return 1.0
        return len(self.split.train) / (len(self.split.train) + PRIOR_LABELS)

    def scores(self, step: int) -> Scores:
        """The judgement of a step; {} if there was none."""
        by_dim: dict[str, float] = next(
            (past["scores"] for past in self.judged if past["step"] == step), {}
        )
        return {int(dim): score for dim, score in by_dim.items()}

    def encoder(self, precision: str = "") -> Encoder:
        """An encoder that shares the present weights, on their device."""
        device = str(next(self.training_model.sentence.parameters()).device)
        return Encoder(self.model, "", precision=precision or self.config.precision, device=device)


def base_as_shipped(config: TrainConfig, model: Model, split: Split) -> Encoder:
    """The base as its users load it, before anything of it is changed.

    Where labels are learnt, with a logistic regression on its vectors by every prefix length: what
    its users would have without training. model: the one that is trained.
    """
    base = Encoder.load(config.base)
    if model.classifier is None:
        return base
    dims = tuple(sorted({*_dims_of(base, model.matryoshka_dims)}, reverse=True))
    classifier = Classifier(dims, model.classifier.labels, config.seed)
    known = replace(base.model, matryoshka_dims=dims, classifier=classifier)
    fit_classifier(base, classifier, split.train, best_c(base, split.train))
    folder = checkpoint.folder_of(config.out) / "base"
    Encoder(known, base.source).save(folder)
    return Encoder.load(folder)  # its users' runtime and precision, not those of training


def base_values(base: Encoder, dims: Sequence[int], measure: Measure) -> dict[int, Values]:
    """What a measure says of the base, by the prefix lengths of the run.

    The run's full width is compared with the base's, other lengths with the same one, or with the
    base's full width if that is less.
    """
    of_base = _dims_of(base, dims)
    values = measure.values(base, sorted({*of_base}, reverse=True))
    return {dim: values[theirs] for dim, theirs in zip(dims, of_base, strict=True)}


def _dims_of(base: Encoder, dims: Sequence[int]) -> list[int]:
    return [base.dim, *(min(dim, base.dim) for dim in dims[1:])]


def finish(run: Run) -> Encoder:
    """Write the encoder of the best step to `out`, if it is better than the base beyond the noise.

    Otherwise the base as shipped, with a TrainingWarning. Both are judged as a user loads them; a
    run without measures gives its last step.
    """
    config = run.config
    run.training_model.kept.load_state_dict(run.best)
    run.training_model.eval()
    model = as_loaded(run)
    if model.classifier is not None and len(run.split.train) <= CLASSIFIER_TEXTS:
        fit_classifier(run.encoder(), model.classifier, run.split.train)
    trained, verdicts = Encoder(model, str(config.out.resolve())), list[Verdict]()
    if run.measures:
        trial = checkpoint.folder_of(config.out) / "result"
        trained.save(trial)
        verdicts = judge_result(run, Encoder.load(trial))
        remove_folder(trial)
    sentence, better = conclude(run, verdicts)
    if not better:
        warnings.warn(sentence, TrainingWarning, stacklevel=4)
        trained = base_as_shipped(config, run.model, run.split)
    recipe = make_recipe(run, verdicts) | {
        "verdict": sentence,
        "kept": run.best_step if better else None,
    }
    model = replace(trained.model, recipe=recipe, history=make_history(run))
    encoder = Encoder(model, str(config.out.resolve()))
    encoder.save(config.out)
    return encoder


def as_loaded(run: Run) -> Model:
    """The model with its network as another program would load it: nothing of training is left."""
    restore_network(run.training_model.sentence.transformer)
    return run.model


def judge_result(run: Run, encoder: Encoder) -> list[Verdict]:
    """The encoder beside the base, by each measure."""
    dims, weights = run.model.matryoshka_dims, run.weights
    return [
        measure.compare(measure.values(encoder, dims), base, weights)
        for measure, base in zip(run.measures, run.base_values, strict=True)
    ]


def conclude(run: Run, verdicts: Sequence[Verdict]) -> tuple[str, bool]:
    """Whether search gets better, worse or stays, in a sentence; False: the base is kept."""
    if not verdicts:
        why, share = unjudged(run.config, run.split.train), run.trained_share
        mixed = f", mixed with {1 - share:.0%} of the weights before it" if share < 1 else ""
        return (
            f"Not compared with the base: there are no dev files, and {why}; the last step, "
            f"{run.best_step}, is kept{mixed}"
        ), True
    first, *others = verdicts
    seen = "".join(f"; {verdict}" for verdict in others)
    if not others and run.measures[0].gold is not None:
        seen = STS_ALONE
    if first.better:
        start = ", the rotation alone," if run.best_step == 0 else ""
        return f"Better: {first}; step {run.best_step}{start} is kept{seen}", True
    word = "Worse" if first.high < 0 else "The same"
    word = word if first.n >= MIN_ITEMS else f"Too few to tell, {MIN_ITEMS} or more would"
    return f"{word}: {first}; the base is kept as it was{seen}", False


def make_recipe(run: Run, verdicts: Sequence[Verdict]) -> dict[str, Any]:
    """The recipe stored with the weights: how they were trained, and their scores."""
    settings = run.config.to_dict()
    defaults = TrainConfig(train=run.config.train, out=run.config.out).to_dict()
    return {
        "config": settings,
        "changed": [name for name, value in settings.items() if value != defaults[name]],
        "examples": len(run.split.train),
        "held_out": len(run.split.rows),
        "excluded": run.split.train.excluded,
        "best_step": run.best_step,
        "measures": [verdict.figures() for verdict in verdicts],
        "versions": {name: metadata.version(name) for name in ("torch", "transformers")},
    }


def make_history(run: Run) -> dict[str, Any]:
    """What is stored of the course of a run."""
    base = run.measures[0].summarize(run.base_values[0]) if run.measures else {}
    return {
        "losses": run.losses,
        "judged": run.judged,
        "best_step": run.best_step,
        "measure": run.measures[0].name if run.measures else "",
        "base": {str(dim): score for dim, score in base.items()},
    }
