"""The training loop: batch → vectors → loss → update → evaluate → save; resumable to the bit.

    config = TrainConfig(train=["pairs.tsv"], out="model")
    encoder = train(config, report=print)

A step is `update`: a batch gives views, the views vectors, the vectors a loss that is summed over
the prefixes; AdamW with linear warm-up and decay follows its gradient. All randomness of update N
follows from (seed, N) alone, so a run that was interrupted and resumed ends with the same weights
as a run without interruption.
"""

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass, field, fields

import torch

from searchengine.trainer import fingerprint
from searchengine.trainer.encoder import Encoder
from searchengine.trainer.errors import TrainingError
from searchengine.trainer.files import remove_folder
from searchengine.trainer.model.model_folder import describe
from searchengine.trainer.runtimes.torch_runtime import ran_out_of_memory
from searchengine.trainer.training import checkpoint
from searchengine.trainer.training.batches import BatchPlan, LoadedBatch, load
from searchengine.trainer.training.examples import read_examples
from searchengine.trainer.training.head import (
    CLASSIFIER_TEXTS,
    fit_classifier,
    rotate_head,
    sample_texts,
)
from searchengine.trainer.training.judging import Measure, Scores, make_measures, mean, unjudged
from searchengine.trainer.training.objectives import OBJECTIVES
from searchengine.trainer.training.passes import Passes
from searchengine.trainer.training.preparation import (
    check_place,
    check_start,
    load_base,
    make_optimizer,
    starts_rotated,
)
from searchengine.trainer.training.processes import connect, launched_rank
from searchengine.trainer.training.result import Run, base_as_shipped, base_values, finish
from searchengine.trainer.training.stopping import Signals, Stopped
from searchengine.trainer.training.train_config import TrainConfig
from searchengine.trainer.training.training_model import TrainingModel, text_ids

CHECKPOINT_SECONDS = 300
"""A checkpoint is written this often, before the result is written, and when a signal comes."""
MAX_GRAD_NORM = 1.0


@dataclass(frozen=True, slots=True)
class Report:
    """The state of a run after an update.

    step: updates done, of `steps`. loss: of this update, None before the first. scores: by prefix
    length, if this step was evaluated. base: those of the base as shipped; {} if nothing judges.
    best_step: the best step so far. examples: number per epoch; excluded: number left out because
    of the exclude and dev files. unjudged: why nothing judges the steps; "" if something does.
    """

    step: int
    steps: int
    loss: float | None
    learning_rate: float
    scores: Scores | None
    best_step: int
    examples: int
    excluded: int
    base: Scores = field(default_factory=dict)
    unjudged: str = ""

    def values(self) -> dict[str, float]:
        """The numbers of this update by name, for a log: `wandb.log(report.values())`.

        loss, learning_rate, and of an evaluated step score/DIM.
        """
        scores = {f"score/{dim}": score for dim, score in (self.scores or {}).items()}
        loss = {} if self.loss is None else {"loss": self.loss}
        return {**loss, "learning_rate": self.learning_rate, **scores}


OnReport = Callable[[Report], None]


def train(
    config: TrainConfig,
    report: OnReport | None = None,
    resume: bool = False,
    measure: Measure | None = None,
) -> Encoder:
    """Train by the configuration, write the result to `config.out` and return it.

    The result is the best step if that is better than the base as shipped, beyond the noise of
    what judges them; otherwise the base, with a TrainingWarning. `recipe["verdict"]` of the
    returned encoder says so in a sentence, and `recipe["measures"]` in figures.

    report: called before the first update, then after each. resume: continue from the newest
    checkpoint in OUT/checkpoint. measure: chooses the step, before dev files:
    `searchengine.measure.judged_folder.retrieval`. Under torchrun each process calls this; the
    first one evaluates, reports and writes. Raises ConfigError, DataError, ModelError, or
    TrainingError for a loss that is not a number (the last checkpoint stays). The state of torch's
    random generators is restored afterwards.
    """
    check_place(config)
    # Of several processes that train as one, the first alone writes.
    with checkpoint.held(config.out) if launched_rank() == 0 else nullcontext():
        check_start(config, resume)
        # Every update seeds the generators of all devices.
        with torch.random.fork_rng(range(torch.cuda.device_count())):
            return run_training(config, report, resume, measure)


def run_training(
    config: TrainConfig, report: OnReport | None, resume: bool, measure: Measure | None
) -> Encoder:
    """As `train`, without restoring torch's random generators."""
    run = make_run(config, measure)
    processes = run.processes
    origin = {
        "the training files": run.split.train.digest(config.dev),
        "the files of the base model": fingerprint.of_model(run.model, describe(run.model)),
        "the judged questions": f"{measure.name} {measure.digest}" if measure else "",
    }

    def save() -> None:
        if processes.main:
            checkpoint.save(config, origin, run, run.training_model, run.optimizer, run.best)

    if resume:
        restore(run, origin)
    if processes.main and run.measures:
        base = base_as_shipped(config, run.model, run.split)
        run.base_values = [
            base_values(base, run.model.matryoshka_dims, measure) for measure in run.measures
        ]
    if not resume:
        start(run)
        send_report(run, report)
    with run.signals:
        try:
            passes = Passes(run.training_model, run.encoder("fp32"), config, processes)
            with closing(load(run.plan, run.objective, passes, run.step)) as batches:
                run_updates(run, passes, batches, save, report)
        except Stopped:
            if run.step:
                save()
            raise
        if not processes.main:  # only the first one evaluates and knows the best step
            processes.wait()
            return Encoder.load(config.out)
        with run.signals.whole():  # it changes the weights that a checkpoint would store
            save()  # what cannot be written now, on a full disk, is written by --resume
            trained = finish(run)
            remove_folder(checkpoint.folder_of(config.out))
    processes.wait()
    return trained


def restore(run: Run, origin: checkpoint.Origin) -> None:
    """Continue from the newest checkpoint. Raises as `checkpoint.load`."""
    done, run.best = checkpoint.load(
        run.config, origin, run.plan.steps, run.training_model, run.optimizer
    )
    for item in fields(checkpoint.Progress):
        setattr(run, item.name, getattr(done, item.name))


def make_run(config: TrainConfig, measure: Measure | None) -> Run:
    """A run before its first step."""
    processes, device = connect()
    examples = read_examples(config)
    measures, split = make_measures(config, examples, measure)
    model, projection = load_base(config, examples)
    training_model = TrainingModel(model, config, projection).to(device)
    return Run(
        config=config,
        model=model,
        split=split,
        plan=BatchPlan(config, split.train),
        objective=OBJECTIVES[config.objective](config, model.matryoshka_dims, training_model),
        measures=measures,
        base_values=[],
        processes=processes,
        training_model=training_model,
        optimizer=make_optimizer(training_model, config, device),
        best=checkpoint.copy_weights(training_model.kept),
        signals=Signals(waits=not processes.main),
    )


def run_updates(
    run: Run,
    passes: Passes,
    batches: Iterable[list[LoadedBatch]],
    save: Callable[[], None],
    report: OnReport | None,
) -> None:
    """Update the weights to the end of the run, and evaluate and save them on the way.

    A step that was saved before its evaluation is evaluated first. Raises Stopped after a signal,
    with the weights of a whole update.
    """
    saved = time.monotonic()
    if run.step and evaluates(run) and not run.scores(run.step):
        evaluate(run)
    for loaded in batches:
        with run.signals.whole():
            run.losses.append(update(run, passes, loaded))
            run.step += 1
            if run.processes.add(run.signals.pending, passes.device):  # in any of them
                raise Stopped
        if evaluates(run):
            evaluate(run)
        if run.step < run.plan.steps and time.monotonic() - saved > CHECKPOINT_SECONDS:
            save()
            saved = time.monotonic()
        send_report(run, report)


def evaluates(run: Run) -> bool:
    """Whether this step is evaluated: the last one is."""
    every = run.config.eval_every
    return run.step == run.plan.steps or bool(run.measures and every and run.step % every == 0)


def update(run: Run, passes: Passes, batches: Sequence[LoadedBatch]) -> float:
    """One training step over `accumulation` batches; returns their mean loss.

    Raises TrainingError if memory runs out, or the loss is not a number.
    """
    training_model, processes = run.training_model, run.processes
    for group in run.optimizer.param_groups:
        group["lr"] = run.plan.learning_rate(run.step) * group["rate_factor"]
    training_model.train()
    try:
        total = add_gradients(run, passes, batches)
    except RuntimeError as error:
        if not ran_out_of_memory(error):
            raise
        config = run.config
        raise TrainingError(
            f"memory ran out in update {run.step + 1}: set gradient_cache, which a resumed run may "
            f"change; or lower batch_size ({config.batch_size}) or max_tokens ({config.max_tokens})"
        ) from error
    total = processes.add(total, passes.device)
    trainable = [p for p in training_model.parameters() if p.requires_grad]
    processes.add_gradients(trainable)
    norm = torch.nn.utils.clip_grad_norm_(trainable, MAX_GRAD_NORM).item()
    check_finite(run, {"loss": total, "norm of the gradient": norm})
    run.optimizer.step()
    if training_model.queue is not None:
        for rows, views in batches:  # of anchors, positives and negatives
            vectors = passes.momentum_vectors(views[1])
            training_model.queue.push(vectors, text_ids(row.positive for row in rows))
        training_model.follow()
    return total


def add_gradients(run: Run, passes: Passes, batches: Sequence[LoadedBatch]) -> float:
    """The gradients of these batches, and this process's part of their mean loss."""
    run.optimizer.zero_grad()
    objective, total, share = run.objective, 0.0, 1 / len(batches)
    for number, (rows, views) in enumerate(batches):
        seed = pass_seed(run.config.seed, run.step, number, run.processes.rank)
        vectors = passes.encode(views, objective.layers(run.step), seed)  # (L, n, D) each
        # Of all prefixes. Every process computes that of the whole batch.
        loss = share * objective.loss(vectors, rows, run.step) / run.processes.count
        loss.backward()  # type: ignore[no-untyped-call]
        total += loss.item()
        if run.training_model.language is not None:
            total += passes.language_backward(views[0], seed, share)
    return total


def pass_seed(seed: int, step: int, batch: int, rank: int) -> int:
    """The first seed of an update's passes; no two updates share a seed."""
    return (((seed * 1_000_003 + step) * 64 + rank) * 1000 + batch) * 10_000 % 2**63


def check_finite(run: Run, values: Mapping[str, float]) -> None:
    """Raise TrainingError if one of them is not a number, before the weights change."""
    config = run.config
    for name, value in values.items():
        if not math.isfinite(value):
            newest = checkpoint.latest(config.out)
            kept = f"the checkpoint {newest.name} was kept" if newest else "nothing was written yet"
            raise TrainingError(
                f"the {name} of update {run.step + 1} is {value}: lower learning_rate "
                f"({config.learning_rate}) or raise temperature ({config.temperature}); {kept}"
            )


def start(run: Run) -> None:
    """Rotate the vectors if the run begins so, and evaluate step 0."""
    if starts_rotated(run.config, run.model):
        rotate_head(run.encoder(), sample_texts(run.plan.examples, run.config.seed))
        # Rounding may give other processes other axes; and the copies are older than the rotation.
        run.processes.share(run.training_model)
        run.training_model.align()
    evaluate(run)


def evaluate(run: Run) -> None:
    """Judge the weights by the first measure, and copy them if they are the best so far.

    The best step has the highest mean over the prefixes, weighted as in the loss; without a measure
    it is the last. A classifier is first fitted to the vectors, because its updates lag behind
    them: before training, and later if all examples can be used.
    """
    training_model, plan, classifier = run.training_model, run.plan, run.training_model.classifier
    training_model.eval()
    if classifier is not None and (run.step == 0 or len(plan.examples) <= CLASSIFIER_TEXTS):
        fit_classifier(run.encoder(), classifier, plan.examples)
        run.processes.share(classifier)
    if not run.processes.main:
        return
    with run.signals.whole():
        scores: Scores = {}
        if run.measures:
            scores = run.measures[0].scores(run.encoder(), run.model.matryoshka_dims)
            rate = plan.learning_rate(max(0, run.step - 1))
            by_dim = {str(dim): score for dim, score in scores.items()}
            run.judged.append({"step": run.step, "scores": by_dim, "learning_rate": rate})
        best = run.scores(run.best_step)
        if scores:
            better = mean(scores, run.weights) > mean(best, run.weights)
        else:
            better = run.step > run.best_step  # a resumed run may have kept this step already
        if better or run.step == 0:
            weights = checkpoint.copy_weights(training_model.kept)
            if run.step and run.trained_share < 1:  # then best is step 0
                for name, weight in weights.items():
                    if weight.is_floating_point():
                        weights[name] = run.best[name].lerp(weight, run.trained_share)
            run.best_step, run.best = run.step, weights


def send_report(run: Run, report: OnReport | None) -> None:
    if report is None or not run.processes.main:
        return
    base = run.measures[0].summarize(run.base_values[0]) if run.measures else {}
    report(
        Report(
            step=run.step,
            steps=run.plan.steps,
            loss=run.losses[-1] if run.losses else None,
            learning_rate=run.plan.learning_rate(max(0, run.step - 1)),
            scores=run.scores(run.step) or None,
            best_step=run.best_step,
            examples=len(run.plan.examples),
            excluded=run.plan.examples.excluded,
            base=base,
            unjudged="" if run.measures else unjudged(run.config, run.split.train),
        )
    )
