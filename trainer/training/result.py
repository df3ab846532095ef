"""The result of a run: the kept weights, or the base as shipped; with its recipe and history."""

import tempfile
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, replace
from importlib import metadata
from pathlib import Path
from typing import Any

from searchengine.trainer.encoder import Encoder
from searchengine.trainer.errors import TrainingWarning
from searchengine.trainer.model.modules import Classifier
from searchengine.trainer.training.judging import MIN_ITEMS, Verdict, unjudged
from searchengine.trainer.training.longlora import restore_network
from searchengine.trainer.training.run import Run, copy_weights
from searchengine.trainer.training.train_config import Objective, TrainConfig
from searchengine.trainer.training.training_model import CLASSIFIER_TEXTS, fit_classifier

PRIOR_LABELS = 20
"""As many labels must be learnt for the trained weights to count as much as those of step 0."""
STS_ALONE = "; scored pairs say little of a search: give judged questions by --dev FOLDER as well"


def base_as_shipped(run: Run) -> Encoder:
    """The base as its users have it, before anything of it is changed.

    Where labels are learnt, with a logistic regression on its vectors by every prefix length: what
    its users would have without training.
    """
    base = Encoder.load(run.config.base)
    if run.model.classifier is None:
        return base
    dims = tuple(dict.fromkeys(dims_of_base(run, base).values()))
    if run.regression is None:
        run.regression = Classifier(dims, run.model.classifier.labels)
        fit_classifier(base, run.regression, run.split.train, choose=True)
    model = replace(base.model, matryoshka_dims=dims, classifier=run.regression)
    return Encoder(model, base.source)


def dims_of_base(run: Run, base: Encoder) -> dict[int, int]:
    """By the prefix lengths of a run those of the base: its full width, others as far as it has."""
    full, *others = run.objective.dims
    return {full: base.dim} | {dim: min(dim, base.dim) for dim in others}


@contextmanager
def as_loaded(encoder: Encoder, run: Run) -> Iterator[Encoder]:
    """The encoder as a user loads it: from a folder, with its runtime and precision."""
    out = run.config.out.absolute()
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}.") as scratch:
        encoder.save(Path(scratch) / "model")
        yield Encoder.load(Path(scratch) / "model")


def judge_base(run: Run) -> None:
    """What each measure says of the base as shipped, by the prefix lengths of the run."""
    base = base_as_shipped(run)
    dims = dims_of_base(run, base)
    with as_loaded(base, run) if run.regression else nullcontext(base) as encoder:
        values = [measure.values(encoder, sorted({*dims.values()})) for measure in run.measures]
    run.base_values = [{dim: x[theirs] for dim, theirs in dims.items()} for x in values]


def finish(run: Run) -> Encoder:
    """Write the encoder of the best step to `out`, if it is better than the base beyond the noise.

    Otherwise the base as shipped, with a TrainingWarning. Both are judged as a user loads them; a
    run without measures gives its last step.
    """
    trained, verdicts = best_encoder(run), list[Verdict]()
    if run.measures:
        with as_loaded(trained, run) as encoder:
            values = [measure.values(encoder, run.objective.dims) for measure in run.measures]
        both = zip(run.measures, values, run.base_values, strict=True)
        verdicts = [measure.compare(x, base, run.weights) for measure, x, base in both]
    sentence, better = conclude(run, verdicts)
    if not better:
        warnings.warn(sentence, TrainingWarning, stacklevel=3)
        trained = base_as_shipped(run)
    recipe = make_recipe(run, verdicts) | {
        "verdict": sentence,
        "kept": run.state.best_step if better else None,
    }
    base = {str(dim): score for dim, score in run.summarize_base().items()}
    measure = run.measures[0].name if run.measures else ""
    history = asdict(run.state) | {"measure": measure, "base": base}
    model = replace(trained.model, recipe=recipe, history=history)
    encoder = Encoder(model, str(run.config.out.resolve()))
    encoder.save(run.config.out)
    return encoder


def best_encoder(run: Run) -> Encoder:
    """The encoder of the best step, with nothing of training left; without measures of the last."""
    training_model, classifier = run.training_model, run.model.classifier
    if not run.measures:
        last, share = copy_weights(training_model.kept), trained_share(run)
        for name, weight in run.best.items():  # of step 0
            if weight.is_floating_point():
                last[name] = weight.lerp(last[name], share)
        run.best = last
        run.state.best_step = run.state.step
    training_model.kept.load_state_dict(run.best)
    training_model.eval()
    restore_network(training_model.sentence.transformer)
    if classifier is not None and len(run.split.train) <= CLASSIFIER_TEXTS:
        fit_classifier(run.encoder(), classifier, run.split.train)
    return Encoder(run.model, "")


def trained_share(run: Run) -> float:
    """The share of the last step in the weights of a run without measures; the rest is of step 0.

    Below 1 for labels, as the fewer they are, the more of what they taught is chance. The mean of
    two networks' weights: WiSE-FT, arXiv 2109.01903.
    """
    labels = run.config.objective is Objective.CLASSIFICATION
    return len(run.split.train) / (len(run.split.train) + PRIOR_LABELS) if labels else 1.0


def conclude(run: Run, verdicts: Sequence[Verdict]) -> tuple[str, bool]:
    """Whether search gets better, worse or stays, in a sentence; False: the base is kept."""
    step = run.state.best_step
    if not verdicts:
        why, share = unjudged(run.split.train), trained_share(run)
        mix = f", mixed with {1 - share:.0%} of the weights before it" if share < 1 else ""
        return (
            f"Not compared with the base: there are no dev files, and {why}; the last step, "
            f"{step}, is kept{mix}"
        ), True
    first, *others = verdicts
    seen = "".join(f"; {verdict}" for verdict in others)
    if not others and run.measures[0].gold is not None:
        seen = STS_ALONE
    if first.better:
        rotation = ", the rotation alone," if step == 0 else ""
        return f"Better: {first}; step {step}{rotation} is kept{seen}", True
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
        "excluded": run.split.excluded,
        "best_step": run.state.best_step,
        "measures": [verdict.figures() for verdict in verdicts],
        "versions": {name: metadata.version(name) for name in ("torch", "transformers")},
    }
